#include "tests/sim/actor_groups/actor_group_sim.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "actors/core/error_chain.h"
#include "daemons/head/core/actor_groups.h"
#include "runtime/wire.h"

namespace troupe::daemons::sim {
namespace {

using actors::ActorState;

constexpr int kSteps = 400;
constexpr uint32_t kMin = 2;
constexpr uint32_t kMax = 6;
constexpr Duration kBelowMin = seconds(4);
constexpr Duration kSlack = seconds(5);  // The longest time that passes at once.

class Sim {
 public:
  Sim(uint64_t seed, bool of_run) : random_(seed), of_run_(of_run) {}
  std::string Run();

 private:
  struct Life {
    ActorState state = ActorState::kPending;
    uint64_t incarnation = 1;
    bool held = false;
    bool ending = false;
  };

  size_t Pick(size_t n) { return random_() % n; }
  void Fail(const std::string& what) {
    if (violation_.empty()) violation_ = what + " (step " + std::to_string(step_) + ")";
  }
  void Do(const ActorGroupActions& actions);
  template <class F>
  void Change(F change) {
    ActorGroupActions actions;
    change(actions);
    Do(actions);
  }
  template <class F>
  void Twice(const std::string& what, F change);
  void Create();
  void Say(const std::string& actor, ActorState state);
  void BeginLife(const std::string& actor);
  void Die(const std::string& actor);
  void Request();
  void Tell(const std::string& actor);
  void Restart();
  void Step();
  void Check();
  void CheckBelowMin(const ActorGroupStatus& status);
  void CheckDrains(const ActorGroupStatus& status);
  [[nodiscard]] ActorGroupStatus Look() { return groups_.StatusOf("g", UINT64_MAX).value(); }
  [[nodiscard]] std::string Snapshot();
  [[nodiscard]] std::string AnyActor();

  std::mt19937_64 random_;
  const bool of_run_;
  const bool deadly_ = Pick(3) == 0;  // Its members die more often than they come back.
  int step_ = 0;
  Time now_{std::chrono::nanoseconds(seconds(100)).count()};
  ActorGroups groups_;
  std::map<std::string, Life> lives_;
  std::set<std::string> finished_;
  std::map<std::string, Time> leave_by_;  // Of those that were asked to.
  std::map<std::string, Duration> limits_;
  Duration limit_ = kDrainLimit;  // What the last request has said.
  bool closed_ = false;
  bool formed_ = false;
  Time below_since_ = Time::Never();
  std::optional<ActorGroupRecord> kept_;
  std::string violation_;
};

void Sim::Do(const ActorGroupActions& actions) {
  for (const ActorGroupAction& action : actions) {
    if (const auto* start = std::get_if<StartMembers>(&action)) {
      for (const actors::ActorSpec& spec : start->actors) {
        if (!lives_.try_emplace(spec.actor).second) Fail("AG-1: two members are " + spec.actor);
        if (closed_) Fail("AG-7: " + spec.actor + " joins a closed group");
      }
    } else if (const auto* end = std::get_if<EndMember>(&action)) {
      lives_.at(end->actor).ending = true;
    } else if (const auto* hold = std::get_if<HoldMember>(&action)) {
      lives_.at(hold->actor).held = hold->held;
    } else if (std::holds_alternative<KeepGroup>(action)) {
      kept_ = groups_.RecordOf("g");
    }
  }
}

std::string Sim::Snapshot() {
  const auto record = groups_.RecordOf("g");
  return std::to_string(Look().sequence) +
         (record ? wire::Encode(actors::kActorGroupRecord, *record) : "ended");
}

template <class F>
void Sim::Twice(const std::string& what, F change) {
  Change(change);
  const std::string once = Snapshot();
  Change(change);
  if (Snapshot() != once) Fail("AG-2: " + what + " twice is not " + what + " once");
}

void Sim::Create() {
  actors::ActorGroupSpec spec;
  spec.group = spec.name = "g";
  spec.owner = "driver/1";
  spec.min_size = kMin;
  spec.size = 3;
  spec.max_size = kMax;
  spec.below_min_s = ToSeconds(kBelowMin);
  spec.of_run = of_run_;
  Twice("making it", [&](auto& actions) { (void)groups_.Create(now_, spec, actions); });
}

void Sim::Say(const std::string& actor, ActorState state) {
  Life& life = lives_.at(actor);
  life.state = state;
  Change([&](auto& actions) {
    groups_.OnActor(now_, {actor, state, life.incarnation, {}, {}}, actions);
  });
}

void Sim::BeginLife(const std::string& actor) {
  const Life& life = lives_.at(actor);
  if (life.held || life.ending) return;
  const bool member = groups_.MemberOf(actor).has_value();
  if (finished_.contains(actor)) Fail("AG-7: " + actor + " has finished and lives again");
  if (member && closed_) Fail("AG-7: " + actor + " begins a life in a closed group");
  if (member && !groups_.Stays(actor)) Fail("AG-7: " + actor + " is to leave and lives again");
  Say(actor, Pick(2) == 0 ? ActorState::kStarting : ActorState::kAlive);
}

void Sim::Die(const std::string& actor) {
  ++lives_.at(actor).incarnation;
  Say(actor, ActorState::kRestarting);
}

std::string Sim::AnyActor() {
  std::vector<std::string> living;
  for (const auto& [actor, life] : lives_)
    if (life.state != ActorState::kDead) living.push_back(actor);
  return living.empty() ? "" : living[Pick(living.size())];
}

void Sim::Request() {
  const auto size = static_cast<uint32_t>(kMin + Pick(kMax - kMin + 1));
  const auto member = static_cast<uint32_t>(Pick(20));
  limit_ = of_run_ && Pick(2) == 0 ? kNoDrainLimit : seconds(static_cast<int64_t>(1 + Pick(30)));
  switch (Pick(of_run_ ? 3 : 2)) {
    case 0:
      return Twice("a resize",
                   [&](auto& a) { (void)groups_.Resize(now_, "g", size, "resized", limit_, a); });
    case 1:
      return Twice("a drain",
                   [&](auto& a) { (void)groups_.Drain(now_, "g", member, "drained", limit_, a); });
    default:
      return Twice("a shrink",
                   [&](auto& a) { (void)groups_.Shrink(now_, "g", member, "drained", limit_, a); });
  }
}

// What only a run knows.
void Sim::Tell(const std::string& actor) {
  if (!of_run_ || actor.empty()) return;
  const bool alive = lives_.at(actor).state == ActorState::kAlive;
  if (Pick(3) == 0) {
    closed_ = Pick(2) == 0;
    return Twice("closing it", [&](auto& a) { groups_.SetClosed("g", closed_, a); });
  }
  if (!alive || !groups_.MemberOf(actor)) return;
  if (Pick(4) == 0 && groups_.Stays(actor)) {
    finished_.insert(actor);
    return Twice("finishing", [&](auto& a) { groups_.Finished(actor, a); });
  }
  if (finished_.contains(actor) || Pick(4) != 0) return;
  limit_ = kNoDrainLimit;
  leave_by_.erase(actor);
  limits_[actor] = kNoDrainLimit;
  Twice("leaving", [&](auto& a) { groups_.Left(actor, "left", a); });
}

// It is told of all of them.
void Sim::Restart() {
  if (!kept_ || Look().ended) return;
  const ActorGroupRecord record = *kept_;
  groups_ = ActorGroups();
  Change([&](auto& actions) { groups_.Restore(now_, record, actions); });
  closed_ = false;
  if (below_since_ != Time::Never()) below_since_ = now_;
  for (auto& [actor, by] : leave_by_)
    if (limits_[actor] != kNoDrainLimit) by = now_ + limits_[actor];
  for (auto& [actor, life] : std::map<std::string, Life>(lives_)) {
    lives_.at(actor).held = false;
    Say(actor, life.state);
  }
  for (const std::string& actor : finished_)
    Change([&](auto& actions) { groups_.Finished(actor, actions); });
}

void Sim::Step() {
  const std::string actor = AnyActor();
  const size_t what = Pick(12);
  if (what == 10) return Request();
  if (what == 9) {
    now_ = now_ + seconds(static_cast<int64_t>(Pick(5)));
    return Change([&](auto& actions) { groups_.Tick(now_, actions); });
  }
  if (what == 11 && Pick(5) == 0) return Restart();
  if (actor.empty()) return;
  const Life life = lives_.at(actor);
  const bool placed = life.state == ActorState::kStarting || life.state == ActorState::kAlive;
  if (what < (deadly_ ? 1 : 4)) {
    if (life.state == ActorState::kStarting) return Say(actor, ActorState::kAlive);
    return placed ? void() : BeginLife(actor);
  }
  if ((what == 4 || (what == 7 && deadly_)) && placed) return Die(actor);
  if (what == 5 && Pick(20) == 0) return Say(actor, ActorState::kDead);
  if (what == 6) return Tell(actor);
  for (const auto& [one, its] : std::map<std::string, Life>(lives_))
    if (its.ending && its.state != ActorState::kDead) Say(one, ActorState::kDead);
}

void Sim::CheckBelowMin(const ActorGroupStatus& status) {
  size_t alive = 0;
  for (const auto& [actor, life] : lives_)
    alive += groups_.MemberOf(actor) && life.state == ActorState::kAlive ? 1 : 0;
  formed_ = formed_ || alive >= kMin;
  if (alive >= kMin || !formed_ || status.ended) below_since_ = Time::Never();
  if (formed_ && alive < kMin && below_since_ == Time::Never()) below_since_ = now_;
  if (!of_run_ && below_since_ != Time::Never() && now_ > below_since_ + kBelowMin + kSlack)
    Fail("AG-4: it goes on with " + std::to_string(alive) + " alive");
}

void Sim::CheckDrains(const ActorGroupStatus& status) {
  for (const ActorGroupStatus::Member& m : status.members) {
    if (m.state != GroupMemberState::kDraining) continue;
    const auto [it, fresh] = limits_.try_emplace(m.actor, limit_);
    if (fresh && limit_ != kNoDrainLimit) leave_by_[m.actor] = now_ + limit_;
    const auto by = leave_by_.find(m.actor);
    const bool late = by != leave_by_.end() && now_ > by->second + 2 * kSlack;
    if (late && !lives_.at(m.actor).ending) Fail("AG-5: " + m.actor + " was to leave long ago");
  }
}

void Sim::Check() {
  const ActorGroupStatus status = Look();
  uint32_t staying = 0;
  for (const ActorGroupStatus::Member& m : status.members) {
    staying += m.state != GroupMemberState::kDraining ? 1 : 0;
    if (groups_.MemberOf(m.actor)->second != m.number) Fail("AG-1: " + m.actor + " is two members");
  }
  if (staying > kMax) Fail("AG-1: " + std::to_string(staying) + " members are to stay");
  if (status.ended && status.reason.empty()) Fail("AG-4: it ends without a reason");
  if (!status.ended && !of_run_ && status.members.size() < kMin)
    Fail("AG-4: it goes on with too few members");
  for (const auto& [actor, life] : lives_) {
    const bool dead = life.state == ActorState::kDead || life.ending;
    if (!dead && !groups_.MemberOf(actor)) Fail("AG-3: " + actor + " is left behind");
  }
  CheckBelowMin(status);
  CheckDrains(status);
}

std::string Sim::Run() {
  Create();
  for (step_ = 0; step_ < kSteps && violation_.empty() && !Look().ended; ++step_) {
    Step();
    Check();
  }
  if (!of_run_ || !violation_.empty()) return violation_;
  // It is filled again, whoever was lost.
  closed_ = false;
  Change([&](auto& actions) { groups_.SetClosed("g", false, actions); });
  Change([&](auto& actions) { groups_.Tick(now_, actions); });
  const ActorGroupStatus status = Look();
  const auto staying = std::ranges::count_if(
      status.members, [](const auto& m) { return m.state != GroupMemberState::kDraining; });
  if (staying < status.size) Fail("AG-4: a run's group is not filled");
  Change([&](auto& actions) { groups_.End(now_, "g", "over", actions); });
  Check();
  return violation_;
}

}  // namespace

std::string RunActorGroupSim(uint64_t seed, bool of_run) { return Sim(seed, of_run).Run(); }

}  // namespace troupe::daemons::sim
