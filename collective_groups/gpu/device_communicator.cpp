#include "collective_groups/gpu/device_communicator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "collective_groups/collectives/collectives.h"
#include "collective_groups/gpu/internal/nccl_engine.h"
#include "runtime/log.h"
#include "runtime/trace.h"

namespace troupe::groups {

Result<Device> Communicator::Mark(int index, void*) {
  if (index < 0) return Device{index, nullptr};
  return Error{ErrorCode::kInvalidArgument,
               "memory of devices cannot be read here; copy it to "
               "host memory"};
}

Status Communicator::Send(const Operation& operation, const void*, size_t, int) {
  return Error{ErrorCode::kInvalidArgument, operation.text + ": not between two members here"};
}
Status Communicator::Receive(const Operation& operation, void*, size_t, int) {
  return Error{ErrorCode::kInvalidArgument, operation.text + ": not between two members here"};
}

Result<uint64_t> Communicator::HighestAmong(const Operation& operation, std::span<const int>,
                                            int64_t) {
  return Error{ErrorCode::kInvalidArgument, operation.text + ": not among some members here"};
}

Status Communicator::AllGatherOnDevice(const Operation& operation, const void*, void*,
                                       std::span<const size_t>) {
  return Error{ErrorCode::kInvalidArgument, operation.text + ": no devices here"};
}

namespace {

// Where the buffers of one operation lie in host memory meanwhile.
class HostCopies {
 public:
  HostCopies(NcclEngine& engine, const Device& device, const NcclEngine::Stop& stop)
      : engine_(engine), device_(device), stop_(stop) {}

  const void* In(const void* data, size_t bytes) {
    if (!device_.here()) return data;
    in_.push_back({Place::At(Memory(bytes)), Place::At(data), bytes});
    return in_.back().to.In(nullptr);
  }
  void* Out(void* data, size_t bytes) {
    if (!device_.here()) return data;
    out_.push_back({Place::At(data), Place::At(Memory(bytes)), bytes});
    return out_.back().from.In(nullptr);
  }
  void* InOut(void* data, size_t bytes, bool in, bool out) {
    if (!device_.here()) return data;
    char* memory = Memory(bytes);
    if (in) in_.push_back({Place::At(memory), Place::At(data), bytes});
    if (out) out_.push_back({Place::At(data), Place::At(memory), bytes});
    return memory;
  }
  // Copies in, runs `body` on the host copies, and copies out.
  template <class Body>
  Status Around(Body&& body) {
    if (!in_.empty()) {
      if (Status s = Copy(in_); !s.ok()) return s;
    }
    if (Status s = body(); !s.ok()) return s;
    return out_.empty() ? Status::Ok() : Copy(out_);
  }

 private:
  using Buffer = std::shared_ptr<char[]>;
  char* Memory(size_t bytes) {
    memory_->emplace_back(new char[std::max<size_t>(bytes, 1)]);
    return memory_->back().get();
  }
  Status Copy(const std::vector<DeviceCopy>& copies) {
    return engine_.CopyAll(copies, device_, stop_, memory_);
  }

  NcclEngine& engine_;
  const Device& device_;
  const NcclEngine::Stop& stop_;
  std::shared_ptr<std::vector<Buffer>> memory_ = std::make_shared<std::vector<Buffer>>();
  std::vector<DeviceCopy> in_;
  std::vector<DeviceCopy> out_;
};

// What a team has settled for the epoch.
struct TeamPlan {
  bool nccl = false;
  std::set<uint64_t> agreed;  // Signatures all ranks have compared.
};

struct EpochState {
  Epoch epoch = 0;
  std::atomic<bool> dead{false};
  std::map<uint32_t, TeamPlan> teams;  // Owned by the thread that runs operations.
};

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<Communicator> host, const DeviceOptions& options)
      : host_(std::move(host)), options_(options), engine_(options) {}
  ~DeviceCommunicator() override {
    Abort(~Epoch{0});
    std::lock_guard running(running_);
  }
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  const std::string& memory() const override { return host_->memory(); }
  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot,
                            const std::string& peer_memory) override {
    return host_->Offer(my_slot, peer_slot, peer_memory);
  }
  Status Link(uint32_t peer_slot, const std::string& address) override {
    return host_->Link(peer_slot, address);
  }
  void CancelLinks() override { host_->CancelLinks(); }
  uint64_t moved() override { return host_->moved(); }
  void CancelLink(uint32_t peer_slot) override { host_->CancelLink(peer_slot); }

  Status Begin(const View& view, int rank, std::vector<Team> teams) override {
    Abort(~Epoch{0});
    std::lock_guard running(running_);
    auto epoch = std::make_shared<EpochState>();
    epoch->epoch = view.epoch;
    std::set<uint32_t> present{0};
    for (const Team& team : teams) {
      if (team.me >= 0) present.insert(team.id);
    }
    if (Status s = host_->Begin(view, rank, std::move(teams)); !s.ok()) return s;
    engine_.ReleaseOthers(present);
    std::lock_guard lock(mu_);
    epoch_ = std::move(epoch);
    return Status::Ok();
  }

  void Abort(Epoch epoch) override {
    {
      std::lock_guard lock(mu_);
      if (epoch_ && epoch_->epoch <= epoch) epoch_->dead.store(true);
    }
    host_->Abort(epoch);
  }

  Status AddTeam(Team team) override { return host_->AddTeam(std::move(team)); }
  Result<uint64_t> HighestAmong(const Operation& operation, std::span<const int> ranks,
                                int64_t value) override {
    return host_->HighestAmong(operation, ranks, value);
  }
  Team team(uint32_t id) const override { return host_->team(id); }
  Status Barrier(const Operation& operation) override { return host_->Barrier(operation); }
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    return host_->Transfer(sources, receivers, buffers);
  }

  bool devices() const override { return engine_.reads_devices(); }
  Result<Device> Mark(int index, void* stream) override { return engine_.Mark(index, stream); }

  Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, const ReduceArguments& arguments) override {
    if (!operation.device.used()) return host_->AllReduce(operation, in, out, arguments);
    return Run(
        operation,
        [&](bool direct, const Team& team) -> std::optional<DeviceWork> {
          if (!NcclReduces(*engine_.nccl(), arguments)) return std::nullopt;
          return AllReduceWork(direct, in, out, arguments, team.size());
        },
        [&](HostCopies& copies) {
          std::vector<ConstBuffer> sources;
          std::vector<MutableBuffer> targets;
          for (const ConstBuffer& piece : in) {
            sources.push_back({copies.In(piece.data, piece.bytes), piece.bytes});
          }
          for (const MutableBuffer& piece : out) {
            targets.push_back({copies.Out(piece.data, piece.bytes), piece.bytes});
          }
          return copies.Around(
              [&] { return host_->AllReduce(operation, sources, targets, arguments); });
        });
  }

  Status ReduceScatter(const Operation& operation, const void* in, void* out,
                       std::span<const size_t> counts, const ReduceArguments& arguments) override {
    if (!operation.device.used()) {
      return host_->ReduceScatter(operation, in, out, counts, arguments);
    }
    return Run(
        operation,
        [&](bool direct, const Team& team) -> std::optional<DeviceWork> {
          if (!NcclReduces(*engine_.nccl(), arguments)) return std::nullopt;
          return ReduceScatterWork(direct, in, out, counts, arguments, team.me);
        },
        [&](HostCopies& copies) {
          const size_t width = ElementBytes(arguments.elements.type);
          const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
          const auto me = static_cast<size_t>(host_->team(operation.team).me);
          const void* source = copies.In(in, total * width);
          void* target = copies.Out(out, counts[me] * width);
          return copies.Around(
              [&] { return host_->ReduceScatter(operation, source, target, counts, arguments); });
        });
  }

  Status Broadcast(const Operation& operation, void* data, size_t bytes, int root) override {
    if (!operation.device.used()) return host_->Broadcast(operation, data, bytes, root);
    return Run(
        operation,
        [&](bool direct, const Team& team) {
          return std::optional(BroadcastWork(direct, data, bytes, root, team.me));
        },
        [&](HostCopies& copies) {
          const bool mine = host_->team(operation.team).me == root;
          void* memory = copies.InOut(data, bytes, mine, !mine);
          return copies.Around([&] { return host_->Broadcast(operation, memory, bytes, root); });
        });
  }

  Status Exchange(const Operation& operation, std::span<const OutgoingBlock> outgoing,
                  std::span<const IncomingBlock> incoming) override {
    if (!operation.device.used()) return host_->Exchange(operation, outgoing, incoming);
    return Run(
        operation,
        [&](bool direct, const Team&) {
          return std::optional(ExchangeWork(direct, outgoing, incoming));
        },
        [&](HostCopies& copies) {
          std::vector<OutgoingBlock> sources;
          std::vector<IncomingBlock> targets;
          for (const OutgoingBlock& block : outgoing) {
            sources.push_back({block.peer, copies.In(block.data, block.bytes), block.bytes});
          }
          for (const IncomingBlock& block : incoming) {
            targets.push_back({block.peer, copies.Out(block.data, block.bytes), block.bytes});
          }
          return copies.Around([&] { return host_->Exchange(operation, sources, targets); });
        });
  }

  // Through host memory: what NCCL has for two needs all ranks of a team to have settled on it.
  Status Send(const Operation& operation, const void* data, size_t bytes, int to) override {
    if (!operation.device.used()) return host_->Send(operation, data, bytes, to);
    return OnCopies(operation, [&](HostCopies& copies) {
      const void* const source = copies.In(data, bytes);
      return copies.Around([&] { return host_->Send(OnHost(operation), source, bytes, to); });
    });
  }
  Status Receive(const Operation& operation, void* data, size_t bytes, int from) override {
    if (!operation.device.used()) return host_->Receive(operation, data, bytes, from);
    return OnCopies(operation, [&](HostCopies& copies) {
      void* const target = copies.Out(data, bytes);
      return copies.Around([&] { return host_->Receive(OnHost(operation), target, bytes, from); });
    });
  }

  Status AllGatherOnDevice(const Operation& operation, const void* in, void* out,
                           std::span<const size_t> bytes_per_rank) override {
    return Run(
        operation,
        [&](bool direct, const Team& team) {
          return std::optional(AllGatherWork(direct, in, out, bytes_per_rank, team.me));
        },
        [&](HostCopies& copies) {
          const auto me = static_cast<size_t>(host_->team(operation.team).me);
          const size_t total =
              std::accumulate(bytes_per_rank.begin(), bytes_per_rank.end(), size_t{0});
          const void* source = copies.In(in, bytes_per_rank[me]);
          void* target = copies.Out(out, total);
          Operation on_host = operation;
          on_host.device = {};
          return copies.Around(
              [&] { return AllGather(*host_, on_host, source, target, bytes_per_rank); });
        });
  }

 private:
  // Runs an operation on devices: as `work` if NCCL can, else by `staged`.
  template <class Work, class Staged>
  Status Run(const Operation& operation, Work&& work, Staged&& staged) {
    std::lock_guard running(running_);
    const std::shared_ptr<EpochState> epoch = Current();
    const Error over{ErrorCode::kEpochChanged, operation.text + ": the epoch was aborted"};
    if (!epoch || epoch->dead.load()) return over;
    const Team team = host_->team(operation.team);
    if (team.me < 0) {
      return Error{ErrorCode::kInvalidArgument, operation.text + ": this member is not in team " +
                                                    std::to_string(operation.team)};
    }
    const NcclEngine::Stop stop = Until(epoch, kCollectiveTimeout);
    Status status = Settle(epoch, team, operation);
    if (status.ok()) {
      std::optional<DeviceWork> made;
      if (epoch->teams[team.id].nccl) made = work(engine_.Direct(operation.device), team);
      if (made) {
        status = engine_.Perform(team.id, std::move(*made), operation.device, stop);
        if (!status.ok()) status = status.error().WithContext(operation.text);
      } else {
        HostCopies copies(engine_, operation.device, stop);
        status = staged(copies);
      }
    }
    if (status.ok() || status.error().code == ErrorCode::kMismatch) return status;
    if (epoch->dead.load()) return over;
    if (status.error().code == ErrorCode::kEpochChanged) {
      return Error{ErrorCode::kDeadlineExceeded,
                   operation.text + ": the others have not come within " +
                       std::to_string(static_cast<int>(ToSeconds(kCollectiveTimeout))) + " s"};
    }
    return status;
  }

  template <class Body>
  Status OnCopies(const Operation& operation, Body&& body) {
    std::lock_guard running(running_);
    const std::shared_ptr<EpochState> epoch = Current();
    const Error over{ErrorCode::kEpochChanged, operation.text + ": the epoch was aborted"};
    if (!epoch || epoch->dead.load()) return over;
    const NcclEngine::Stop stop = Until(epoch, kCollectiveTimeout);
    HostCopies copies(engine_, operation.device, stop);
    Status status = body(copies);
    return !status.ok() && epoch->dead.load() ? Status(over) : status;
  }

  std::shared_ptr<EpochState> Current() const {
    std::lock_guard lock(mu_);
    return epoch_;
  }

  static NcclEngine::Stop Until(std::shared_ptr<EpochState> epoch, Duration limit) {
    const SteadyClock clock;
    return [epoch = std::move(epoch), end = clock.Now() + limit] {
      return epoch->dead.load() || SteadyClock().Now() >= end;
    };
  }

  // Everything the ranks must agree on before the operation: its description, and the way.
  Status Settle(const std::shared_ptr<EpochState>& epoch, const Team& team,
                const Operation& operation) {
    const auto known = epoch->teams.find(team.id);
    if (known == epoch->teams.end()) {
      TeamPlan plan;
      if (Status s = Decide(epoch, team, operation, plan); !s.ok()) return s;
      plan.agreed.insert(operation.signature);
      epoch->teams[team.id] = std::move(plan);
      return Status::Ok();
    }
    // What goes through host memory is compared there.
    TeamPlan& plan = known->second;
    if (!plan.nccl || operation.signature == 0 || team.size() == 1) return Status::Ok();
    if (plan.agreed.contains(operation.signature)) return Status::Ok();
    Status s = host_->Barrier(OnHost(operation));
    if (s.ok()) plan.agreed.insert(operation.signature);
    return s;
  }

  static Operation OnHost(const Operation& operation) {
    return {operation.team, operation.signature, operation.text, {}};
  }
  static Operation About(const Team& team, const char* what) {
    return {team.id, 0, std::string("NCCL: ") + what, {}};
  }

  Status Decide(const std::shared_ptr<EpochState>& epoch, const Team& team,
                const Operation& operation, TeamPlan& result) {
    const trace::Span span("form NCCL");
    const NcclEngine::Stop stop = Until(epoch, options_.form_limit);
    const NcclStatement mine = engine_.State(team.id, operation.device, stop);
    std::vector<NcclStatement> statements(static_cast<size_t>(team.size()));
    const std::vector<size_t> sizes(statements.size(), sizeof mine);
    Status told = AllGather(*host_, OnHost(operation), &mine, statements.data(), sizes);
    if (!told.ok()) return told;
    for (const bool afresh : {false, true}) {
      const NcclPlan plan = PlanNccl(statements, afresh);
      if (plan.way == NcclPlan::Way::kHost) {
        engine_.Release(team.id);
        SayWhy(plan.reason);
        return Status::Ok();
      }
      Status formed = Form(epoch, team, plan);
      if (!formed.ok() && epoch->dead.load()) return formed;
      if (!formed.ok()) LogWarning(formed.error().message);
      const Result<bool> all = Agreed(team, formed.ok());
      if (!all.ok()) return all.error();
      result.nccl = *all;
      if (*all) return Status::Ok();
      engine_.Release(team.id);
      if (plan.way == NcclPlan::Way::kInit) break;
    }
    engine_.CountFailure(team.id);
    SayWhy("NCCL could not be set up on every rank; the log of the one where it failed says why");
    return Status::Ok();
  }

  // Whether all ranks have come so far.
  Result<bool> Agreed(const Team& team, bool mine) {
    uint8_t well = mine ? 1 : 0;
    const ConstBuffer in{&well, 1};
    const MutableBuffer out{&well, 1};
    ReduceArguments arguments;
    arguments.elements = {DataType::kUint8, ReduceOp::kMin};
    arguments.count = 1;
    const Status s = host_->AllReduce(About(team, "has it worked"), {&in, 1}, {&out, 1}, arguments);
    if (!s.ok()) return s.error();
    return well == 1;
  }

  // Brings the team's communicator about. All ranks take the same steps with each other, whatever
  // fails on one of them, except after an error of the data plane between hosts.
  Status Form(const std::shared_ptr<EpochState>& epoch, const Team& team, const NcclPlan& plan) {
    using Way = NcclPlan::Way;
    const NcclEngine::Stop stop = Until(epoch, options_.form_limit);
    if (plan.way == Way::kKeep) return engine_.Warm(team.id, stop);
    const bool survivor = team.me < plan.survivors;
    Status status;
    if (!plan.excluded.empty() && survivor) status = engine_.Shrink(team.id, plan, stop);
    if (plan.way != Way::kShrink) {
      // The id comes from position 0, or word that there is none, because a rank has failed.
      struct {
        NcclId id{};
        uint8_t made = 0;
      } offer;
      Result<bool> all = Agreed(team, status.ok());
      if (!all.ok()) return all.error();
      if (*all && team.me == 0) {
        const Result<NcclId> id =
            plan.way == Way::kInit ? engine_.NewId(stop) : engine_.NewGrowId(team.id, stop);
        if (id.ok()) {
          offer.id = *id;
          offer.made = 1;
        } else {
          status = id.error();
        }
      }
      if (*all) {
        Status told = host_->Broadcast(About(team, "the unique id"), &offer, sizeof offer, 0);
        if (!told.ok()) return told;
      }
      if (offer.made == 0) {
        if (!status.ok()) return status;
        return Error{ErrorCode::kUnavailable, "NCCL: another rank has failed"};
      }
      status = plan.way == Way::kInit
                   ? engine_.Init(team.id, team.size(), offer.id, team.me, stop)
                   : engine_.Grow(team.id, team.size(), offer.id, team.me, survivor, stop);
    }
    Result<bool> formed = Agreed(team, status.ok());
    if (!formed.ok()) return formed.error();
    if (*formed) return engine_.Warm(team.id, stop);
    if (!status.ok()) return status;
    return Error{ErrorCode::kUnavailable, "NCCL: another rank has failed"};
  }

  void SayWhy(const std::string& reason) {
    if (std::exchange(told_, reason) == reason) return;
    LogWarning("collectives of GPU memory go through host memory: ", reason);
  }

  const std::unique_ptr<Communicator> host_;
  const DeviceOptions options_;
  mutable NcclEngine engine_;
  std::string told_;    // Owned by the thread that runs operations.
  std::mutex running_;  // Held by the operation that runs.

  // Guarded by mu_.
  mutable std::mutex mu_;
  std::shared_ptr<EpochState> epoch_;
};

}  // namespace

std::unique_ptr<Communicator> MakeDeviceCommunicator(std::unique_ptr<Communicator> host,
                                                     const DeviceOptions& options) {
  return std::make_unique<DeviceCommunicator>(std::move(host), options);
}

}  // namespace troupe::groups
