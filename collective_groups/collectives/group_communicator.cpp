// The Communicator: links, shared memory, and the choice between them.
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/collectives/internal/agreement.h"
#include "collective_groups/collectives/internal/layout.h"
#include "collective_groups/collectives/internal/segments.h"
#include "collective_groups/gpu/device_communicator.h"
#include "collective_groups/shm/internal/shared_group.h"
#include "runtime/assert.h"

namespace troupe::groups {
namespace {

constexpr char kMemoryLink = 'm';
constexpr char kRemoteLink = 'r';
constexpr Duration kRetireAfter = milliseconds(100);

// Sends each message the way its peer is reached.
class MixedChannel final : public Channel {
 public:
  MixedChannel(std::shared_ptr<SharedGroup> near, std::set<int> near_ranks,
               std::shared_ptr<Channel> far)
      : near_(std::move(near)), near_ranks_(std::move(near_ranks)), far_(std::move(far)) {}

  Ticket Send(int to, uint64_t key, const void* data, size_t bytes) override {
    if (near_ranks_.contains(to)) return near_->Send(to, key, data, bytes) * 2;
    return far_->Send(to, key, data, bytes) * 2 + 1;
  }
  Ticket Receive(int from, uint64_t key, void* data, size_t bytes) override {
    if (near_ranks_.contains(from)) return near_->Receive(from, key, data, bytes) * 2;
    return far_->Receive(from, key, data, bytes) * 2 + 1;
  }
  Status Wait(Ticket ticket) override {
    return ticket % 2 == 0 ? near_->Wait(ticket / 2) : far_->Wait(ticket / 2);
  }
  void Clear() override {
    if (near_) near_->Clear();
    if (far_) far_->Clear();
  }
  void Abort() override {
    if (near_) near_->Abort();
    if (far_) far_->Abort();
  }

 private:
  const std::shared_ptr<SharedGroup> near_;
  const std::set<int> near_ranks_;
  const std::shared_ptr<Channel> far_;
};

struct TeamState {
  Team team;
  TeamLayout layout;
  LocalTeam local;
  uint64_t sequence = 0;
  std::set<uint64_t> agreed;  // Signatures all ranks have compared.
};

struct EpochState {
  View view;
  int rank = 0;
  // Of the algorithms and of the operations around them; they outlive what is in flight below.
  Workspace workspace;
  Workspace packed;
  std::shared_ptr<SharedGroup> near;  // Null if this member is alone on its host.
  std::vector<int> near_ranks;        // In order; includes this member.
  std::shared_ptr<Channel> far;       // Null if nobody is elsewhere.
  std::shared_ptr<Channel> channel;   // To everybody.
  std::atomic<bool> dead{false};
  // Owned by the thread that runs operations.
  std::map<uint32_t, TeamState> teams;

  void Abort() {
    dead.store(true);
    channel->Abort();
  }
  void Add(Team team) {
    TeamState state;
    state.layout = LayOut(view, team);
    state.local.id = team.id;
    const std::vector<int>& here = state.layout.hosts[state.layout.host];
    for (const int position : here) {
      const auto it = std::find(near_ranks.begin(), near_ranks.end(), team.ranks[position]);
      state.local.peers.push_back(static_cast<int>(it - near_ranks.begin()));
    }
    state.local.me = state.layout.place;
    state.team = std::move(team);
    teams[state.team.id] = std::move(state);
  }
};

// The first that all receivers share memory with, so that nothing goes over the network; else the
// first.
size_t NearestSource(const View& view, std::span<const int> sources,
                     std::span<const int> receivers) {
  const auto memory = [&](int rank) -> const std::string& { return view.members[rank].memory; };
  const auto near = [&](int source) {
    return !memory(source).empty() &&
           std::all_of(receivers.begin(), receivers.end(),
                       [&](int receiver) { return memory(receiver) == memory(source); });
  };
  const auto it = std::find_if(sources.begin(), sources.end(), near);
  return it == sources.end() ? 0 : static_cast<size_t>(it - sources.begin());
}

double PostscaleOf(const ReduceArguments& arguments, const Team& team) {
  return arguments.average ? arguments.postscale / team.size() : arguments.postscale;
}

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(std::unique_ptr<Links> links, std::shared_ptr<SharedSegment> segment,
                    std::string memory)
      : memory_(std::move(memory)), links_(std::move(links)), segment_(std::move(segment)) {}

  ~GroupCommunicator() override {
    Abort(~Epoch{0});
    std::lock_guard running(running_);
    std::lock_guard lock(mu_);
    epoch_.reset();  // Before the links it goes over.
  }

  // ---- links ----

  const std::string& memory() const override { return memory_; }

  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot,
                            const std::string& peer_memory) override {
    if (!memory_.empty() && peer_memory == memory_) return kMemoryLink + segment_->address();
    Result<std::string> address = links_->Offer(my_slot, peer_slot);
    if (!address.ok()) return address;
    return kRemoteLink + *address;
  }

  Status Link(uint32_t peer_slot, const std::string& address) override {
    if (address.empty()) return Error{ErrorCode::kCorrupt, "link: empty address"};
    if (address.front() == kRemoteLink) return links_->Link(peer_slot, address.substr(1));
    std::lock_guard lock(link_mu_);
    std::shared_ptr<SharedSegment>& known = peers_[peer_slot];
    if (known && known->address() == address.substr(1)) return Status::Ok();
    Result<std::unique_ptr<SharedSegment>> mapped = SharedSegment::Map(address.substr(1));
    if (!mapped.ok()) return mapped.error();
    known = std::move(*mapped);
    return Status::Ok();
  }

  void CancelLink(uint32_t peer_slot) override { links_->CancelLink(peer_slot); }
  void CancelLinks() override { links_->CancelLinks(); }
  uint64_t moved() override { return links_->moved(); }

  Status Begin(const View& view, int rank, std::vector<Team> teams) override {
    Abort(~Epoch{0});
    std::lock_guard running(running_);
    auto epoch = std::make_shared<EpochState>();
    epoch->view = view;
    epoch->rank = rank;
    if (Status s = OpenChannels(*epoch); !s.ok()) return s;
    Team everyone;
    everyone.me = rank;
    for (size_t i = 0; i < view.members.size(); ++i) everyone.ranks.push_back(static_cast<int>(i));
    epoch->Add(std::move(everyone));
    for (Team& team : teams) {
      if (team.me >= 0) epoch->Add(std::move(team));
    }
    RetireLeft(Current().get(), view);
    std::lock_guard lock(mu_);
    epoch_ = std::move(epoch);
    return Status::Ok();
  }

  void Abort(Epoch epoch) override {
    std::shared_ptr<EpochState> state;
    {
      std::lock_guard lock(mu_);
      if (epoch_ && epoch_->view.epoch <= epoch) state = epoch_;
    }
    if (state) state->Abort();
  }

  // ---- operations ----

  Status AddTeam(Team team) override {
    std::lock_guard running(running_);
    const std::shared_ptr<EpochState> epoch = Current();
    if (!epoch) return Error{ErrorCode::kEpochChanged, "not in an epoch"};
    std::lock_guard lock(mu_);
    if (team.me >= 0) epoch->Add(std::move(team));
    return Status::Ok();
  }

  Result<uint64_t> HighestAmong(const Operation& operation, std::span<const int> ranks,
                                int64_t value) override {
    const Operation uncompared{0, 0, operation.text, {}};
    const Status status = Run(uncompared, [&](EpochState& epoch, TeamState& view, uint64_t) {
      --view.sequence;  // Taken by Run.
      Team team;
      team.ranks.assign(ranks.begin(), ranks.end());
      const auto me = std::find(ranks.begin(), ranks.end(), epoch.rank);
      if (me == ranks.end()) {
        return Status(Error{ErrorCode::kInvalidArgument, "this member is none of the ranks"});
      }
      team.me = static_cast<int>(me - ranks.begin());
      // Two sets of ranks that are asked for at once have messages of their own.
      const uint64_t key =
          OperationKey(kTeamsMax - 1, 2, XXH3_64bits(ranks.data(), ranks.size_bytes()));
      Algorithms algorithms(epoch.channel.get(), &team, key, &epoch.workspace);
      return algorithms.AllReduce(&value, &value, 1, {DataType::kInt64, ReduceOp::kMax});
    });
    if (!status.ok()) return status.error();
    return static_cast<uint64_t>(value);
  }

  Team team(uint32_t id) const override {
    std::lock_guard lock(mu_);
    if (!epoch_ || !epoch_->teams.contains(id)) return {};
    return epoch_->teams.at(id).team;
  }

  Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, const ReduceArguments& arguments) override {
    return Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t key) {
      const double postscale = PostscaleOf(arguments, team.team);
      if (arguments.count == 0) return Status::Ok();
      if (team.layout.way == Way::kMemory) {
        const SharedGroup::Reduction reduction{
            arguments.elements, arguments.prescale, postscale, 0, team.team.size(), nullptr};
        return epoch.near->AllReduce(team.local, in, out, arguments.count, reduction);
      }
      if (team.layout.way == Way::kLevels) {
        return AllReduceInLevels(epoch, team, key, in, out, arguments, postscale);
      }
      return AllReduceOverLinks(epoch, team, key, in, out, arguments, postscale);
    });
  }

  Status ReduceScatter(const Operation& operation, const void* in, void* out,
                       std::span<const size_t> counts, const ReduceArguments& arguments) override {
    return Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t key) -> Status {
      const DataType type = arguments.elements.type;
      const size_t width = ElementBytes(type);
      size_t total = 0;
      for (const size_t count : counts) total += count;
      const double postscale = PostscaleOf(arguments, team.team);
      if (team.layout.way == Way::kLevels) {
        std::vector<char> scratch(total * width);
        const ConstBuffer whole{in, total * width};
        const MutableBuffer result{scratch.data(), total * width};
        ReduceArguments all = arguments;
        all.count = total;
        Status s = AllReduceInLevels(epoch, team, key, {&whole, 1}, {&result, 1}, all, postscale);
        if (!s.ok()) return s;
        size_t before = 0;
        for (int r = 0; r < team.team.me; ++r) before += counts[r];
        std::memcpy(out, scratch.data() + before * width, counts[team.team.me] * width);
        return s;
      }
      if (arguments.prescale != 1.0) {
        char* const scaled = epoch.packed.Get(total * width);
        std::memcpy(scaled, in, total * width);
        ScaleInPlace(scaled, total, type, arguments.prescale);
        in = scaled;
      }
      Algorithms algorithms(epoch.channel.get(), &team.team, key, &epoch.workspace);
      Status s = algorithms.ReduceScatter(in, out, counts, arguments.elements);
      if (s.ok()) ScaleInPlace(out, counts[team.team.me], type, postscale);
      return s;
    });
  }

  Status Broadcast(const Operation& operation, void* data, size_t bytes, int root) override {
    return Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t key) {
      const TeamLayout& layout = team.layout;
      if (bytes == 0 || layout.way == Way::kAlone) return Status::Ok();
      if (layout.way == Way::kMemory) {
        return epoch.near->Broadcast(team.local, data, bytes, root, nullptr);
      }
      if (layout.way == Way::kLinks) {
        return Algorithms(epoch.far.get(), &team.team, key, &epoch.workspace)
            .Broadcast(data, bytes, root);
      }
      return BroadcastInLevels(epoch, team, key, data, bytes, root);
    });
  }

  Status Exchange(const Operation& operation, std::span<const OutgoingBlock> outgoing,
                  std::span<const IncomingBlock> incoming) override {
    return Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t key) {
      return Algorithms(epoch.channel.get(), &team.team, key, &epoch.workspace)
          .Exchange(outgoing, incoming);
    });
  }

  Status Barrier(const Operation& operation) override {
    return Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t key) {
      if (team.layout.way == Way::kMemory) return epoch.near->Barrier(team.local);
      char* const token = epoch.packed.Get(1);
      *token = 0;
      const Elements elements{DataType::kUint8, ReduceOp::kMax};
      return Algorithms(epoch.channel.get(), &team.team, key, &epoch.workspace)
          .AllReduce(token, token, 1, elements);
    });
  }

  Status Send(const Operation& operation, const void* data, size_t bytes, int to) override {
    return Between(operation, to, [&](Algorithms& algorithms, int peer) {
      const OutgoingBlock block{peer, data, bytes};
      return algorithms.Exchange({&block, 1}, {});
    });
  }

  Status Receive(const Operation& operation, void* data, size_t bytes, int from) override {
    return Between(operation, from, [&](Algorithms& algorithms, int peer) {
      const IncomingBlock block{peer, data, bytes};
      return algorithms.Exchange({}, {&block, 1});
    });
  }

  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    // Only those who take part call it, so it has no place in the order of operations; what two
    // members say to each other in transfers stays in order by itself.
    uint64_t sent = 0;
    const Operation operation{0, 0, "state transfer"};
    Status status = Run(operation, [&](EpochState& epoch, TeamState& team, uint64_t) {
      --team.sequence;  // Taken by Run.
      // With both kinds of links under one stream a wait for one could hold up the other.
      if (team.layout.way == Way::kLevels && !sources.empty())
        sources = sources.subspan(NearestSource(epoch.view, sources, receivers), 1);
      Algorithms algorithms(epoch.channel.get(), &team.team, OperationKey(kTeamsMax - 1, 0, 0),
                            &epoch.workspace);
      Result<uint64_t> result = algorithms.Transfer(sources, receivers, buffers);
      if (!result.ok()) return Status(result.error());
      sent = *result;
      return Status::Ok();
    });
    if (!status.ok()) return status.error();
    return sent;
  }

 private:
  std::shared_ptr<EpochState> Current() const {
    std::lock_guard lock(mu_);
    return epoch_;
  }

  Status OpenChannels(EpochState& epoch) {
    std::vector<SharedGroup::Peer> near;
    std::vector<int> far;
    size_t me = 0;
    for (size_t i = 0; i < epoch.view.members.size(); ++i) {
      const ViewMember& m = epoch.view.members[i];
      const int rank = static_cast<int>(i);
      if (rank == epoch.rank) {
        me = near.size();
        near.push_back({rank, segment_});
      } else if (!memory_.empty() && m.memory == memory_) {
        const auto it = peers_.find(m.slot);
        if (it == peers_.end() || !it->second) {
          return Error{ErrorCode::kInvalidArgument, "not linked to " + m.id.ToString()};
        }
        near.push_back({rank, it->second});
      } else {
        far.push_back(rank);
      }
    }
    for (const auto& peer : near) epoch.near_ranks.push_back(peer.rank);
    if (near.size() > 1) {
      epoch.near = std::make_shared<SharedGroup>(epoch.view.epoch, std::move(near), me);
    }
    if (!far.empty()) {
      Result<std::shared_ptr<Channel>> channel = links_->Open(epoch.view, far);
      if (!channel.ok()) return channel.error();
      epoch.far = *channel;
    }
    std::set<int> near_ranks(epoch.near_ranks.begin(), epoch.near_ranks.end());
    epoch.channel = std::make_shared<MixedChannel>(epoch.near, std::move(near_ranks), epoch.far);
    return Status::Ok();
  }

  // The memory of members that have left; joiners that are linked ahead keep theirs. To unmap it
  // takes as long as all else that an epoch begins with, and everybody does it at the same time:
  // an operation or a later epoch does so, when the group has long gone on.
  void RetireLeft(const EpochState* old, const View& view) {
    UnmapRetired();
    if (old == nullptr) return;
    const Time due = SteadyClock().Now() + kRetireAfter;
    for (const ViewMember& m : old->view.members) {
      const bool stays = std::any_of(view.members.begin(), view.members.end(),
                                     [&](const ViewMember& n) { return n.slot == m.slot; });
      const auto left = stays ? peers_.end() : peers_.find(m.slot);
      if (left == peers_.end()) continue;
      retired_.push_back({due, std::move(left->second)});
      peers_.erase(left);
    }
  }

  void UnmapRetired() {
    if (retired_.empty()) return;
    const Time now = SteadyClock().Now();
    while (!retired_.empty() && retired_.front().due <= now) retired_.pop_front();
  }

  template <class Body>
  Status Run(const Operation& operation, Body&& body) {
    std::lock_guard running(running_);
    UnmapRetired();
    const std::shared_ptr<EpochState> epoch = Current();
    const auto over = [&] {
      return Error{ErrorCode::kEpochChanged, operation.text + ": the epoch was aborted"};
    };
    if (!epoch || epoch->dead.load()) return over();
    const auto it = epoch->teams.find(operation.team);
    if (it == epoch->teams.end()) {
      return Error{ErrorCode::kInvalidArgument, operation.text + ": this member is not in team " +
                                                    std::to_string(operation.team)};
    }
    TeamState& team = it->second;
    ++team.sequence;
    Status status = Agree(*epoch, team, operation);
    if (status.ok()) {
      team.local.signature = operation.signature;
      status = body(*epoch, team, OperationKey(operation.team, team.sequence, operation.signature));
    }
    epoch->channel->Clear();
    if (status.ok()) return status;
    if (epoch->dead.load() && status.error().code == ErrorCode::kPeerGone) return over();
    if (status.error().code == ErrorCode::kMismatch) return status;
    return status.error().WithContext(operation.text);
  }

  // What two members say to each other has no place in the order of operations, and is in order by
  // itself. `body` is given algorithms for the two and the position of the other one.
  template <class Body>
  Status Between(const Operation& operation, int peer, Body&& body) {
    const Operation uncompared{operation.team, 0, operation.text, operation.device};
    return Run(uncompared, [&](EpochState& epoch, TeamState& team, uint64_t) -> Status {
      --team.sequence;  // Taken by Run.
      if (peer < 0 || peer >= team.team.size() || peer == team.team.me) {
        return Error{ErrorCode::kInvalidArgument,
                     "rank " + std::to_string(peer) + " is no other member of this group"};
      }
      Team pair;
      pair.ranks = {team.team.ranks[static_cast<size_t>(std::min(peer, team.team.me))],
                    team.team.ranks[static_cast<size_t>(std::max(peer, team.team.me))]};
      pair.me = team.team.me < peer ? 0 : 1;
      const uint64_t key = OperationKey(kTeamsMax - 1, 1, 0);
      if (Status s =
              CompareDescriptions(*epoch.channel, pair, key, operation.signature, operation.text);
          !s.ok())
        return s;
      Algorithms algorithms(epoch.channel.get(), &pair, key, &epoch.workspace);
      return body(algorithms, 1 - pair.me);
    });
  }

  static Status Agree(EpochState& epoch, TeamState& team, const Operation& operation) {
    if (operation.signature == 0 || team.team.size() == 1) return Status::Ok();
    if (team.agreed.contains(operation.signature)) return Status::Ok();
    const uint64_t key = OperationKey(team.team.id, team.sequence, 0);
    Status status =
        CompareDescriptions(*epoch.channel, team.team, key, operation.signature, operation.text);
    if (!status.ok()) return status;
    if (team.agreed.size() >= kAgreedMax) team.agreed.clear();
    team.agreed.insert(operation.signature);
    return status;
  }

  static Status AllReduceOverLinks(EpochState& epoch, TeamState& team, uint64_t key,
                                   std::span<const ConstBuffer> in,
                                   std::span<const MutableBuffer> out,
                                   const ReduceArguments& arguments, double postscale) {
    const DataType type = arguments.elements.type;
    const size_t bytes = arguments.count * ElementBytes(type);
    char* const work = out.size() == 1 ? static_cast<char*>(out[0].data) : epoch.packed.Get(bytes);
    const void* from = in.size() == 1 ? in[0].data : work;
    AllReduceHooks hooks;
    hooks.scale = postscale;
    SegmentReader reader(in);
    SegmentWriter writer(out);
    if (in.size() != 1 || arguments.prescale != 1.0) {
      const bool moved = in.size() != 1 || from != work;
      from = work;
      hooks.fill = [&, moved](size_t begin, size_t size) {
        reader.Seek(begin);
        if (moved) reader.Read(work + begin, size);
        ScaleInPlace(work + begin, size / ElementBytes(type), type, arguments.prescale);
      };
    }
    if (out.size() > 1) {
      hooks.drain = [&](size_t begin, size_t size) {
        writer.Seek(begin);
        writer.Write(work + begin, size);
      };
    }
    return Algorithms(epoch.channel.get(), &team.team, key, &epoch.workspace)
        .AllReduce(from, work, arguments.count, arguments.elements, hooks);
  }

  static Status AllReduceInLevels(EpochState& epoch, TeamState& team, uint64_t key,
                                  std::span<const ConstBuffer> in,
                                  std::span<const MutableBuffer> out,
                                  const ReduceArguments& arguments, double postscale) {
    const DataType type = arguments.elements.type;
    const size_t width = ElementBytes(type);
    Team peers = team.layout.peers;
    const bool small = arguments.count * width <= kSmallAllReduceBytes;
    SharedGroup::Reduction reduction{arguments.elements, arguments.prescale,
                                     postscale,          small ? 1 : team.layout.owners,
                                     team.team.size(),   nullptr};
    reduction.across = [&](void* part, size_t count) {
      return Algorithms(epoch.far.get(), &peers, key, &epoch.workspace)
          .AllReduce(part, part, count, arguments.elements);
    };
    if (team.local.size() > 1) {
      return epoch.near->AllReduce(team.local, in, out, arguments.count, reduction);
    }
    // Alone on this host: the same chunks, without anybody to share them with.
    char* const chunk = epoch.packed.Get(kStageBytes);
    SegmentReader reader(in);
    SegmentWriter writer(out);
    const size_t per_chunk = SharedGroup::ChunkElements(arguments.count, width, team.team.size());
    for (size_t at = 0; at < arguments.count; at += per_chunk) {
      const size_t count = std::min(per_chunk, arguments.count - at);
      reader.Read(chunk, count * width);
      ScaleInPlace(chunk, count, type, arguments.prescale);
      if (Status s = reduction.across(chunk, count); !s.ok()) return s;
      ScaleInPlace(chunk, count, type, postscale);
      if (!out.empty()) writer.Write(chunk, count * width);
    }
    return Status::Ok();
  }

  static Status BroadcastInLevels(EpochState& epoch, TeamState& team, uint64_t key, void* data,
                                  size_t bytes, int root) {
    const TeamLayout& layout = team.layout;
    Team carriers;
    carriers.me = layout.host;
    int root_host = 0;
    int local_root = 0;
    for (size_t h = 0; h < layout.hosts.size(); ++h) {
      const std::vector<int>& host = layout.hosts[h];
      const auto it = std::find(host.begin(), host.end(), root);
      const bool here = it != host.end();
      if (here) root_host = static_cast<int>(h);
      carriers.ranks.push_back(team.team.ranks[here ? root : host.front()]);
      if (here && static_cast<int>(h) == layout.host) {
        local_root = static_cast<int>(it - host.begin());
      }
    }
    const SharedGroup::Fetch fetch = [&](void* chunk, size_t size) {
      return Algorithms(epoch.far.get(), &carriers, key, &epoch.workspace)
          .Broadcast(chunk, size, root_host);
    };
    if (team.local.size() > 1) {
      return epoch.near->Broadcast(team.local, data, bytes, local_root, fetch);
    }
    for (size_t at = 0; at < bytes; at += kStageBytes) {
      Status s = fetch(static_cast<char*>(data) + at, std::min(kStageBytes, bytes - at));
      if (!s.ok()) return s;
    }
    return Status::Ok();
  }

  const std::string memory_;
  const std::unique_ptr<Links> links_;
  const std::shared_ptr<SharedSegment> segment_;
  std::mutex link_mu_;                                        // For Link of several peers at once.
  std::map<uint32_t, std::shared_ptr<SharedSegment>> peers_;  // By slot; owned by the link lane.
  struct Retired {
    Time due;  // Each has its own: in a storm of epochs there is always a younger one.
    std::shared_ptr<SharedSegment> segment;
  };
  std::deque<Retired> retired_;  // To be unmapped, oldest first; guarded by running_.
  std::mutex running_;           // Held by the operation that runs.

  // Guarded by mu_.
  mutable std::mutex mu_;
  std::shared_ptr<EpochState> epoch_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> MakeCommunicator(std::unique_ptr<Links> links,
                                                       const std::string& host) {
  std::string memory = host.empty() ? "" : SharedMemoryDomain(host);
  std::shared_ptr<SharedSegment> segment;
  if (!memory.empty()) {
    Result<std::unique_ptr<SharedSegment>> made = SharedSegment::Create();
    if (!made.ok()) return made.error();
    segment = std::move(*made);
    // The way by which the others will open it; where it is blocked, they are not to try.
    if (!SharedSegment::Map(segment->address()).ok()) {
      segment.reset();
      memory.clear();
    }
  }
  return std::unique_ptr<Communicator>(
      std::make_unique<GroupCommunicator>(std::move(links), std::move(segment), std::move(memory)));
}

Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) {
  Result<std::unique_ptr<Links>> links = MakeGlooLinks(options.gloo);
  if (!links.ok()) return links.error();
  Result<std::unique_ptr<Communicator>> host = MakeCommunicator(std::move(*links), options.host);
  if (!host.ok()) return host;
  return MakeDeviceCommunicator(std::move(*host), {});
}

}  // namespace troupe::groups
