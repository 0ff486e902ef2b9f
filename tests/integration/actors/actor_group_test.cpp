// Groups of actors of C++, on a real embedded cluster.
#include "actors/api/actor_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>
#include <mutex>
#include <thread>

#include <troupe/collectives.h>
#include "tests/integration/actors/shared_cluster.h"

namespace troupe::testing {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class Trainer {
 public:
  explicit Trainer(std::string group) : group_(std::move(group)) {}
  int64_t Pid() const { return ::getpid(); }
  int Add(int a, int b) { return a + b; }
  // All of the group add up their ones until somebody has done so `steps` times.
  Result<int> Train(int steps) {
    Result<CollectiveGroup> group = CollectiveGroup::Enter(group_);
    if (!group.ok()) return group.error();
    int64_t step = 0;
    bool fresh = true;
    while (step < steps) {
      int64_t one = fresh ? step : 1;
      const Status s =
          group->AllReduce(std::span(&one, 1), fresh ? ReduceOp::kMax : ReduceOp::kSum);
      if (!s.ok() && s.error().code != ErrorCode::kEpochChanged) return s.error();
      if (s.ok()) step = fresh ? one : step + 1;
      fresh = !s.ok();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return static_cast<int>(step);
  }
  Result<int> Fail() { return Error{ErrorCode::kUserError, "a bad batch"}; }

 private:
  const std::string group_;
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Trainer, (std::string), Pid, Add, Train, Fail);

namespace troupe::testing {
namespace {

class ActorGroups : public SharedCluster<ActorGroups> {
 protected:
  static ActorGroup<Trainer> Made(const std::string& name, uint32_t size, uint32_t max_size = 0) {
    auto group = runtime().SpawnGroup<Trainer>({.name = name,
                                                .min_size = 1,
                                                .size = size,
                                                .max_size = max_size,
                                                .resources = {{"CPU", 0.1}}},
                                               name);
    EXPECT_TRUE(group.ok()) << group.error().ToString();
    EXPECT_TRUE(group->WaitAlive(0, kSoon).ok());
    return *group;
  }
};

TEST_F(ActorGroups, MembersAreCalledTogether) {
  const auto group = Made("calls", 3);
  const auto calls = group.Call(&Trainer::Add, 2, 3);
  ASSERT_TRUE(calls.ok());
  ASSERT_THAT(*calls, SizeIs(3));
  for (const auto& call : *calls) EXPECT_EQ(In(call), 5);
  EXPECT_THAT(In(group.Run(&Trainer::Add, 4, 4)), ElementsAre(8, 8, 8));
  const auto failed = group.Run(&Trainer::Fail).Get(kSoon);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("a bad batch"));
  const auto found = runtime().GetGroup<Trainer>("calls");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->id(), group.id());
  EXPECT_TRUE(group.End("enough").ok());
  const auto after = group.Run(&Trainer::Add, 1, 1).Get(kSoon);
  ASSERT_FALSE(after.ok());
  EXPECT_THAT(after.error().message, HasSubstr("enough"));
}

TEST_F(ActorGroups, ATrainingGoesOnWhateverHappensToItsMembers) {
  const auto group = Made("train", 2, 4);
  std::mutex mu;
  std::vector<GroupEventKind> seen;
  const auto watch = group.OnEvent([&](const GroupEvent& event) {
    std::lock_guard lock(mu);
    seen.push_back(event.kind);
  });
  ASSERT_TRUE(watch.ok());
  const auto pids = In(group.Run(&Trainer::Pid));
  ASSERT_THAT(pids, SizeIs(2));
  const auto run = group.Run(&Trainer::Train, 300);
  std::this_thread::sleep_for(milliseconds(300));  // They train.
  ASSERT_EQ(::kill(static_cast<pid_t>(pids[0]), SIGKILL), 0);
  ASSERT_TRUE(group.Resize(4).ok());
  EXPECT_THAT(In(run), ElementsAre(300, 300, 300, 300));
  std::lock_guard lock(mu);
  EXPECT_THAT(seen, ::testing::IsSupersetOf({GroupEventKind::kDied, GroupEventKind::kResized,
                                             GroupEventKind::kAdded, GroupEventKind::kAlive}));
}

TEST_F(ActorGroups, WhoIsDrainedIsReplaced) {
  const auto group = Made("drain", 2);
  ASSERT_TRUE(group.Drain(0, "a notice", seconds(20)).ok());
  const Time limit = SteadyClock().Now() + kSoon;
  std::vector<uint32_t> numbers;
  while (numbers != std::vector<uint32_t>{1, 2} && SteadyClock().Now() < limit) {
    numbers.clear();
    const auto members = group.Members();
    ASSERT_TRUE(members.ok());
    for (const auto& member : *members) numbers.push_back(member.number);
  }
  EXPECT_THAT(numbers, ElementsAre(1, 2));
}

TEST_F(ActorGroups, WrongUseIsTold) {
  const auto sizes = runtime().SpawnGroup<Trainer>({.min_size = 3, .size = 2}, "any");
  ASSERT_FALSE(sizes.ok());
  EXPECT_EQ(sizes.error().code, ErrorCode::kInvalidArgument);
  const auto group = Made("taken", 1);
  const auto taken = runtime().SpawnGroup<Trainer>({.name = "taken"}, "taken");
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(group.Resize(2).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(group.Drain(5, "").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(runtime().GetGroup<Trainer>("nobody").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace troupe::testing
