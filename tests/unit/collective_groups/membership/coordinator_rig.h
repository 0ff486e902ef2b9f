// A coordinator with scripted members, for the tests of its parts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {

// A coordinator with scripted members; keeps the last decision and answers the store on demand.
class CoordinatorTest : public ::testing::Test {
 protected:
  static MemberId Id(int n) { return {"w" + std::to_string(n), 1}; }

  void Start(uint32_t min, uint32_t start, std::optional<EpochRecord> record = std::nullopt) {
    CoordinatorOptions options = limits_;
    options.group = "g";
    options.owner = owner_;
    options.term = term_;
    options.min_members = min;
    options.start_members = start;
    options_ = options;
    core_.emplace(options, std::move(record), now_);
  }

  void Feed(const CoordinatorEvent& event) { last_ = core_->Step(now_, event); }

  Report& Of(int n) {
    Report& report = reports_[n];
    report.id = Id(n);
    report.host = "h";
    return report;
  }
  // Time passes, in which only member 0 is heard.
  void PassHearing0(Duration d) {
    for (const Time end = now_ + d; now_ < end;) {
      now_ = std::min(end, now_ + options_.lease / 4);
      Say(0);
    }
    Feed(Tick{});
  }
  void Say(int n) {
    ++Of(n).sequence;
    Feed(ReportReceived{Of(n)});
  }
  void Say(int n, MemberState state, Epoch epoch) {
    Of(n).state = state;
    Of(n).epoch = epoch;
    if (state != MemberState::kActive) Of(n).broken = false;
    Say(n);
  }
  void Ready(int n) { Say(n, MemberState::kReady, Of(n).epoch); }

  template <class T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const CoordinatorAction& action : last_.actions) {
      if (const auto* typed = std::get_if<T>(&action)) found.push_back(*typed);
    }
    return found;
  }
  std::vector<std::string> To(CommandKind kind) const {
    std::vector<std::string> names;
    for (const SendCommand& send : All<SendCommand>()) {
      if (send.command.kind == kind) names.push_back(send.to.actor);
    }
    return names;
  }
  Command CommandTo(int n, CommandKind kind) const {
    for (const SendCommand& send : All<SendCommand>()) {
      if (send.to == Id(n) && send.command.kind == kind) return send.command;
    }
    ADD_FAILURE() << "no such command to " << Id(n).ToString();
    return {};
  }
  // The epoch record of the last decision; no command may leave with it (GM-7).
  PersistRecord Persisted() {
    const auto records = All<PersistRecord>();
    EXPECT_EQ(records.size(), 1U);
    EXPECT_THAT(All<SendCommand>(), ::testing::IsEmpty());
    return records.empty() ? PersistRecord{} : records.front();
  }
  static std::vector<std::string> Names(const View& view) {
    std::vector<std::string> names;
    for (const ViewMember& m : view.members) names.push_back(m.id.actor);
    return names;
  }

  // Stores `request` and walks its members to the active epoch.
  View Activate(const PersistRecord& request) {
    Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
    const Epoch epoch = request.record.view.epoch;
    for (const MemberState state : {MemberState::kPrepared, MemberState::kLinked}) {
      for (const ViewMember& m : request.record.view.members)
        Say(std::stoi(m.id.actor.substr(1)), state, epoch);
    }
    EXPECT_EQ(All<EpochActivated>().size(), 1U);
    EXPECT_EQ(To(CommandKind::kActivate), Names(request.record.view));
    for (const ViewMember& m : request.record.view.members) {
      const int n = std::stoi(m.id.actor.substr(1));
      Of(n).boundary = 0;
      Say(n, MemberState::kActive, epoch);
    }
    EXPECT_EQ(core_->phase(), GroupPhase::kActive);
    return request.record.view;
  }
  // Links `joiner`, which was just told to, to members 0..count-1.
  void WarmUp(int joiner, int count) {
    const Command ahead = CommandTo(joiner, CommandKind::kPrelink);
    for (int n = 0; n < count; ++n) {
      Of(joiner).linked.push_back({static_cast<uint32_t>(n), ahead.plan, ""});
      Of(n).linked = {{ahead.slot, ahead.plan, ""}};
      Say(n);
    }
    Say(joiner);
  }
  View FormActive(uint32_t min, int members) {
    Start(min, static_cast<uint32_t>(members));
    for (int n = 0; n < members; ++n) Ready(n);
    return Activate(Persisted());
  }
  // Answers the plan that the last decision sent, for every member of 0..count-1.
  void AnswerPlan(int count, const Command& plan, bool accept) {
    for (int n = 0; n < count; ++n) {
      Of(n).plan = plan.plan;
      Of(n).plan_accepted = accept;
      Say(n);
    }
  }

  Time now_{1'000'000'000};
  std::string owner_ = "me";
  uint64_t term_ = 5;
  CoordinatorOptions limits_;   // To be changed before Start.
  CoordinatorOptions options_;  // As it started.
  std::optional<Coordinator> core_;
  std::map<int, Report> reports_;
  CoordinatorDecision last_;
};

}  // namespace troupe::groups
