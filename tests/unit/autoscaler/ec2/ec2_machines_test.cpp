// Lists that lag behind, and threads whose owner never waits.
#include "autoscaler/ec2/ec2_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/unit/autoscaler/ec2/fake_ec2.h"

namespace troupe::ec2 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using tests::Success;

Machine MachineOf(const std::string& id, const std::string& state = "running") {
  Machine machine;
  machine.id = id;
  machine.state = state;
  return machine;
}

std::vector<std::string> Shown(const std::vector<Machine>& machines) {
  std::vector<std::string> shown;
  for (const Machine& machine : machines)
    shown.push_back(machine.id + " " + machine.state +
                    (machine.ended.empty() ? "" : " " + machine.ended));
  return shown;
}

TEST(MachineInventoryTest, OneThatWasMadeIsThereBeforeItIsListed) {
  MachineInventory inventory;
  inventory.Made(Time{0}, {MachineOf("i-1", "pending")});
  EXPECT_THAT(Shown(inventory.Take(Time{} + seconds(59), {})), ElementsAre("i-1 pending"));
  EXPECT_THAT(inventory.Young(Time{} + seconds(59), {"i-1", "i-2"}), ElementsAre("i-1"));
  EXPECT_THAT(inventory.Young(Time{} + seconds(60), {"i-1"}), IsEmpty());
  EXPECT_THAT(inventory.Take(Time{} + seconds(60), {}), IsEmpty());
}

TEST(MachineInventoryTest, OneThatALaterListLacksIsThereForAWhile) {
  MachineInventory inventory;
  const Ec2Instance listed{MachineOf("i-1")};
  EXPECT_THAT(Shown(inventory.Take(Time{0}, {listed, listed})), ElementsAre("i-1 running"));
  EXPECT_THAT(Shown(inventory.Take(Time{} + seconds(59), {})), ElementsAre("i-1 running"));
  EXPECT_THAT(Shown(inventory.Take(Time{} + seconds(59), {listed})), ElementsAre("i-1 running"));
  EXPECT_THAT(Shown(inventory.Take(Time{} + seconds(100), {})), ElementsAre("i-1 running"));
  EXPECT_THAT(inventory.Take(Time{} + seconds(119), {}), IsEmpty());
}

TEST(MachineInventoryTest, AnEndIsToldOnceWithItsReason) {
  MachineInventory inventory;
  Ec2Instance over{MachineOf("i-1", "stopping"), true};
  over.machine.ended = "why";
  EXPECT_THAT(inventory.Take(Time{0}, {over}), IsEmpty());  // It ended before our time.
  EXPECT_THAT(inventory.Take(Time{0}, {{MachineOf("i-1")}}), SizeIs(1));
  EXPECT_THAT(Shown(inventory.Take(Time{1}, {over})), ElementsAre("i-1 stopping why"));
  EXPECT_THAT(inventory.Take(Time{2}, {over}), IsEmpty());
}

TEST(MachineInventoryTest, OneThatIsEndedIsNotWaitedFor) {
  MachineInventory inventory;
  inventory.Made(Time{0}, {MachineOf("i-1", "pending"), MachineOf("i-2", "pending")});
  inventory.Ending("i-1");
  inventory.Gone("i-2");
  EXPECT_THAT(Shown(inventory.Take(Time{0}, {{MachineOf("i-1")}})), ElementsAre("i-1 stopping"));
  EXPECT_THAT(inventory.Take(Time{0}, {}), IsEmpty());
}

// An EC2 whose answers a test lets out.
class Gate {
 public:
  Result<HttpReply> Answer(const HttpRequest& request, const bool& cancelled) {
    std::unique_lock lock(mu_);
    bodies_.push_back(request.body);
    changed_.notify_all();
    changed_.wait_for(lock, seconds(60), [&] { return open_ || cancelled; });
    if (cancelled) return Error{ErrorCode::kCancelled, "cancelled"};
    const std::string body = request.body;
    const std::string action = body.substr(7, body.find('&') - 7);
    if (action == "CreateFleet")
      return Success(action, "<fleetInstanceSet><item><instanceIds><item>i-" +
                                 std::to_string(++made_) +
                                 "</item></instanceIds></item></fleetInstanceSet>");
    return Success(action);
  }
  void Open(bool open) {
    const std::lock_guard lock(mu_);
    open_ = open;
    changed_.notify_all();
  }
  void Changed() {
    const std::lock_guard lock(mu_);
    changed_.notify_all();
  }
  std::mutex& mu() { return mu_; }
  // Until so many have been asked.
  std::vector<std::string> Await(size_t count) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, seconds(60), [&] { return bodies_.size() >= count; });
    return bodies_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = true;
  int made_ = 0;
  std::vector<std::string> bodies_;
};

class GateLink final : public HttpLink {
 public:
  explicit GateLink(Gate* gate) : gate_(gate) {}
  Result<HttpReply> Send(const HttpRequest& request) override {
    return gate_->Answer(request, cancelled_);
  }
  void Cancel() override {
    {
      const std::lock_guard lock(gate_->mu());
      cancelled_ = true;
    }
    gate_->Changed();
  }

 private:
  Gate* const gate_;
  bool cancelled_ = false;
};

class Ec2MachinesTest : public ::testing::Test {
 protected:
  Ec2MachinesTest() : machines_(std::make_unique<Ec2Machines>(Options(), Tools())) {}

  static Ec2Options Options() {
    Ec2Options options;
    options.cluster = "demo";
    options.offers["spot"] = {true, {"t"}, {}, "", ""};
    return options;
  }
  Ec2Tools Tools() {
    return {tests::WorldWithKeys(), [this] { return std::make_unique<GateLink>(&gate_); }, &clock_};
  }
  void Create(const std::string& request) {
    machines_->Create({request, "spot", 1, "", {}}, [this](Result<std::vector<Machine>> made) {
      said_.push_back(made.ok() ? made->front().id : made.error().message);
    });
  }
  // Until so many answers have come.
  void StepUntil(size_t count) {
    const Time limit = steady_.Now() + seconds(60);
    while (said_.size() < count && steady_.Now() < limit) machines_->Step(clock_.Now());
    ASSERT_THAT(said_, SizeIs(count));
  }

  Gate gate_;
  FakeClock clock_;
  SteadyClock steady_;
  std::vector<std::string> said_;
  std::unique_ptr<Ec2Machines> machines_;
};

TEST_F(Ec2MachinesTest, AnswersComeInStepsOfTheOwner) {
  gate_.Open(false);
  Create("a");
  Create("b");
  machines_->List([this](const Result<std::vector<Machine>>& listed) {
    said_.push_back("listed " + std::to_string(listed->size()));
  });
  gate_.Await(3);  // None waits for another one.
  EXPECT_FALSE(machines_->Step(clock_.Now()));
  EXPECT_THAT(said_, IsEmpty());
  gate_.Open(true);
  StepUntil(3);
  EXPECT_THAT(said_, ::testing::Contains("i-1"));
  EXPECT_THAT(said_, ::testing::Contains("i-2"));
  // Two orders of three requests each, the list, and a look for templates that were left.
  const size_t asked = gate_.Await(8).size();
  machines_->List([this](const Result<std::vector<Machine>>& listed) { said_ = Shown(*listed); });
  said_.clear();
  machines_->Step(clock_.Now());
  EXPECT_THAT(gate_.Await(0), SizeIs(asked));  // Not so soon after the one before.
  clock_.Advance(kEc2ListGap);
  StepUntil(2);
  EXPECT_THAT(said_, UnorderedElementsAre("i-1 pending", "i-2 pending"));
}

TEST_F(Ec2MachinesTest, EndsAreAskedForTogether) {
  Create("a");
  StepUntil(1);
  gate_.Open(false);
  const size_t asked = gate_.Await(3).size();
  for (const char* id : {"i-1", "i-2", "i-3"}) {
    machines_->Terminate({id}, [this](const Status& s) { said_.push_back(s.ok() ? "ok" : "no"); });
  }
  gate_.Await(asked + 1);
  gate_.Open(true);
  StepUntil(4);
  const auto bodies = gate_.Await(asked + 2);
  EXPECT_THAT(bodies, SizeIs(asked + 2));
  EXPECT_THAT(bodies.back(), HasSubstr("InstanceId.1=i-2&InstanceId.2=i-3"));
}

TEST_F(Ec2MachinesTest, AnOrderThatIsWithdrawnIsNotBegun) {
  gate_.Open(false);
  for (size_t i = 0; i < kEc2CreateThreads; ++i) Create(std::to_string(i));
  gate_.Await(kEc2CreateThreads);
  Create("late");
  machines_->Withdraw("late");
  machines_->Withdraw("nobody's");
  gate_.Open(true);
  StepUntil(kEc2CreateThreads + 1);
  EXPECT_THAT(said_, ::testing::Contains(HasSubstr("not wanted any more")));
  EXPECT_THAT(gate_.Await(0), SizeIs(3 * kEc2CreateThreads));
}

TEST_F(Ec2MachinesTest, ItsEndWaitsForNobody) {
  gate_.Open(false);
  for (int i = 0; i < 100; ++i) Create(std::to_string(i));
  machines_->List([](const auto&) { FAIL() << "nobody is there to be told"; });
  gate_.Await(kEc2CreateThreads + 1);
  machines_.reset();
  EXPECT_THAT(gate_.Await(0), SizeIs(kEc2CreateThreads + 1));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(Ec2MachinesTest, TooMuchThatWaitsIsRefused) {
  gate_.Open(false);
  for (size_t i = 0; i < kEc2CreateThreads; ++i) Create("r");
  gate_.Await(kEc2CreateThreads);
  for (size_t i = 0; i < kEc2WaitingMax + 1; ++i) Create("w");
  EXPECT_THAT(said_, ElementsAre(HasSubstr("too many requests")));
}

}  // namespace
}  // namespace troupe::ec2
