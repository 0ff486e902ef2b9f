// Coordinator: decides the epochs of one group. A pure state machine.
//
//   Forming    --enough ready------------> Persisting
//   Persisting --stored--> Preparing --all prepared--> Linking --all linked--> Active
//   Active     --death, broken link------> Persisting (at once; survivors abort)
//   Active     --joiner, drain-----------> Planning
//   Planning   --all accept a boundary---> Persisting (planned; nobody aborts)
//   any        --fewer than min_members--> Parked --enough again--> Persisting
//   a record   --> Recovering --heard from the members--> Active or Persisting
//   Active     --every member finished---> Ending --stored--> Ended
//
// Thread: owner only. Never blocks, reads no clock, logs nothing; same inputs give same outputs.
// Owns: the group's membership. Durable part: EpochRecord.
// Invariants: GM-1 epochs only grow. GM-2 at most one member list per epoch. GM-3 nobody is active
// in an epoch before all its members were prepared, nor before all were linked if links had to be
// made; where there are none to make they go with Install. GM-5 after the last fault all live
// members reach one active epoch.
// GM-6 below min_members the group parks with a reason. GM-7 an epoch is stored before its first
// message leaves.
// GM-10 a member that stalls a collective is reported, then evicted. No other member is.
// GM-11 collectives that do not match fail on every member, with the same reason.
// GM-13 a group that trains is not stopped by a member that cannot be connected: a joiner is
// admitted only when it is linked, and of members that cannot reach each other one is left out
// (PairFaults). The same list of members is proposed again only after a growing delay.
// GM-14 only a member of the epoch can finish the group.
// GM-16 a tick leaves no deadline behind that has passed: nothing wakes the coordinator in a loop.
// GM-12 while no member is heard none is evicted before silent_lease, and when one is heard again
// the others are given the time that nobody was, up to silent_lease after their own last word: the
// last holders of the state are not given up because the coordinator was cut off. Nor is a member
// whose state nobody who is heard holds before silent_lease: its end would be that of the training.
// GM-17 a drain takes no member away that the others need: while those who stay lack the state, or
// are fewer than min_members, the eldest of those asked to leave go on with them. Whoever asked
// bounds the time.
// Limits: kGroupMembersMax members; every phase has a deadline in Options.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "collective_groups/membership/messages.h"
#include "collective_groups/membership/pair_faults.h"
#include "runtime/clock.h"
#include "runtime/error.h"

namespace troupe::groups {

struct CoordinatorOptions {
  std::string group;
  std::string keys = {};  // What its keys in the store are named by; empty: its own name.
  std::string owner;      // Unique per coordinator incarnation.
  uint64_t term = 1;      // Grows with every coordinator start (a counter in the store).
  // Actors in the order of their ranks; empty: the oldest member comes first.
  std::vector<std::string> order = {};
  uint32_t min_members = 1;
  uint32_t start_members = 1;              // Form the first epoch as soon as this many are ready...
  Duration form_timeout = seconds(30);     // ...or with at least min_members after this time.
  Duration lease = seconds(2);             // Silence after which a member is evicted.
  Duration silent_lease = seconds(10);     // The same in the cases of GM-12.
  Duration prepare_timeout = seconds(60);  // A member must come out of its step in this time.
  Duration link_timeout = seconds(5);
  Duration plan_timeout = seconds(2);  // Replies to a plan.
  Duration error_grace =
      milliseconds(5);  // Between a broken link and a new epoch: the death report may follow.
  Duration prelink_timeout = seconds(3);  // Then the joiner has to wait, for longer each time:
  Duration absence_min = milliseconds(250);
  Duration absence_max = seconds(30);
  // Before the same list of members is proposed for the third time, and at most for later ones.
  Duration proposal_delay_min = milliseconds(20);
  Duration proposal_delay_max = seconds(1);
  // Members are all blocked in one collective and no byte moves between hosts: they reconnect.
  Duration frozen_after = seconds(10);
  // Members wait in a collective for one whose function has returned: they go on without it.
  Duration finish_grace = seconds(1);
  Duration store_retry = milliseconds(50);
  Duration repeat = milliseconds(100);  // Outstanding commands are repeated this often.
  Duration recover_grace =
      seconds(2);  // After a restart: how long to wait for members to be heard.
  Duration park_timeout =
      seconds(600);  // Elastic timeout: parked (or forming) longer than this fails the group.
  uint64_t plan_margin = 2;  // Boundaries between the newest known one and the planned one.
  // Members that are in the same collective with different signatures: for this long, or in two
  // reports each.
  Duration mismatch_grace = milliseconds(300);
  // If all of them compare it themselves: for this long. They know better and tell the same, so
  // that only what has gone wrong with that is left to the coordinator.
  Duration compare_grace = seconds(10);
  // Members that wait in a collective for others: after this it is told, and told again.
  Duration stall_report_after = seconds(30);
  Duration stall_remove_after = seconds(600);  // Then the missing are evicted. 0: never.
};

// ---- events ----
struct ReportReceived {
  Report report;
};
struct MemberDied {
  MemberId id;
  std::string reason;
};  // From the node daemon.
struct DrainRequested {
  MemberId id;
  std::string reason;
};
struct LimitsChanged {
  uint32_t min_members = 1;
};
// Members hold a state and come out of their steps themselves.
struct TrainingBegins {
  uint32_t start_members = 1;  // As in CoordinatorOptions, from now on.
  Duration form_timeout{};
  Duration prepare_timeout{};
};
struct OrderChanged {
  std::vector<std::string> order;  // As in CoordinatorOptions; from the next epoch on.
};
struct StoreAnswered {
  uint64_t request = 0;
  ErrorCode code = ErrorCode::kOk;  // kOk, kConflict, or anything else: not known to have happened.
  std::optional<EpochRecord> actual;  // After kConflict: what the store holds.
};
// The coordinator itself was stopped for so long (its process, or the machine): what it has not
// heard meanwhile says nothing about the members.
struct Resumed {
  Duration stopped{};
};
struct Tick {};
using CoordinatorEvent = std::variant<ReportReceived, MemberDied, DrainRequested, LimitsChanged,
                                      TrainingBegins, OrderChanged, StoreAnswered, Resumed, Tick>;

// ---- actions ----
struct SendCommand {
  MemberId to;
  Command command;
};
struct PersistRecord {  // Answer with StoreAnswered{request}.
  uint64_t request = 0;
  EpochRecord record;
  std::optional<EpochRecord> expected;  // Compare-and-set against this; nullopt: must be absent.
};
struct FenceMember {
  MemberId id;
  std::string reason;
};  // The node must end this incarnation.
// Why an epoch came, for those who count.
enum class EpochCause : uint8_t {
  kFormed,
  kResumed,
  kDeath,
  kSilence,
  kDeadline,
  kLostPeer,
  kFinish,
  kJoin,
  kDrain,
  kRestart,
  kMismatch,
  kStall
};
[[nodiscard]] const char* EpochCauseName(EpochCause cause);
struct EpochActivated {
  View view;
  EpochCause cause = EpochCause::kFormed;
  int old_size = 0;
  Duration took{};  // From the cause to Activate.
  bool planned = false;
  bool known = false;  // It was active before: the coordinator was restarted, its members were not.
};
// Some members wait in a collective for others that do not come.
struct GroupStalled {
  View view;
  std::vector<int> missing;  // Ranks that have not come to it,
  std::vector<int> waiting;  // and those that are in it.
  std::string operation;     // Theirs.
  Duration lasted{};
  bool removed = false;  // Those missing are evicted now.
  std::string reason;    // For people: all of this, and what is done about it.
};
// A member, or one that wants to be, is left out because it cannot reach others.
struct GroupUnreachable {
  MemberId id;
  std::vector<MemberId> peers;  // That it could not reach, or that could not reach it.
  Duration retry_in{};
  std::string reason;
};
struct GroupParked {
  std::string reason;
};
struct GroupFailed {
  std::string reason;
};
struct GroupEnded {};  // Every member finished.
struct Deposed {};     // Another coordinator owns the record; stop.
using CoordinatorAction =
    std::variant<SendCommand, PersistRecord, FenceMember, EpochActivated, GroupStalled,
                 GroupUnreachable, GroupParked, GroupFailed, GroupEnded, Deposed>;

struct CoordinatorDecision {
  std::vector<CoordinatorAction> actions;
  std::string reason;  // Why, for people; empty if nothing was decided.
};

enum class GroupPhase : uint8_t {
  kForming,
  kRecovering,
  kPersisting,
  kPreparing,
  kLinking,
  kActive,
  kPlanning,
  kParked,
  kEnding,
  kEnded,
  kFailed
};
[[nodiscard]] const char* GroupPhaseName(GroupPhase phase);

class Coordinator {
 public:
  // With a record: continue a group whose coordinator went away.
  Coordinator(CoordinatorOptions options, std::optional<EpochRecord> record, Time now);

  CoordinatorDecision Step(Time now, const CoordinatorEvent& event);
  // When Step(Tick) is next worth calling.
  [[nodiscard]] Time NextDeadline() const;

  [[nodiscard]] GroupPhase phase() const { return phase_; }
  // As they are by now, for a coordinator that takes the place of this one.
  [[nodiscard]] const CoordinatorOptions& options() const { return options_; }
  [[nodiscard]] const View& view() const {
    return current_;
  }  // The last active view; epoch 0: none yet.
  // What the store holds, as far as is known.
  [[nodiscard]] const std::optional<EpochRecord>& record() const { return stored_; }
  [[nodiscard]] const std::string& waiting_for() const { return waiting_for_; }
  // Live members in or outside the view, with their last report.
  [[nodiscard]] std::vector<Report> members() const;
  [[nodiscard]] bool IsDraining(const MemberId& id) const;

 private:
  struct Peer {
    Report report;
    uint64_t seniority = 0;
    std::optional<uint32_t> slot;
    Time heard{};  // Its last report, and later by the time that nobody could be heard.
    Time said{};   // Its last report.
    Time ready_since = Time::Never();
    bool draining = false;
    uint64_t arrival = 0;  // Order of first report, for seniority among joiners.
    uint64_t prelink_attempt = 0;
    Time prelink_deadline = Time::Never();
    Time absent_until{};  // Left out until then, because it could not be connected,
    int absences = 0;     // so many times since it was in an active epoch.
    // Where its reports show it among the collectives: since when, until when, in how many.
    Epoch at_epoch = 0;
    uint64_t at = 0;       // The last one it began.
    bool blocked = false;  // It is in that one, or in one of only some ranks.
    bool waits = false;    // It is in that one.
    Time at_since{};
    Time at_until{};
    int at_reports = 0;
    uint64_t moved = 0;  // As it says, and when that changed last.
    Time moved_at{};
    bool has_joined = false;
    Time joined_at{};
    Epoch eager_epoch = 0;  // It was told to tell at once in this epoch.
  };
  // What holds the others up, by rank in the current view.
  struct Stall {
    uint64_t sequence = 0;
    std::vector<int> missing;
    std::vector<int> waiting;
    Duration lasted{};
    bool busy = false;  // Who is missing does something with some of the others, and may end it.
  };
  using Link = std::pair<uint32_t, uint32_t>;  // Slots, smaller first.

  void OnReport(const Report& report);
  void NoteOperation(Peer& peer);
  void OnStore(const StoreAnswered& answer);
  [[nodiscard]] uint64_t FirstOfTerm(uint64_t term) const;
  void ExceedPlan(uint64_t seen);
  void Retry();
  void OnResumed(Duration stopped);
  void OnTraining(const TrainingBegins& training);
  [[nodiscard]] Duration Unheard() const;
  [[nodiscard]] bool HoldsLastState(const MemberId& id) const;
  [[nodiscard]] MemberId LateToLink(const MemberId& youngest) const;
  void EvictSilent();
  void OnTick();
  void Reconsider();
  void ReconsiderForming();
  [[nodiscard]] bool AwaitUnwinding();
  void ReconsiderRecovering();
  void ReconsiderProgress();  // Preparing, Linking.
  [[nodiscard]] std::optional<MemberId> ReturnedInMidChange() const;
  // Of an epoch whose members go at once: it has gone already.
  [[nodiscard]] bool HasBegun(const Report& report) const;
  void ReconsiderActive();
  void ReconsiderPlanning();
  void WithdrawPlan();
  // True if it decided something.
  [[nodiscard]] bool ReconsiderOperations();
  [[nodiscard]] std::string FindMismatch() const;  // Empty: none.
  [[nodiscard]] Progress OperationAt(uint64_t sequence) const;
  std::string AssistJoined();             // Why that is not possible; else empty.
  [[nodiscard]] Stall FindStall() const;  // None missing: no stall.
  // Whether it decided something: a group that cannot move bytes reconnects.
  [[nodiscard]] bool ReconsiderFrozen();
  // The same: who waits for a member that has finished goes on without it.
  [[nodiscard]] bool ReconsiderFinished();
  void FailEpoch(const std::string& reason);
  void RemoveStalled(const std::vector<int>& ranks, const std::string& operation);

  // Its cause has been noted.
  void Propose(const std::string& reason, bool planned, std::vector<MemberId> members);
  void SortByRank(std::vector<MemberId>& members) const;
  // Bounds how often the same list is proposed (GM-13); zero: now.
  [[nodiscard]] Duration DelayBeforeEpoch(const std::vector<MemberId>& members);
  void Persist();
  void PersistEnd();
  void BeginPreparing();
  void KeepCleanLinks();
  void BeginLinking();
  void BeginActive();
  void BeginPlanning(const std::string& reason);
  void StartPlanRound();
  void Park(const std::string& reason);
  void End(GroupPhase phase);
  void Prelink(const MemberId& id, Peer& joiner);
  void ForwardPrelinks(const MemberId& from);
  void SendPrelink(const MemberId& to, const Peer& receiver, const Peer& joiner);
  void SendCancelPrelink(const MemberId& to, uint32_t slot, uint64_t attempt);
  void CancelStalePrelinks();
  // ---- drains (GM-17): coordinator_drains.cpp ----
  [[nodiscard]] std::vector<MemberId> WithNeeded(
      std::vector<MemberId> staying, std::vector<MemberId> leaving,
      const std::function<bool(const MemberId&)>& holds) const;
  // The current members and warm joiners once those have left who can.
  [[nodiscard]] std::vector<MemberId> AfterDrain() const;
  [[nodiscard]] bool SomeoneLeaves(const std::vector<MemberId>& members) const;
  [[nodiscard]] std::vector<MemberId> ReadyToForm(bool unwinding);
  void ReleaseDrained();
  // ---- who cannot reach whom: coordinator_absence.cpp ----
  void NoteUnreachable();
  [[nodiscard]] std::vector<MemberId> LeaveOutUnreachable(std::vector<MemberId> members);
  void LeaveOut(const MemberId& id, const std::vector<MemberId>& peers);
  void LeaveOutColdJoiner(const MemberId& id);
  void HaltAbsent();
  [[nodiscard]] bool IsAbsent(const Peer& peer) const { return now_ < peer.absent_until; }
  [[nodiscard]] bool WasMember(const Report& report) const;
  [[nodiscard]] Command MakeHalt(const std::string& reason) const;
  void Expel(const MemberId& id, ExpelKind kind, const std::string& reason);

  void Send(const MemberId& to, Command command);
  void SendPrepare(const MemberId& to);
  void SendInstall(const MemberId& to);
  void SendActivate(const MemberId& to);
  void SendPlan(const MemberId& to);
  void SendFail(const MemberId& to);
  void SendAssist(const MemberId& to, const Progress& progress);
  void SendLeave(const MemberId& to);
  void SendBuildFirst(const MemberId& to);
  void RepeatOutstanding();
  [[nodiscard]] std::vector<MemberId> Survivors()
      const;  // Live, unfinished members of the current and next view.
  [[nodiscard]] std::vector<MemberId> ReadyOutside() const;
  // Ready to take part, if need be with what is built already: a founder only before the first
  // epoch.
  [[nodiscard]] bool MayEnter(const Peer& peer) const;
  [[nodiscard]] bool IsLateFounder(const Peer& peer) const;
  [[nodiscard]] std::vector<MemberId> Joiners() const;     // May enter, outside the current view.
  [[nodiscard]] std::vector<MemberId> Candidates() const;  // All that may enter.
  [[nodiscard]] std::vector<MemberId> MissingFrom(MemberState wanted) const;
  [[nodiscard]] bool IsPrelinked(const Peer& a, const Peer& b) const;
  [[nodiscard]] bool IsWarm(const Peer& joiner) const;
  [[nodiscard]] bool InCurrent(const MemberId& id) const { return RankOf(current_, id) >= 0; }
  [[nodiscard]] bool InNext(const MemberId& id) const { return RankOf(next_, id) >= 0; }
  [[nodiscard]] bool EndIfFinished();
  // A member has finished: the others end their last steps, and nobody joins any more.
  [[nodiscard]] bool Finishing() const { return finishing_ || !finished_.empty(); }
  [[nodiscard]] uint32_t MinMembers() const;
  void Evict(const MemberId& id, EpochCause cause, const std::string& reason);
  void NoteCause(EpochCause cause, const std::string& reason);
  void AssignSlot(Peer& peer);
  static Link MakeLink(uint32_t a, uint32_t b) { return a < b ? Link{a, b} : Link{b, a}; }

  // Constant after construction.
  CoordinatorOptions options_;

  // State of the machine.
  Time now_{};
  GroupPhase phase_ = GroupPhase::kForming;
  Time phase_deadline_ = Time::Never();
  Time next_repeat_ = Time::Never();
  std::map<MemberId, Peer> peers_;
  Time last_heard_{};  // Anybody.
  // Incarnations that are out for good, and how: who has not got the word gets the same again.
  std::map<MemberId, ExpelKind> gone_;
  std::set<MemberId> finished_;        // Their function returned.
  bool finishing_ = false;             // The record said so once, whatever the store holds now.
  std::optional<EpochRecord> stored_;  // As far as we know.
  View current_;                       // Last active.
  View next_;                          // Being formed.
  bool next_planned_ = false;
  bool interrupted_ = false;  // The current epoch was aborted: its links are not trusted.
  std::set<Link> links_;      // Links that are up and clean.
  bool at_once_ = false;      // kLinking: there was nothing to link, so members are active already.
  uint64_t next_seniority_ = 1;
  uint64_t next_arrival_ = 1;
  Epoch last_epoch_ = 0;  // Highest epoch number ever proposed.
  uint64_t request_ = 0;  // Of the outstanding store request.
  Time store_retry_at_ = Time::Never();
  Time broken_since_ = Time::Never();
  uint64_t plan_ = 0;
  uint64_t plan_boundary_ = 0;
  uint64_t plan_round_ = 0;
  uint64_t prelink_attempt_ = 0;
  PairFaults faults_;
  std::vector<MemberId> proposed_;   // The last list proposed,
  int proposals_ = 0;                // so many times in a row
  Time settled_at_ = Time::Never();  // and, if it became active, when.
  bool deposed_ = false;
  int conflicts_ = 0;              // Of the store, in a row.
  Time cause_at_ = Time::Never();  // When the reason for the coming epoch was first seen.
  std::string cause_;
  EpochCause cause_kind_ = EpochCause::kFormed;
  Time parked_since_ = Time::Never();
  Time unwinding_since_ = Time::Never();  // Parked or forming: members must come out of a step.
  Epoch failed_epoch_ = 0;  // Its collectives do not match; why, by name of both sides.
  std::string verdict_;
  Time stall_told_at_ = Time::Never();  // Last.
  std::string waiting_for_;
  CoordinatorDecision out_;
};

}  // namespace troupe::groups
