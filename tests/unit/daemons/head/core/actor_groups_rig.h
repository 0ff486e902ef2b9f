// Groups of actors without a head around them: what they want done is noted.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/core/error_chain.h"
#include "daemons/head/core/actor_groups.h"

namespace troupe::daemons::testing {

using actors::ActorState;

// Does what the core wants, as far as it concerns actors.
class ActorGroupsTest : public ::testing::Test {
 protected:
  struct Life {
    ActorState state = ActorState::kPending;
    uint64_t incarnation = 1;
  };

  actors::ActorGroupSpec Spec(uint32_t min_size, uint32_t size, uint32_t max_size,
                              const std::string& id = "g") {
    actors::ActorGroupSpec spec;
    spec.group = id;
    spec.name = "name of " + id;
    spec.owner = "driver/1";
    spec.min_size = min_size;
    spec.size = size;
    spec.max_size = max_size;
    spec.member.type = "Trainer";
    return spec;
  }
  Status Make(uint32_t min_size, uint32_t size, uint32_t max_size) {
    return Did([&](ActorGroupActions& actions) {
      return groups_.Create(now_, Spec(min_size, size, max_size), actions);
    });
  }
  template <class F>
  Status Did(F change) {
    ActorGroupActions actions;
    Status status = change(actions);
    Do(actions);
    return status;
  }
  void Do(const ActorGroupActions& actions) {
    for (const ActorGroupAction& action : actions) {
      if (const auto* start = std::get_if<StartMembers>(&action)) {
        at_least_ = start->at_least;
        together_ = start->strategy;
        for (const actors::ActorSpec& spec : start->actors) {
          EXPECT_TRUE(lives_.try_emplace(spec.actor).second) << spec.actor;
          EXPECT_TRUE(spec.detached);
          EXPECT_EQ(spec.owner, "driver/1");
        }
      } else if (const auto* end = std::get_if<EndMember>(&action)) {
        ended_.push_back(end->actor);
        ending_.insert(end->actor);
        why_ended_ = end->reason;
        overdue_ = end->overdue;
      } else if (const auto* hold = std::get_if<HoldMember>(&action)) {
        if (hold->held) held_.insert(hold->actor);
        if (!hold->held) held_.erase(hold->actor);
      } else if (const auto* drain = std::get_if<DrainMember>(&action)) {
        drained_.push_back(drain->actor);
      } else if (const auto* dismiss = std::get_if<DismissMembers>(&action)) {
        dismissed_.insert(dismissed_.end(), dismiss->actors.begin(), dismiss->actors.end());
      } else if (std::get_if<ReadmitMembers>(&action) != nullptr) {
        dismissed_.clear();
      } else if (std::get_if<KeepGroup>(&action) != nullptr) {
        kept_ = groups_.RecordOf("g");
      } else if (std::get_if<ForgetGroup>(&action) != nullptr) {
        kept_.reset();
      }
    }
  }
  void Say(const std::string& actor, ActorState state, const std::string& why = "") {
    Life& life = lives_.at(actor);
    life.state = state;
    actors::ActorLocation where{actor, state, life.incarnation, {}, {}};
    if (!why.empty()) where.reason = actors::ToChain(Error{ErrorCode::kPeerGone, why});
    (void)Did([&](ActorGroupActions& actions) {
      groups_.OnActor(now_, where, actions);
      return Status::Ok();
    });
  }
  void AllAlive() {
    for (const ActorGroupStatus::Member& m : Look().members) Say(m.actor, ActorState::kAlive);
  }
  void Die(const std::string& actor) {
    ++lives_.at(actor).incarnation;
    Say(actor, ActorState::kRestarting, "killed by signal 9");
  }
  ActorGroupStatus Look(uint64_t since = 0) { return groups_.StatusOf("g", since).value(); }
  std::vector<std::string> Events(uint64_t since = 0) {
    std::vector<std::string> texts;
    for (const GroupEvent& event : Look(since).events) {
      texts.push_back(GroupEventKindName(event.kind) +
                      (event.member < 0 ? "" : " " + std::to_string(event.member)));
    }
    return texts;
  }
  std::vector<uint32_t> Numbers(bool draining) {
    std::vector<uint32_t> numbers;
    for (const ActorGroupStatus::Member& m : Look().members)
      if ((m.state == GroupMemberState::kDraining) == draining) numbers.push_back(m.number);
    return numbers;
  }
  Status Resize(uint32_t size) {
    return Did([&](ActorGroupActions& a) {
      return groups_.Resize(now_, "g", size, "resized", kDrainLimit, a);
    });
  }
  Status Drain(uint32_t member, Duration limit = seconds(10)) {
    return Did(
        [&](ActorGroupActions& a) { return groups_.Drain(now_, "g", member, "notice", limit, a); });
  }
  void Pass(Duration time) {
    now_ = now_ + time;
    (void)Did([&](ActorGroupActions& actions) {
      groups_.Tick(now_, actions);
      return Status::Ok();
    });
  }

  Time now_{std::chrono::nanoseconds(seconds(100)).count()};
  ActorGroups groups_;
  std::map<std::string, Life> lives_;
  std::vector<std::string> ended_, drained_, dismissed_;
  std::set<std::string> ending_, held_;
  std::string why_ended_, together_;
  bool overdue_ = false;
  size_t at_least_ = 0;
  std::optional<ActorGroupRecord> kept_;
};

}  // namespace troupe::daemons::testing
