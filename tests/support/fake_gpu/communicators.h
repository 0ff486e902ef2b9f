// Communicators of the fake, and the check at the door of every call.
#pragma once

#include <nccl.h>

#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/state.h"

namespace troupe::fake_gpu {

struct Call {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const char* in = nullptr;
  char* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // Or peer.
  std::optional<double> factor;

  // What must be equal on all ranks; a factor is each rank's own, but all have one or none.
  [[nodiscard]] auto Shape() const {
    return std::tuple(kind, count, type, op, root, factor.has_value());
  }
  [[nodiscard]] bool PointToPoint() const { return kind == Kind::kSend || kind == Kind::kReceive; }
};

// The ranks of one communicator. Guarded by State::mu, as all here.
struct World {
  int size = 0;
  std::vector<ncclComm*> comms;  // By rank; null: not arrived.
  int arrived = 0;
  std::map<uint64_t, std::vector<const std::vector<Call>*>> meetings;  // By number; by rank.
  std::set<uint64_t> done;
  std::map<std::pair<int, int>, std::deque<const Call*>> sends;  // From, to.
  std::map<std::vector<int>, std::shared_ptr<World>> shrunk;     // By whom it excludes.
  std::shared_ptr<World> growing;
};

}  // namespace troupe::fake_gpu

struct ncclComm {
  std::shared_ptr<troupe::fake_gpu::World> world;
  int rank = 0;
  int polls = 0;  // Until what is in progress is done.
  bool forming = false;
  ncclResult_t error = ncclSuccess;
  bool aborted = false;
  bool revoked = false;
  int running = 0;  // Pieces of work in streams.
  uint64_t meetings = 0;
  int launched = 0;
  std::function<void()> then;  // When `polls` have gone by.
  std::map<int, double> scaled;
  bool inside = false;  // A thread is.

  [[nodiscard]] bool over() const { return aborted || revoked; }
};

namespace troupe::fake_gpu {

// A call on a communicator. Checks that it may come now.
class Entry {
 public:
  Entry(const char* name, ncclComm* comm, bool anytime, int since = 0)
      : state_(State::Get()), lock_(state_.mu), comm_(comm) {
    if (state_.faults.version < since) Refuse(name, "this version does not have it");
    if (comm == nullptr) return;
    if (comm->aborted) Refuse(name, "after ncclCommAbort");
    if (comm->inside) Refuse(name, "while another thread is inside a call");
    if (!anytime && (comm->polls > 0 || comm->forming))
      Refuse(name, "while something is in progress");
    comm->inside = true;
  }
  ~Entry() {
    if (comm_ != nullptr) comm_->inside = false;
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  void Refuse(const char* name, const std::string& why) {
    state_.Break(std::string(name) + ": " + why);
    bad_ = true;
  }
  [[nodiscard]] bool bad() const { return bad_; }
  State& state() { return state_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  State& state_;
  std::unique_lock<std::mutex> lock_;
  ncclComm* comm_;
  bool bad_ = false;
};

}  // namespace troupe::fake_gpu
