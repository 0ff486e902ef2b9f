// Member: one incarnation's side of the group protocol. A pure state machine.
//
//   Idle --user ready--> Ready --Prepare--> Prepared --Install, linked--> Linked
//   Linked --Activate, or at once if nobody had to link--> Active
//   Active --Prepare at once, broken link, Halt--> Leaving --user ready--> Ready or Prepared
//   Active --planned: boundary reached-----------> Leaving --user ready--> Prepared
//
// The user's thread is either inside an epoch (Active, Leaving) or parked in WaitActive (Ready,
// Prepared, Linked). Prepared means that it is out of every older epoch, so a member's version
// cannot change behind the view's back.
// Thread: owner only. Never blocks, reads no clock; same inputs give same outputs.
// Invariants: GM-1 (never enters an older epoch), GM-3 (Active only after Install or Activate of
// the epoch it is Linked in), GM-4 (an epoch it left is aborted before anything of a later one
// starts), GM-11 (an epoch that failed by a verdict is not left before its operations have failed).
// Limits: MemberOptions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "collective_groups/membership/messages.h"
#include "runtime/clock.h"

namespace troupe::groups {

struct MemberOptions {
  MemberId id;
  std::string host;
  std::string memory;                 // See ViewMember.
  Duration beat = milliseconds(100);  // A report at least this often.
  Duration boundary_wait =
      milliseconds(500);  // At a planned boundary, for the word to stop; then training goes on.
  // A collective that takes longer is reported without waiting for the beat.
  Duration slow_operation = milliseconds(200);
};

// ---- events ----
struct UserReady {
  uint64_t version = 0;
  bool has_state = false;
  // It has nothing built yet: for the group's first epoch only.
  bool founder = false;
};                       // The user's thread parks.
struct UserBoundary {};  // Answered by BoundaryAnswer.
struct UserVersion {
  uint64_t version = 0;
};
struct UserFinished {};
struct CommunicatorBroke {
  Epoch epoch = 0;
  std::string problem;
};
struct OffersMade {
  Epoch epoch = 0;
  std::vector<LinkOffer> offers;
  std::string problem;
};
struct EpochLinked {
  Epoch epoch = 0;
  std::string problem;
  std::vector<uint32_t> unreachable = {};  // Slots of the peers that could not be connected to.
};                                         // Empty problem: success.
struct PrelinkOffered {
  uint32_t slot = 0;
  uint64_t attempt = 0;
  std::string address;
};  // Empty address: failed.
struct PrelinkDone {
  uint32_t slot = 0;
  uint64_t attempt = 0;
  bool ok = false;
};
struct CommandReceived {
  Command command;
};
// Around every collective; cheap, because neither makes a report.
struct OperationBegan {
  Epoch epoch = 0;
  Progress progress;
};
struct OperationEnded {
  Epoch epoch = 0;
  uint64_t sequence = 0;
};
struct MemberTick {};
using MemberEvent =
    std::variant<UserReady, UserBoundary, UserVersion, UserFinished, CommunicatorBroke, OffersMade,
                 EpochLinked, PrelinkOffered, PrelinkDone, CommandReceived, OperationBegan,
                 OperationEnded, MemberTick>;

// ---- actions ----
struct SendReport {
  Report report;
};
struct AbortEpoch {
  Epoch epoch = 0;
};  // Release every blocked collective of it.
// A peer to be linked to.
struct LinkPeer {
  uint32_t slot = 0;
  std::string memory;
};
struct MakeOffers {
  Epoch epoch = 0;
  uint32_t my_slot = 0;
  std::vector<LinkPeer> peers;
};  // -> OffersMade
struct LinkEpoch {
  View view;
  std::vector<LinkOffer> offers;
};  // -> EpochLinked
struct MakePrelink {
  uint32_t my_slot = 0;
  LinkPeer peer;
  uint64_t attempt = 0;
};  // -> PrelinkOffered
struct LinkAhead {
  uint32_t slot = 0;
  uint64_t attempt = 0;
  std::string address;
};  // -> PrelinkDone
struct CancelPrelink {
  uint32_t slot = 0;
};  // Nobody will be at the other end: release the link lane.
// Every operation of the epoch, running or not begun, ends as kMismatch with this reason.
struct FailOperations {
  Epoch epoch = 0;
  std::string reason;
};
struct Assist {
  Progress progress;
};  // Take part in this without a share.
struct Activated {
  View view;
  Duration pause{};
};                         // The user's thread goes on in this epoch.
struct TooLateToFound {};  // Answers a founder's UserReady: unpark, build, be ready again.
struct BoundaryAnswer {
  bool stop = false;
};
struct Expelled {
  ExpelKind kind = ExpelKind::kNone;
  std::string reason;
};
using MemberAction = std::variant<SendReport, AbortEpoch, MakeOffers, LinkEpoch, MakePrelink,
                                  LinkAhead, CancelPrelink, FailOperations, Assist, Activated,
                                  TooLateToFound, BoundaryAnswer, Expelled>;

class Member {
 public:
  Member(MemberOptions options, Time now);

  std::vector<MemberAction> Step(Time now, const MemberEvent& event);
  [[nodiscard]] Time NextDeadline() const;

  [[nodiscard]] MemberState state() const { return state_; }
  [[nodiscard]] Epoch epoch() const { return epoch_; }
  [[nodiscard]] const View& view() const { return view_; }  // Of `epoch` once Linked.
  [[nodiscard]] bool expelled() const { return expelled_; }
  // The next boundary is the planned one: who does nothing may pass it at once.
  [[nodiscard]] bool before_plan() const {
    return state_ == MemberState::kActive && !broken_ && plan_accepted_ && !waiting_ &&
           plan_boundary_ == boundary_ + 1;
  }

 private:
  struct PrelinkState {
    uint64_t attempt = 0;
    std::string mine;    // Our offer; empty until made.
    std::string theirs;  // Empty until received.
    bool linking = false;
    bool linked = false;
  };

  void OnUserReady(const UserReady& e);
  void OnUserBoundary();
  void OnCommand(const Command& command);
  void OnInstall(const Command& command);
  void OnActivate(const Command& command);
  void OnOffersMade(const OffersMade& e);
  void Activate();
  void Abort();
  void OnPlan(const Command& command);
  void OnPrepare(const Command& command);
  void OnHalt(const Command& command);
  void OnLeave(const Command& command);
  void OnPrelink(const Command& command);
  void OnCancelPrelink(const Command& command);
  void OnAssist(const Command& command);
  void OnFail(Epoch epoch, const std::string& reason);
  void OnOperation(const OperationBegan& e);
  void OnExpel(const Command& command);
  void OnBuildFirst();
  void OnTick();
  void LeaveAtOnce();
  void StopAtBoundary();
  void StartOffers();
  void TryLinkAhead(uint32_t slot, PrelinkState& state);
  void AnswerBoundary(bool stop);
  void SendNow();

  MemberOptions options_;
  Time now_{};
  MemberState state_ = MemberState::kIdle;
  bool parked_ = false;  // The user's thread waits in WaitActive.
  Epoch epoch_ = 0;
  Epoch newest_ = 0;
  View view_;
  uint64_t version_ = 0;
  bool has_state_ = false;
  bool founder_ = false;
  bool broken_ = false;
  std::string problem_;
  std::vector<uint32_t> unreachable_;  // Of the epoch that could not be linked.
  uint64_t boundary_ = 0;
  uint64_t plan_ = 0;
  uint64_t plan_boundary_ = 0;
  bool plan_accepted_ = false;
  bool stop_confirmed_ = false;  // kPrepare or kLeave of the accepted plan arrived.
  bool waiting_ = false;         // The user's thread waits at the planned boundary.
  Time wait_deadline_ = Time::Never();
  std::optional<Command> prepare_;  // Newest epoch we were told to prepare for.
  Epoch offering_ = 0;              // Offers for this epoch are being made.
  bool linking_ = false;
  bool at_once_ = false;  // Active as soon as it is linked.
  bool aborted_ = false;  // The epoch was cut short here: its links may hold half an operation.
  std::vector<LinkOffer> offers_;
  std::map<uint32_t, PrelinkState> prelinks_;
  Progress progress_;
  bool blocked_ = false;          // The collective of progress_ still runs.
  Time slow_at_ = Time::Never();  // When to report that it takes long.
  bool eager_ = false;            // Somebody has joined: report every collective at once.
  std::vector<Progress> recent_;  // The last kRecentMax before progress_.
  Time left_at_ = Time::Never();
  Duration pause_{};
  Epoch failed_ = 0;  // Its operations were failed by a verdict.
  bool expelled_ = false;
  uint64_t sequence_ = 0;
  Time next_beat_{};
  std::vector<MemberAction> out_;
};

}  // namespace troupe::groups
