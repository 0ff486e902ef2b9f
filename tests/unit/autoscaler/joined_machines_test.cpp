#include "autoscaler/joined_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A region that answers at once, or when a test has it answer.
class Region final : public MachineSource {
 public:
  explicit Region(std::string name) : name_(std::move(name)) {}
  void Create(const MachineOrder& order, Answer done) override {
    if (trouble) return done(*trouble);
    Machine machine;
    machine.id = name_ + std::to_string(++made_);
    machine.offer = order.offer;
    machines.push_back(machine);
    done(machines);
  }
  void List(Answer done) override {
    if (slow) {
      late.push_back(std::move(done));
    } else if (trouble) {
      done(*trouble);
    } else {
      done(machines);
    }
  }
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override {
    ended.insert(ended.end(), ids.begin(), ids.end());
    done(trouble ? Status(*trouble) : Status::Ok());
  }
  void Printed(const std::string& id,
               const std::function<void(const std::string&)>& done) override {
    done(name_ + " printed");
  }
  void Withdraw(const std::string& request_id) override { withdrawn.push_back(request_id); }
  std::map<std::string, double> TakePrices() override { return {{name_, 1.0}}; }
  bool Step(Time now) override { return changes; }

  std::vector<Machine> machines;
  std::vector<std::string> ended, withdrawn;
  std::vector<Answer> late;
  std::optional<Error> trouble;
  bool slow = false;
  bool changes = false;

 private:
  const std::string name_;
  int made_ = 0;
};

class JoinedMachinesTest : public ::testing::Test {
 protected:
  JoinedMachinesTest() {
    std::vector<JoinedMachines::Part> parts;
    for (Region** region : {&east_, &west_}) {
      const std::string name = region == &east_ ? "east" : "west";
      auto made = std::make_unique<Region>(name);
      *region = made.get();
      parts.push_back({"EC2 in " + name, {"pool-" + name}, std::move(made)});
    }
    all_ = std::make_unique<JoinedMachines>(std::move(parts));
  }
  std::string Create(const std::string& offer) {
    std::string said;
    all_->Create({"r", offer, 1, "", {}}, [&](const Result<std::vector<Machine>>& made) {
      said = made.ok() ? made->back().id : made.error().message;
    });
    return said;
  }
  static std::string ListOf(MachineSource& source) {
    std::string said = "nothing";
    source.List([&](const Result<std::vector<Machine>>& listed) {
      said = listed.ok() ? "listed" : listed.error().message;
      for (const Machine& one : listed.ok() ? *listed : std::vector<Machine>{})
        said += " " + one.id;
    });
    return said;
  }
  void Terminate(const std::vector<std::string>& ids) {
    all_->Terminate(ids, [this](const Status& status) { ended_.push_back(status); });
  }

  Region* east_ = nullptr;
  Region* west_ = nullptr;
  std::unique_ptr<JoinedMachines> all_;
  std::vector<Status> ended_;
};

TEST_F(JoinedMachinesTest, AnOrderGoesWhereItsOfferIs) {
  EXPECT_EQ(Create("pool-west"), "west1");
  EXPECT_EQ(Create("pool-east"), "east1");
  EXPECT_THAT(Create("pool-north"), HasSubstr("pool-north"));
  EXPECT_EQ(ListOf(*all_), "listed east1 west1");
  Terminate({"west1"});
  EXPECT_THAT(west_->ended, ElementsAre("west1"));
  EXPECT_THAT(east_->ended, IsEmpty());
  all_->Withdraw("r");
  EXPECT_THAT(east_->withdrawn, ElementsAre("r"));
  EXPECT_THAT(west_->withdrawn, ElementsAre("r"));
  EXPECT_THAT(all_->TakePrices(), ElementsAre(Pair("east", 1), Pair("west", 1)));
  EXPECT_FALSE(all_->Step(Time{}));
  east_->changes = true;
  EXPECT_TRUE(all_->Step(Time{}));
  std::vector<std::string> words;
  const auto tell = [&](const std::string& text) { words.push_back(text); };
  all_->Printed("west1", tell);
  all_->Printed("nobody", tell);
  EXPECT_THAT(words, ElementsAre("west printed", ""));
}

TEST_F(JoinedMachinesTest, WhatTwoSourcesListIsOneMachine) {
  (void)Create("pool-east");
  west_->machines = east_->machines;
  EXPECT_EQ(ListOf(*all_), "listed east1");
}

TEST_F(JoinedMachinesTest, AListWaitsForAll) {
  (void)Create("pool-east");
  west_->slow = true;
  EXPECT_EQ(ListOf(*all_), "nothing");
  std::string said;
  all_->List([&](const auto& listed) { said = std::to_string(listed->size()); });
  west_->late.back()(std::vector<Machine>{});
  EXPECT_EQ(said, "1");
}

TEST_F(JoinedMachinesTest, ARegionThatIsAwayHoldsUpNoOther) {
  const Error away{ErrorCode::kDeadlineExceeded, "no reply in time"};
  west_->trouble = away;
  EXPECT_EQ(ListOf(*all_), "EC2 in west: no reply in time");  // What it has nobody knows.
  west_->trouble.reset();
  (void)Create("pool-west");
  EXPECT_EQ(ListOf(*all_), "listed west1");
  west_->trouble = away;
  (void)Create("pool-east");
  EXPECT_EQ(ListOf(*all_), "listed east1 west1");
  // Who has to know that nothing is left does not go by that.
  EXPECT_EQ(ListOf(all_->whole()), "EC2 in west: no reply in time");
  EXPECT_THAT(Create("pool-west"), HasSubstr("no reply"));
  EXPECT_EQ(ListOf(*all_), "EC2 in west: no reply in time");  // It may have been made.
  west_->trouble.reset();
  EXPECT_EQ(ListOf(all_->whole()), "listed east1 west1");
}

TEST_F(JoinedMachinesTest, OfWhomNobodyKnowsWhereTheyAreAllAreAsked) {
  Terminate({"i-1"});
  EXPECT_THAT(east_->ended, ElementsAre("i-1"));
  EXPECT_THAT(west_->ended, ElementsAre("i-1"));
  west_->trouble = Error{ErrorCode::kUnavailable, "no"};
  Terminate({"i-2"});
  Terminate({});
  ASSERT_EQ(ended_.size(), 3U);
  EXPECT_TRUE(ended_[0].ok());
  EXPECT_FALSE(ended_[1].ok());
  EXPECT_TRUE(ended_[2].ok());
}

}  // namespace
}  // namespace troupe
