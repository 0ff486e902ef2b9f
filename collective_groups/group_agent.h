// GroupAgent: the shell around Member in a worker process. Turns commands, timers and the user's
// calls into events, and decisions into reports, communicator calls and wake-ups.
//
// Thread: OnCommand on the loop; everything else from any thread except the loop. One user thread
// at a time goes through Ready -> WaitActive -> collectives -> Boundary.
// Owns: the communicator, a link lane, a collective lane.
// Invariants: those of Member; collectives run in order of issue, each in the epoch it was issued
// in.
// Limits: kLaneQueueMax collectives in flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective_groups/communicator.h"
#include "collective_groups/member.h"
#include "runtime/blocking_lane.h"
#include "runtime/event_loop.h"

namespace troupe::groups {

struct ActiveView {
  View view;
  Topology topology;
  Duration pause{};
};

class GroupAgent {
 public:
  using Handle = uint64_t;
  using SendReportFn = std::function<void(const Report&)>;

  // `loop` must outlive the agent; Stop before the loop ends.
  GroupAgent(MemberOptions options, EventLoop* loop, std::unique_ptr<Communicator> communicator,
             SendReportFn send);
  ~GroupAgent();

  void OnCommand(const Command& command);
  // Releases every wait with kCancelled and stops the lanes.
  void Stop();

  // ---- membership ----
  // A founder has built nothing yet: it is taken into the group's first epoch only.
  void Ready(uint64_t version, bool has_state, bool founder = false);
  // kDeadlineExceeded, also for a founder that came too late (Running is true then); kDrained or
  // kFenced when this member must end; kCancelled after Stop.
  Result<ActiveView> WaitActive(Duration limit);
  // True: leave the epoch here (planned change or broken): unwind, Ready, WaitActive.
  Result<bool> Boundary();
  void SetVersion(uint64_t version);
  void Finish();
  // A founder learned that the group trains already: build first, then Ready.
  [[nodiscard]] bool Running() const;
  // The view the user's thread is in; epoch 0 outside.
  [[nodiscard]] ActiveView Current() const;
  [[nodiscard]] MemberState state() const;

  // ---- collectives (asynchronous; buffers must live until Wait) ----
  struct Segment {
    void* data = nullptr;
    size_t count = 0;
  };
  // In place, the segments as one fused message; then every element times `postscale` (prescale
  // before).
  Handle AllReduce(std::vector<Segment> segments, DataType type, ReduceOp op, double prescale,
                   double postscale);
  Handle Broadcast(void* data, size_t bytes, int root);
  Handle AllGather(const void* in, void* out, std::vector<size_t> bytes_per_rank);
  Handle Barrier();
  Handle Transfer(std::vector<int> chain, std::vector<MutableBuffer> buffers);
  // kEpochChanged if the epoch ended under it; kInvalidArgument, on every rank, if the ranks called
  // collectives that do not match (the message names both sides); kDeadlineExceeded leaves it
  // running; kNotFound for a handle that was waited for before. The value is the number of state
  // bytes sent (Transfer), else 0.
  Result<uint64_t> Wait(Handle handle, Duration limit);
  // True if done (or unknown).
  [[nodiscard]] bool Poll(Handle handle) const;

 private:
  struct Operation {
    bool done = false;
    Status status;
    uint64_t value = 0;
  };
  // What the ranks of an operation must agree on, and how people call it.
  struct Agreement {
    uint64_t signature = 0;  // 0: unknown, never compared.
    std::string operation;   // Empty: made of the name and the number of bytes.
    bool whole_view = true;  // False: only some ranks take part; it has no place in the sequence.
  };
  using Body = std::function<Result<uint64_t>(Communicator&)>;

  void Feed(const MemberEvent& event);
  void FeedLocked(const MemberEvent& event);
  void Act(const MemberAction& action);
  void DoLink(const LinkEpoch& link);
  void ArmTick();
  Handle Submit(const char* what, size_t bytes, Body body, Agreement agreement = {0, "", true});
  [[nodiscard]] Error EndedEarly(Epoch epoch, Error error) const;
  void TraceCollective(const char* what, size_t bytes, Epoch epoch, Time begin);

  const MemberOptions options_;
  EventLoop* const loop_;
  const SteadyClock clock_;
  const SendReportFn send_;
  const std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<std::atomic<bool>> running_ = std::make_shared<std::atomic<bool>>(true);

  // Guarded by mu_.
  mutable std::mutex mu_;
  std::condition_variable changed_;
  Member core_;
  bool stopped_ = false;
  bool active_fresh_ = false;          // Activated and not yet seen by WaitActive.
  ActiveView active_;                  // Of the epoch the user's thread is in.
  Time activated_at_ = Time::Never();  // Never: a collective of the epoch has ended since.
  bool in_epoch_ = false;
  bool too_late_ = false;
  bool boundary_answered_ = false;
  bool boundary_stop_ = false;
  ExpelKind expelled_ = ExpelKind::kNone;
  std::string expel_reason_;
  uint64_t next_sequence_ = 1;  // Of the next operation of the whole view in this epoch.
  Epoch failed_epoch_ = 0;      // Its operations end with fail_reason_.
  std::string fail_reason_;
  std::map<Handle, std::shared_ptr<Operation>> operations_;
  Handle next_handle_ = 1;

  BlockingLane links_;
  BlockingLane collectives_;
};

}  // namespace troupe::groups
