#include "collective_groups/gpu/internal/nccl_engine.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/log.h"

namespace troupe::groups {
namespace {

// After so many operations without one, earlier failures count no more.
constexpr uint32_t kNcclSoundOperations = 1000;

// How long to wait between two looks: what takes long can be seen late.
class Poll {
 public:
  void Wait() {
    const Duration waited = clock_.Now() - begin_;
    if (waited < microseconds(50)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(waited < milliseconds(2) ? microseconds(10) : microseconds(50));
    }
  }

 private:
  SteadyClock clock_;
  const Time begin_ = clock_.Now();
};

Error Ended() { return {ErrorCode::kEpochChanged, "NCCL: ended before it was done"}; }

uint64_t FormOf(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed) | 1;
}

}  // namespace

struct NcclEngine::Team {
  Nccl::Comm comm;
  uint64_t form = 0;
  int rank = 0;
  int size = 0;
  NcclState state = NcclState::kNone;
  uint32_t failures = 0;
  uint32_t sound = 0;  // Operations since the last failure.
};

// Owned by the lane; work that does not come back keeps it alive.
struct NcclEngine::Shared {
  std::mutex mu;
  bool busy = false;      // Guarded by mu: work runs,
  bool orphaned = false;  // and it is to close up, because its engine has left it.
  std::shared_ptr<CudaDriver> driver;
  std::optional<Result<std::shared_ptr<Nccl>>> nccl;
  Duration abort_limit{};
  CudaDriver::Stream stream = nullptr;
  CudaDriver::Event done = nullptr;
  char* scratch = nullptr;
  size_t scratch_bytes = 0;
  std::map<uint32_t, Team> teams;

  CudaDriver& cuda() { return *driver; }
  Nccl& library() { return ***nccl; }

  Status WaitUntilCame(CudaDriver::Event event, const Stop& stop) {
    for (Poll poll;; poll.Wait()) {
      const Result<bool> came = cuda().Came(event);
      if (!came.ok()) return came.error();
      if (*came) return Status::Ok();
      if (stop()) return Ended();
    }
  }
  Status WaitUntilReady(const Nccl::Comm& comm, const Stop& stop) {
    for (Poll poll;; poll.Wait()) {
      const Result<bool> ready = library().Ready(comm);
      if (!ready.ok()) return ready.error();
      if (*ready) return Status::Ok();
      if (stop()) return Ended();
    }
  }
  // Until what was started in the stream is done.
  Status Drain(const Nccl::Comm& comm, const Stop& stop) {
    if (Status s = cuda().Record(done, stream); !s.ok()) return s;
    for (Poll poll;; poll.Wait()) {
      const Result<bool> came = cuda().Came(done);
      if (!came.ok()) return came.error();
      if (*came) return Status::Ok();
      if (comm) {
        const Result<bool> ready = library().Ready(comm);
        if (!ready.ok()) return ready.error();
      }
      if (stop()) return Ended();
    }
  }
  [[nodiscard]] Stop After(Duration limit) const {
    const SteadyClock clock;
    return [end = clock.Now() + limit] { return SteadyClock().Now() >= end; };
  }

  void Drop(Team& team) {
    const Nccl::Comm comm = std::exchange(team.comm, nullptr);
    team.state = NcclState::kNone;
    team.form = 0;
    if (!comm) return;
    if (Status s = library().Abort(comm); !s.ok()) LogWarning(s.error().message);
  }

  // After an operation was ended, or has failed. Whatever ran in the stream ends with it.
  void EndOperation(Team& team, bool broken) {
    const Stop limit = After(abort_limit / 2);
    if (!broken && library().features().revoke && library().Revoke(team.comm).ok() &&
        WaitUntilReady(team.comm, limit).ok() && Drain(nullptr, limit).ok()) {
      team.state = NcclState::kRevoked;
      return;
    }
    Drop(team);
    if (Status s = Drain(nullptr, After(abort_limit / 2)); !s.ok()) {
      LogError("NCCL: a communicator was aborted, but its operation still runs on the GPU: ",
               s.error().message);
    }
  }

  Status Copy(const std::vector<DeviceCopy>& copies) {
    for (const DeviceCopy& copy : copies) {
      if (copy.bytes == 0) continue;
      Status s = cuda().Copy(copy.to.In(scratch), copy.from.In(scratch), copy.bytes, stream);
      if (!s.ok()) return s;
    }
    return Status::Ok();
  }

  void Close() {
    for (auto& [id, team] : teams) Drop(team);
    teams.clear();
    if (scratch != nullptr) cuda().Free(std::exchange(scratch, nullptr));
    if (done != nullptr) cuda().FreeEvent(std::exchange(done, nullptr));
    if (stream != nullptr) cuda().FreeStream(std::exchange(stream, nullptr));
  }

  Status MakeScratch(size_t bytes) {
    if (bytes <= scratch_bytes) return Status::Ok();
    if (scratch != nullptr) cuda().Free(std::exchange(scratch, nullptr));
    scratch_bytes = 0;
    Result<void*> memory = cuda().Allocate(bytes);
    if (!memory.ok()) return memory.error();
    scratch = static_cast<char*>(*memory);
    scratch_bytes = bytes;
    return Status::Ok();
  }

  // Polls a communicator that is being formed, and makes it the team's.
  Status Finish(Team& team, const Result<Nccl::Comm>& comm, uint64_t form, int ranks, int rank,
                const Stop& stop) {
    Status s = comm.ok() ? WaitUntilReady(*comm, stop) : Status(comm.error());
    if (!s.ok() && comm.ok()) (void)library().Abort(*comm);
    Drop(team);
    if (!s.ok()) return s;
    team.comm = *comm;
    team.form = form;
    team.rank = rank;
    team.size = ranks;
    team.state = NcclState::kIdle;
    return s;
  }

  Status Perform(Team& team, const DeviceWork& work, const std::shared_ptr<void>& ready,
                 const Stop& stop) {
    if (ready) {
      if (Status s = WaitUntilCame(ready.get(), stop); !s.ok()) return s;
    }
    if (Status s = MakeScratch(work.scratch_bytes); !s.ok()) return s;
    Status s = Copy(work.before);
    if (s.ok() && work.launch) {
      s = work.launch(library(), team.comm, stream, scratch);
      // Only now is all of it in the stream.
      if (s.ok()) s = WaitUntilReady(team.comm, stop);
      if (s.ok()) s = Drain(team.comm, stop);
      // An operation may end in the stream because it was broken off.
      if (s.ok()) {
        const Result<bool> sound = library().Ready(team.comm);
        if (!sound.ok()) s = sound.error();
      }
      if (!s.ok()) {
        const bool ended = s.error().code == ErrorCode::kEpochChanged;
        EndOperation(team, !ended);
        return ended ? s.error() : Error{ErrorCode::kPeerGone, s.error().message};
      }
    }
    // A result is copied out only when it is one.
    if (s.ok()) s = Copy(work.after);
    // Copies end by themselves; nobody may free their buffers before.
    if (s.ok()) s = Drain(nullptr, After(abort_limit));
    return s;
  }
};

NcclEngine::NcclEngine(const DeviceOptions& options) : options_(options) {}

NcclEngine::~NcclEngine() { Leave(); }

// Closes everything, or leaves it to the work that has not come back.
void NcclEngine::Leave() {
  if (!lane_) return;
  const std::shared_ptr<Shared> shared = std::exchange(shared_, nullptr);
  std::unique_ptr<WatchedLane> lane = std::move(lane_);
  {
    std::lock_guard lock(shared->mu);
    shared->orphaned = true;
    if (shared->busy) return;
  }
  if (device_ < 0) return;
  if (lane->lost()) lane = std::make_unique<WatchedLane>("group-nccl");
  (void)lane->Run(
      [shared, device = device_] {
        Status s = shared->cuda().Use(device);
        if (s.ok()) shared->Close();
        return s;
      },
      [] { return true; }, options_.abort_limit);
}

Status NcclEngine::OnLane(std::function<Status(Shared&)> work, const Stop& stop) {
  {
    std::lock_guard lock(shared_->mu);
    if (!lane_->lost()) shared_->busy = true;
  }
  return lane_->Run(
      [shared = shared_, work = std::move(work)] {
        Status status = work(*shared);
        std::lock_guard lock(shared->mu);
        shared->busy = false;
        if (shared->orphaned) shared->Close();
        return status;
      },
      stop, options_.abort_limit);
}

Result<std::shared_ptr<CudaDriver>> NcclEngine::Driver() {
  std::lock_guard lock(mu_);
  if (!driver_) driver_ = options_.load_driver();
  return *driver_;
}

bool NcclEngine::reads_devices() { return Driver().ok(); }

Result<Device> NcclEngine::Mark(int index, void* stream) {
  if (index < 0) return Device{index, nullptr};
  const Result<std::shared_ptr<CudaDriver>> driver = Driver();
  if (!driver.ok()) return driver.error();
  const Result<CudaDriver::Event> event = (*driver)->Mark(index, stream);
  if (!event.ok()) return event.error();
  return Device{
      index, std::shared_ptr<void>(*event, [driver = *driver](void* e) { driver->FreeEvent(e); })};
}

// Chooses the device, once. Without NCCL copies work still.
Status NcclEngine::Open(const Device& device, const Stop& stop) {
  const Result<std::shared_ptr<CudaDriver>> driver = Driver();
  if (!driver.ok()) return driver.error();
  if (lane_ && lane_->lost() && !std::exchange(lost_, true)) {
    Leave();
    device_ = kHostMemory;
  }
  if (device_ >= 0) return Status::Ok();
  if (!device.here()) {
    return Error{ErrorCode::kUnavailable, "it has not used a GPU yet in this process"};
  }
  if (!lane_) {
    lane_ = std::make_unique<WatchedLane>("group-nccl");
    shared_ = std::make_shared<Shared>();
    shared_->driver = *driver;
    shared_->abort_limit = options_.abort_limit;
    if (lost_) {
      shared_->nccl = Error{ErrorCode::kUnavailable, "an earlier call of NCCL has not come back"};
    }
  }
  Status s = OnLane(
      [index = device.index](Shared& shared) -> Status {
        if (Status used = shared.cuda().Use(index); !used.ok()) return used;
        const Result<CudaDriver::Stream> stream = shared.cuda().NewStream();
        if (!stream.ok()) return stream.error();
        shared.stream = *stream;
        const Result<CudaDriver::Event> done = shared.cuda().NewEvent();
        if (!done.ok()) return done.error();
        shared.done = *done;
        return Status::Ok();
      },
      stop);
  if (s.ok()) device_ = device.index;
  return s;
}

const Nccl* NcclEngine::nccl() const {
  return shared_ && shared_->nccl && shared_->nccl->ok() ? shared_->nccl->value().get() : nullptr;
}

NcclStatement NcclEngine::State(uint32_t team, const Device& device, const Stop& stop) {
  auto statement = std::make_shared<NcclStatement>();
  Status s = Open(device, stop);
  if (s.ok()) {
    const auto load = options_.load_nccl;
    s = OnLane(
        [=, index = device_](Shared& shared) -> Status {
          if (!shared.nccl) shared.nccl = load();
          if (!shared.nccl->ok()) return shared.nccl->error();
          const Result<DeviceUuid> uuid = shared.cuda().Uuid(index);
          if (!uuid.ok()) return uuid.error();
          const NcclFeatures& features = shared.library().features();
          Team& mine = shared.teams[team];
          // A peer may have gone since the last operation.
          if (mine.comm && !shared.library().Ready(mine.comm).ok()) shared.Drop(mine);
          *statement = {mine.form, mine.rank,  mine.size,       features.version, mine.failures,
                        *uuid,     mine.state, features.shrink, features.grow,    features.sharing,
                        {}};
          return Status::Ok();
        },
        stop);
  }
  if (s.ok()) return *statement;
  NcclStatement none;
  const std::string& text = s.error().message;
  std::copy_n(text.begin(), std::min(text.size(), none.problem.size() - 1), none.problem.begin());
  return none;
}

Result<NcclId> NcclEngine::NewId(const Stop& stop) {
  auto id = std::make_shared<NcclId>();
  Status s = OnLane(
      [id](Shared& shared) -> Status {
        const Result<NcclId> made = shared.library().NewId();
        if (!made.ok()) return made.error();
        *id = *made;
        return Status::Ok();
      },
      stop);
  if (!s.ok()) return s.error();
  return *id;
}

Result<NcclId> NcclEngine::NewGrowId(uint32_t team, const Stop& stop) {
  auto id = std::make_shared<NcclId>();
  Status s = OnLane(
      [id, team](Shared& shared) -> Status {
        const Result<NcclId> made = shared.library().NewGrowId(shared.teams[team].comm);
        if (!made.ok()) return made.error();
        *id = *made;
        return Status::Ok();
      },
      stop);
  if (!s.ok()) return s.error();
  return *id;
}

Status NcclEngine::Init(uint32_t team, int ranks, const NcclId& id, int rank, const Stop& stop) {
  return OnLane(
      [=](Shared& shared) {
        Team& mine = shared.teams[team];
        shared.Drop(mine);
        const Result<Nccl::Comm> comm = shared.library().Init(ranks, id, rank);
        return shared.Finish(mine, comm, FormOf(id.data(), id.size(), 0), ranks, rank, stop);
      },
      stop);
}

Status NcclEngine::Shrink(uint32_t team, const NcclPlan& plan, const Stop& stop) {
  return OnLane(
      [=](Shared& shared) -> Status {
        Team& mine = shared.teams[team];
        const auto before = std::count_if(plan.excluded.begin(), plan.excluded.end(),
                                          [&](int rank) { return rank < mine.rank; });
        const int rank = mine.rank - static_cast<int>(before);
        const uint64_t form =
            FormOf(plan.excluded.data(), plan.excluded.size() * sizeof(int), mine.form);
        const Result<Nccl::Comm> comm =
            shared.library().Shrink(mine.comm, plan.excluded, plan.abort);
        return shared.Finish(mine, comm, form, plan.survivors, rank, stop);
      },
      stop);
}

Status NcclEngine::Grow(uint32_t team, int ranks, const NcclId& id, int rank, bool survivor,
                        const Stop& stop) {
  return OnLane(
      [=](Shared& shared) {
        Team& mine = shared.teams[team];
        if (!survivor) shared.Drop(mine);
        const bool gave = survivor && rank == 0;
        const Result<Nccl::Comm> comm = shared.library().Grow(
            mine.comm, ranks, gave || !survivor ? &id : nullptr, survivor ? -1 : rank);
        return shared.Finish(mine, comm, FormOf(id.data(), id.size(), 0), ranks, rank, stop);
      },
      stop);
}

Status NcclEngine::Warm(uint32_t team, const Stop& stop) {
  DeviceWork work;
  work.scratch_bytes = sizeof(float);
  work.launch = [](Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
    return nccl.AllReduce(scratch, scratch, 1, {}, comm, stream);
  };
  return Perform(team, std::move(work), {}, stop);
}

void NcclEngine::Release(uint32_t team) {
  if (!lane_ || lane_->lost()) return;
  (void)OnLane(
      [team](Shared& shared) {
        shared.Drop(shared.teams[team]);
        return Status::Ok();
      },
      [] { return true; });
}

void NcclEngine::ReleaseOthers(const std::set<uint32_t>& teams) {
  if (!lane_ || lane_->lost()) return;
  (void)OnLane(
      [teams](Shared& shared) {
        for (auto it = shared.teams.begin(); it != shared.teams.end();) {
          if (teams.contains(it->first)) {
            ++it;
          } else {
            shared.Drop(it->second);
            it = shared.teams.erase(it);
          }
        }
        return Status::Ok();
      },
      [] { return true; });
}

void NcclEngine::CountFailure(uint32_t team) {
  if (!lane_ || lane_->lost()) return;
  (void)OnLane(
      [team](Shared& shared) {
        ++shared.teams[team].failures;
        shared.teams[team].sound = 0;
        return Status::Ok();
      },
      [] { return true; });
}

Status NcclEngine::Perform(uint32_t team, DeviceWork work, const Device& device, const Stop& stop) {
  if (!work.launch && work.before.empty()) return Status::Ok();
  return OnLane(
      [=, work = std::move(work), ready = device.ready](Shared& shared) {
        Team& mine = shared.teams[team];
        Status s = shared.Perform(mine, work, ready, stop);
        if (s.ok()) {
          if (++mine.sound >= kNcclSoundOperations) mine.failures = 0;
        } else if (s.error().code == ErrorCode::kPeerGone) {
          ++mine.failures;
          mine.sound = 0;
        }
        return s;
      },
      stop);
}

Status NcclEngine::CopyAll(std::vector<DeviceCopy> copies, const Device& device, const Stop& stop,
                           std::shared_ptr<void> memory) {
  if (Status s = Open(device, stop); !s.ok()) return s;
  DeviceWork work;
  work.before = std::move(copies);
  return OnLane(
      [work = std::move(work), ready = device.ready, stop,
       memory = std::move(memory)](Shared& shared) {
        Team none;
        return shared.Perform(none, work, ready, stop);
      },
      stop);
}

}  // namespace troupe::groups
