// GroupAgent: the shell around Member in a worker process. Turns commands, timers and the user's
// calls into events, and decisions into reports, communicator calls and wake-ups.
//
// Thread: OnCommand on the loop; everything else from any thread except the loop. One user thread
// goes through Ready -> WaitActive -> collectives -> Boundary. Owns: the communicator, two lanes.
// Invariants: those of Member; collectives run in order of issue, each in its epoch.
// Limits: kLaneQueueMax collectives in flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/membership/member.h"
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
  // Another membership of the same actor; may block.
  using RejoinFn = std::function<Result<MemberId>()>;

  // `loop` must outlive the agent; Stop before the loop ends. With `rejoin` a member that is out of
  // the group asks for another membership when it is ready again.
  GroupAgent(MemberOptions options, EventLoop* loop, std::unique_ptr<Communicator> communicator,
             SendReportFn send, RejoinFn rejoin = nullptr);
  ~GroupAgent();

  void OnCommand(const Command& command);
  // Releases every wait with kCancelled and stops the lanes.
  void Stop();

  // ---- membership ----
  // A founder has built nothing yet: it is taken into the group's first epoch only.
  void Ready(uint64_t version, bool has_state, bool founder = false);
  // kDeadlineExceeded, also for a founder that came too late (Running is true then); kDrained or
  // kFenced when this member must end; kCancelled after Stop. With `rejoin`: kUnavailable if it was
  // taken for dead and Ready is to follow, or the error that `rejoin` gave.
  Result<ActiveView> WaitActive(Duration limit);
  // True: leave the epoch here (planned change or broken): unwind, Ready, WaitActive.
  Result<bool> Boundary();
  void SetVersion(uint64_t version);
  void Finish();
  // For a thread that takes no part in collectives. kLeft: the epoch of the last view is over for
  // this member, at a boundary or not, so that Ready is to follow; also after Stop. kPlanned: the
  // next boundary is one to leave at; it may be passed at once, if nobody else is about to.
  enum class Turn : uint8_t { kNone, kPlanned, kLeft };
  [[nodiscard]] Turn WaitTurn(Duration limit);
  // Why this member is out of the group for good; ok while it is not.
  [[nodiscard]] Status out() const;
  // Ends the epoch for every member, because this one does not wait any longer.
  void GiveUp(const std::string& reason);
  // A founder learned that the group trains already: build first, then Ready.
  [[nodiscard]] bool Running() const;
  // The view the user's thread is in; epoch 0 outside.
  [[nodiscard]] ActiveView Current() const;
  [[nodiscard]] MemberState state() const;

  // ---- collectives (buffers must live until Wait) ----
  // See Communicator for what the operations do.
  struct Call {
    uint32_t team = 0;
    // What the ranks must agree on, such as `all-reduce "grad" float32[1024] sum`; empty: they do
    // not compare.
    std::string text;
    bool everyone = true;  // False: only some members of the team call it; it is not counted.
    bool joined = false;   // It is a Join.
    Device device{};       // Where all buffers are; from Mark, at the time of the call.
  };
  // See Communicator. What needs host memory always: Adasum, Transfer.
  [[nodiscard]] bool devices() const { return communicator_->devices(); }
  Result<Device> Mark(int index, void* stream) { return communicator_->Mark(index, stream); }
  Handle AllReduce(const Call& call, std::vector<ConstBuffer> in, std::vector<MutableBuffer> out,
                   const ReduceArguments& arguments);
  Handle ReduceScatter(const Call& call, const void* in, void* out, std::vector<size_t> counts,
                       const ReduceArguments& arguments);
  Handle Broadcast(const Call& call, void* data, size_t bytes, int root);
  Handle Exchange(const Call& call, std::vector<OutgoingBlock> outgoing,
                  std::vector<IncomingBlock> incoming);
  Handle AllGather(const Call& call, const void* in, void* out, std::vector<size_t> bytes_per_rank);
  // Combines vectors pairwise so that what they share counts once and what they do not adds up;
  // every entry of `tensors` by itself, in place.
  Handle Adasum(const Call& call, std::vector<MutableBuffer> tensors, DataType type);
  Handle Barrier(const Call& call);
  // Between this member and one other; see Communicator. The same text on both.
  Handle Send(const Call& call, const void* data, size_t bytes, int to);
  Handle Receive(const Call& call, void* data, size_t bytes, int from);
  Handle Transfer(std::vector<int> sources, std::vector<int> receivers,
                  std::vector<MutableBuffer> buffers);
  // Makes a team of these ranks of the present view, which all ranks do in the same order. It
  // follows its members into later epochs; without those that left. The value is its number.
  // `members_only`: none but these ranks, ascending, call it.
  Handle AddTeam(const std::vector<int>& ranks, bool members_only = false);
  // Forgets a team, in this member. From the next view on its number may be used again.
  void DropTeam(uint32_t id);
  // Out of data: takes part in the next collective of the others without a share. The value is 0
  // then, and Join must be called again; or, when all have joined, 1 + the rank that was last.
  Handle Join();
  [[nodiscard]] Team team(uint32_t id) const;  // In the present view; empty if unknown.
  // kEpochChanged if the epoch ended under it; kMismatch, on every rank, if the ranks called
  // collectives that do not match (the message names both sides); kDeadlineExceeded leaves it
  // running; kNotFound for a handle that was waited for before. The value is the number of state
  // bytes sent (Transfer), the team's number (AddTeam), else 0.
  Result<uint64_t> Wait(Handle handle, Duration limit);
  [[nodiscard]] bool Poll(Handle handle) const;  // True if done (or unknown).

 private:
  using Body = std::function<Result<uint64_t>(Communicator&, const Operation&)>;
  struct Pending;  // An operation from its issue until it was waited for.

  void Rejoin();
  void Feed(const MemberEvent& event);
  void FeedLocked(const MemberEvent& event);
  void Act(const MemberAction& action);
  void DoLink(const LinkEpoch& link);
  [[nodiscard]] std::vector<uint32_t> Unreachable(const std::vector<LinkOffer>& offers);
  void ArmTick();
  Handle Submit(const char* what, const Call& call, size_t bytes, Body body,
                const std::string& recipe = "");
  [[nodiscard]] Error EndedEarly(Epoch epoch, Error error) const;
  [[nodiscard]] bool Left() const;  // With mu_ held.
  void Run(Pending& pending);
  void TraceCollective(const Pending& pending, Time begin);
  [[nodiscard]] std::vector<Team> TeamsIn(const View& view) const;
  Result<uint64_t> TakePart(Communicator& communicator);
  Result<uint64_t> HighestTeam(Communicator& communicator, const Operation& operation,
                               const std::vector<int>& ranks);

  EventLoop* const loop_;
  const SteadyClock clock_;
  const SendReportFn send_;
  const RejoinFn rejoin_;
  const std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<std::atomic<bool>> running_ = std::make_shared<std::atomic<bool>>(true);

  // Guarded by mu_.
  mutable std::mutex mu_;
  std::condition_variable changed_;
  MemberOptions options_;
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
  Status rejoined_;             // Why it could not be.
  uint64_t next_sequence_ = 1;  // Of the next operation of the whole view in this epoch.
  std::set<uint64_t> agreed_;   // Signatures that all have called in this epoch.
  Epoch failed_epoch_ = 0;      // Its operations end with fail_reason_.
  Epoch aborted_epoch_ = 0;     // Up to here.
  std::optional<Progress> assist_;
  std::string fail_reason_;
  std::map<Handle, std::shared_ptr<Pending>> operations_;
  const Pending* at_ = nullptr;  // The one that runs.
  Handle next_handle_ = 1;
  std::vector<std::vector<MemberId>> teams_;  // Team 1 and later.

  BlockingLane links_;
  BlockingLane collectives_;
};

}  // namespace troupe::groups
