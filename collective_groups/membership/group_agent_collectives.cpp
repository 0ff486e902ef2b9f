// The collectives of GroupAgent: each hands its operation to the queue.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "collective_groups/collectives/collectives.h"
#include "collective_groups/collectives/internal/pending.h"
#include "collective_groups/collectives/internal/recipe.h"
#include "runtime/metrics.h"

namespace troupe::groups {
namespace {
Result<uint64_t> NoValue(const Status& status) {
  if (!status.ok()) return status.error();
  return uint64_t{0};
}
}  // namespace

GroupAgent::Handle GroupAgent::AllReduce(const Call& call, std::vector<ConstBuffer> in,
                                         std::vector<MutableBuffer> out,
                                         const ReduceArguments& arguments) {
  return Submit(
      "all-reduce", call, arguments.count * ElementBytes(arguments.elements.type),
      [in = std::move(in), out = std::move(out), arguments](Communicator& c,
                                                            const Operation& operation) {
        return NoValue(c.AllReduce(operation, in, out, arguments));
      },
      AllReduceRecipe(arguments));
}

GroupAgent::Handle GroupAgent::ReduceScatter(const Call& call, const void* in, void* out,
                                             std::vector<size_t> counts,
                                             const ReduceArguments& arguments) {
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  return Submit("reduce-scatter", call, total * ElementBytes(arguments.elements.type),
                [in, out, counts = std::move(counts), arguments](Communicator& c,
                                                                 const Operation& operation) {
                  return NoValue(c.ReduceScatter(operation, in, out, counts, arguments));
                });
}

GroupAgent::Handle GroupAgent::Broadcast(const Call& call, void* data, size_t bytes, int root) {
  return Submit(
      "broadcast", call, bytes,
      [=](Communicator& c, const Operation& operation) {
        return NoValue(c.Broadcast(operation, data, bytes, root));
      },
      BroadcastRecipe(bytes, root));
}

GroupAgent::Handle GroupAgent::Exchange(const Call& call, std::vector<OutgoingBlock> outgoing,
                                        std::vector<IncomingBlock> incoming) {
  size_t total = 0;
  for (const IncomingBlock& block : incoming) total += block.bytes;
  return Submit("exchange", call, total,
                [outgoing = std::move(outgoing), incoming = std::move(incoming)](
                    Communicator& c, const Operation& operation) {
                  return NoValue(c.Exchange(operation, outgoing, incoming));
                });
}

GroupAgent::Handle GroupAgent::AllGather(const Call& call, const void* in, void* out,
                                         std::vector<size_t> bytes_per_rank) {
  const std::string recipe = AllGatherRecipe(bytes_per_rank);
  const size_t total = std::accumulate(bytes_per_rank.begin(), bytes_per_rank.end(), size_t{0});
  return Submit(
      "all-gather", call, total,
      [in, out, sizes = std::move(bytes_per_rank)](Communicator& c, const Operation& operation) {
        return NoValue(groups::AllGather(c, operation, in, out, sizes));
      },
      recipe);
}

GroupAgent::Handle GroupAgent::Adasum(const Call& call, std::vector<MutableBuffer> tensors,
                                      DataType type) {
  size_t total = 0;
  for (const MutableBuffer& tensor : tensors) total += tensor.bytes;
  return Submit("adasum", call, total,
                [tensors = std::move(tensors), type](Communicator& c, const Operation& operation) {
                  return NoValue(groups::Adasum(c, operation, tensors, type));
                });
}

GroupAgent::Handle GroupAgent::Barrier(const Call& call) {
  return Submit(
      "barrier", call, 0,
      [](Communicator& c, const Operation& operation) { return NoValue(c.Barrier(operation)); },
      BarrierRecipe());
}

GroupAgent::Handle GroupAgent::Send(const Call& call, const void* data, size_t bytes, int to) {
  Call of_two = call;
  of_two.everyone = false;
  return Submit("send", of_two, bytes, [=](Communicator& c, const Operation& operation) {
    return NoValue(c.Send(operation, data, bytes, to));
  });
}

GroupAgent::Handle GroupAgent::Receive(const Call& call, void* data, size_t bytes, int from) {
  Call of_two = call;
  of_two.everyone = false;
  return Submit("receive", of_two, bytes, [=](Communicator& c, const Operation& operation) {
    return NoValue(c.Receive(operation, data, bytes, from));
  });
}

GroupAgent::Handle GroupAgent::Transfer(std::vector<int> sources, std::vector<int> receivers,
                                        std::vector<MutableBuffer> buffers) {
  size_t total = 0;
  for (const MutableBuffer& buffer : buffers) total += buffer.bytes;
  Call call;
  call.everyone = false;
  return Submit("state transfer", call, total,
                [sources = std::move(sources), receivers = std::move(receivers),
                 buffers = std::move(buffers)](Communicator& c, const Operation&) {
                  Result<uint64_t> sent = c.Transfer(sources, receivers, buffers);
                  if (sent.ok() && *sent > 0) {
                    metrics::Add(metrics::Id::kStateTransfers);
                    metrics::Add(metrics::Id::kStateBytes, static_cast<double>(*sent));
                  }
                  return sent;
                });
}

// ---- teams ----

std::vector<Team> GroupAgent::TeamsIn(const View& view) const {
  std::vector<Team> teams;
  for (size_t i = 0; i < teams_.size(); ++i) {
    Team team;
    team.id = static_cast<uint32_t>(i + 1);
    for (size_t rank = 0; rank < view.members.size(); ++rank) {
      const MemberId& id = view.members[rank].id;
      if (std::find(teams_[i].begin(), teams_[i].end(), id) == teams_[i].end()) continue;
      if (id == options_.id) team.me = team.size();
      team.ranks.push_back(static_cast<int>(rank));
    }
    teams.push_back(std::move(team));
  }
  return teams;
}

// A member that joined later knows none of the teams before it: all take the number after the
// highest that anybody knows.
GroupAgent::Handle GroupAgent::AddTeam(const std::vector<int>& ranks, bool members_only) {
  const auto body = [this, ranks, members_only](Communicator& c,
                                                const Operation& operation) -> Result<uint64_t> {
    Result<uint64_t> known = HighestTeam(c, operation, members_only ? ranks : std::vector<int>{});
    if (!known.ok()) return known;
    Team team;
    {
      std::lock_guard lock(mu_);
      if (*known + 2 >= kTeamsMax) {
        return Error{ErrorCode::kResourceExhausted, "a group has at most " +
                                                        std::to_string(kTeamsMax - 2) +
                                                        " teams besides the whole view"};
      }
      teams_.resize(*known);
      std::vector<MemberId> members;
      for (const int rank : ranks) {
        members.push_back(active_.view.members.at(static_cast<size_t>(rank)).id);
      }
      teams_.push_back(std::move(members));
      team = TeamsIn(active_.view).back();
    }
    const uint64_t id = team.id;
    if (Status s = c.AddTeam(std::move(team)); !s.ok()) return s.error();
    return id;
  };
  Call call;
  call.everyone = !members_only;
  return Submit("add a team", call, 0, body);
}

void GroupAgent::DropTeam(uint32_t id) {
  std::lock_guard lock(mu_);
  if (id >= 1 && id <= teams_.size()) teams_[id - 1].clear();
}

// Among `ranks`, or among all.
Result<uint64_t> GroupAgent::HighestTeam(Communicator& communicator, const Operation& operation,
                                         const std::vector<int>& ranks) {
  int64_t highest = 0;
  {
    std::lock_guard lock(mu_);
    highest = static_cast<int64_t>(teams_.size());
  }
  if (!ranks.empty()) return communicator.HighestAmong(operation, ranks, highest);
  ReduceArguments arguments;
  arguments.elements = {DataType::kInt64, ReduceOp::kMax};
  arguments.count = 1;
  const ConstBuffer in{&highest, sizeof highest};
  const MutableBuffer out{&highest, sizeof highest};
  const Status s = communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments);
  if (!s.ok()) return s.error();
  return static_cast<uint64_t>(highest);
}

// ---- join ----

GroupAgent::Handle GroupAgent::Join() {
  Call call;
  call.joined = true;
  return Submit("join", call, 0, [this](Communicator& c, const Operation&) { return TakePart(c); });
}

Result<uint64_t> GroupAgent::TakePart(Communicator& communicator) {
  Progress progress;
  {
    std::unique_lock lock(mu_);
    const Epoch epoch = at_->epoch;
    const uint64_t sequence = at_->progress.sequence;
    const auto told = [&] { return assist_ && assist_->sequence == sequence; };
    const bool woke = changed_.wait_for(
        lock, kCollectiveTimeout, [&] { return told() || stopped_ || aborted_epoch_ >= epoch; });
    if (!told()) {
      return Error{woke ? ErrorCode::kEpochChanged : ErrorCode::kDeadlineExceeded,
                   woke ? "join: the epoch was aborted" : "join: the others never joined"};
    }
    progress = *std::exchange(assist_, std::nullopt);
  }
  if (progress.recipe.starts_with(kAllJoined)) {
    return 1 + std::stoull(progress.recipe.substr(std::strlen(kAllJoined)));
  }
  const Operation operation{0, progress.signature, progress.operation};
  if (Status s = TakePartIn(communicator, operation, progress.recipe); !s.ok()) return s.error();
  return uint64_t{0};
}

Team GroupAgent::team(uint32_t id) const {
  std::lock_guard lock(mu_);
  if (!in_epoch_) return {};
  if (id == 0) {
    Team team;
    team.me = active_.topology.rank;
    for (int rank = 0; rank < active_.topology.size; ++rank) team.ranks.push_back(rank);
    return team;
  }
  std::vector<Team> teams = TeamsIn(active_.view);
  return id <= teams.size() ? teams[id - 1] : Team{};
}

}  // namespace troupe::groups
