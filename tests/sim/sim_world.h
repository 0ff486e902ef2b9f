// What the parts of the group simulation share: network, store, collectives and the checkers.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/membership/ledger.h"
#include "collective_groups/membership/messages.h"
#include "runtime/loopback_transport.h"
#include "tests/sim/group_sim.h"

namespace troupe::groups::sim {

inline constexpr uint64_t kSteps = 150;  // Until the data are used up,
inline constexpr uint64_t kBatch = 8;    // in batches that the ranks of any view share.
inline constexpr const char* kHead = "head";
inline constexpr uint8_t kReportFrame = 1;
inline constexpr uint8_t kCommandFrame = 2;
inline constexpr Duration kLease = milliseconds(600);
inline constexpr Duration kSilentLease = seconds(3);
inline constexpr Duration kStallReport = milliseconds(300);
inline constexpr Duration kStallRemove = milliseconds(1500);
inline constexpr Duration kFrozenAfter = milliseconds(700);
inline constexpr Duration kTcpSilence = milliseconds(300);  // Then a cut route breaks connections.
inline constexpr Duration kConnectLimit = milliseconds(200);
inline constexpr int kEpochsPerSecondMax = 25;       // Once only lasting faults are left,
inline constexpr int kEpochsPerSecondFaults = 40;    // and before.
inline constexpr Duration kStallSlack = seconds(6);  // With no other fault, all is noticed by then,
inline constexpr Duration kLeaveSlack = milliseconds(300);  // or that one was asked to leave,
inline constexpr Duration kReturnSlack = seconds(2);        // or that a member has returned.

class SimMember;
class SimHead;

// What a member has committed: how far it is, what it has computed, which samples that took.
struct SimState {
  uint64_t version = 0;
  uint64_t hash = 0;
  bool has_state = false;
  SampleLedger ledger{kSteps * kBatch};
  std::vector<uint8_t> counts = std::vector<uint8_t>(kSteps * kBatch);
};

// The store: one record that survives the coordinator, answered late, sometimes not at all.
struct SimStore {
  std::optional<EpochRecord> record;
  std::vector<EpochRecord> history;
  Epoch newest = 0;  // Ever stored.
  bool available = true;
};

// Who has entered which step of an epoch, with what. A step is done for a member once everybody of
// the view has entered it with the same signature.
struct SimEntry {
  uint64_t step = 0;
  uint64_t signature = 0;
  SampleLedger::Share share;
};

class World {
 public:
  explicit World(const SimOptions& options);
  ~World();

  SimResult Run();

  // ---- used by the parts ----
  [[nodiscard]] Time Now() const { return network_.Now(); }
  double Uniform() { return std::uniform_real_distribution<>(0, 1)(random_); }
  Duration Between(Duration a, Duration b) {
    return a + Duration(static_cast<int64_t>(Uniform() * static_cast<double>((b - a).count())));
  }
  [[nodiscard]] bool Sabotaged(Sabotage how) const { return options_.sabotage == how; }
  EventLoop& loop() { return loop_->loop(); }
  void Fail(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }
  void Fence(const MemberId& id);
  // Whether bytes get from one to the other and back; those of one memory need no route.
  [[nodiscard]] bool Reachable(const MemberId& a, const MemberId& b) const;
  void EnterStep(SimMember& member, Epoch epoch, const View& view, const SimEntry& entry);
  // Who has aborted an epoch completes nothing in it any more, and nobody with it.
  void LeaveSteps(const MemberId& id, Epoch epoch) { entered_[epoch].erase(id); }
  void Sync(SimMember& member, const View& view);
  [[nodiscard]] SimMember* Find(const MemberId& id) const;
  [[nodiscard]] bool AnyHangs() const;
  // The head, if it is the only one that runs.
  [[nodiscard]] SimHead* OnlyHead() const;

  // ---- checkers: sim_checks.cpp ----
  void CheckMemberList(Epoch epoch, const View& view, const char* where);
  void CheckActivated(const SimMember& member, const View& view);
  void CheckSent(const Command& command);
  void CheckSynced(const SimMember& member, const View& view);
  void CheckLedger(const SimMember& member);
  void CheckStall(const View& view, const std::vector<int>& missing);
  void CheckVerdict(Epoch epoch);
  void CheckNoticed();  // That no fault of a member lasts for ever.
  void CheckLeaving();
  void CheckReturned(const SimMember& member, const std::vector<MemberId>& view);
  void ForgetEpochs(Epoch from);  // Their numbers are used again.
  void CheckStored(const EpochRecord& record);
  void CheckSides();  // Who has gone on after a cut.

  const SimOptions options_;
  LoopbackNetwork network_;
  std::unique_ptr<Transport> loop_;
  std::mt19937_64 random_;
  SimStore store_;
  std::map<MemberId, std::unique_ptr<SimMember>> members_;
  std::vector<std::unique_ptr<SimHead>> heads_;  // The last is current; older ones may still run.
  std::unique_ptr<Transport> head_transport_;
  std::set<std::pair<MemberId, Epoch>> prepared_;
  std::map<Epoch, SimHead*> verdicts_;  // Who told them.
  std::map<Epoch, Time> mismatched_;    // Epochs with a step that was called differently.
  // The same, also where who called it first had left: its report may still be on its way.
  std::map<std::pair<Epoch, uint64_t>, std::set<uint64_t>> called_;  // Signatures, by step.
  std::vector<SimState> committed_;  // The newest ones, oldest first: what joiners may carry.
  SimResult result_;
  int next_term_ = 1;
  bool any_finished_ = false;
  bool cut_is_silent_ = false;  // The kernel does not notice: only the missing bytes tell.
  Time calm_{};                 // Then no communicator breaks any more by itself.

 private:
  struct Newest {
    bool any = false;  // Somebody had state when the epoch began:
    uint64_t version = 0;
    uint64_t hash = 0;
    Epoch epoch = 0;  // The last one of who has it.
  };
  void NoteNewest(const View& view);
  void Chaos();
  void DisturbOne(double dice);
  void AddMember();
  void KillOne();
  void DrainSome();
  void CutRoute();
  void CutOnceActive();
  void HarmStore();
  void RestartHead();
  void Heal();
  void Replenish();
  [[nodiscard]] bool Converged();

  std::map<Epoch, std::map<MemberId, SimEntry>> entered_;
  std::map<Epoch, std::vector<MemberId>> lists_;
  std::map<Epoch, Newest> newest_;
  std::map<std::pair<Epoch, MemberId>, SimState> synced_;  // What the source of an epoch sends.
  std::set<std::pair<std::string, std::string>> cut_;      // Hosts, from and to.
  bool cut_for_ever_ = false;
  View whole_;                  // The view that was cut in two.
  std::deque<Time> stored_at_;  // Of the last second.
  bool chaos_ = true;
  Time healed_ = Time::Never();
  Time needless_since_ = Time::Never();  // There is somebody to leave.
  Time fenced_{};  // Last: a coordinator that was deposed may still do so, which is a fault too.
  uint64_t next_incarnation_ = 1;
  int next_head_ = 1;
};

}  // namespace troupe::groups::sim
