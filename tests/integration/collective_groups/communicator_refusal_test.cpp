// What a communicator refuses: operations outside an epoch, addresses that are none, links whose
// peer never comes, interfaces that are not here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <thread>

#include "collective_groups/collectives/communicator.h"

namespace troupe::groups {
namespace {

using ::testing::HasSubstr;

const Operation kUnnamed{};

TEST(RefusalTest, NothingRunsOutsideAnEpochOrWithoutLinks) {
  const auto alone = MakeCommunicator(CommunicatorOptions{}).value();
  EXPECT_EQ(alone->Barrier(kUnnamed).error().code, ErrorCode::kEpochChanged);
  View view;
  view.epoch = 1;
  view.members.resize(2);
  view.members[1].id = {"w1", 1};
  view.members[1].slot = 1;
  const Status begun = alone->Begin(view, 0, {});
  EXPECT_EQ(begun.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(begun.error().message, HasSubstr("not linked to w1#1"));
  EXPECT_EQ(alone->Link(1, "raddress").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(alone->Offer(0, 1'000'000, "").error().code, ErrorCode::kInvalidArgument);
}

TEST(RefusalTest, AnAddressThatIsNoneIsAnErrorWithinTheLinkTimeout) {
  const auto one = MakeCommunicator(CommunicatorOptions{}).value();
  for (const std::string& address :
       {std::string(), std::string("garbage"), "r" + std::string(300, 'x'),
        "r" + std::string(300, '\0'), std::string("m1 2 3"), std::string("m")}) {
    ASSERT_TRUE(one->Offer(0, 1, "").ok());
    const Time start = SteadyClock().Now();
    EXPECT_FALSE(one->Link(1, address).ok());
    EXPECT_LT(SteadyClock().Now() - start, 3 * kLinkTimeout);
  }
}

TEST(RefusalTest, ALinkWhosePeerNeverComesCanBeCancelled) {
  const auto one = MakeCommunicator(CommunicatorOptions{}).value();
  auto two = MakeCommunicator(CommunicatorOptions{}).value();
  const std::string address = *two->Offer(1, 0, "");
  two.reset();  // Which side connects goes by the ports: one waits for two, or finds nobody there.
  ASSERT_TRUE(one->Offer(0, 1, "").ok());
  Status status;
  std::atomic<bool> done{false};
  std::thread linking([&] {
    status = one->Link(1, address);
    done = true;
  });
  while (!done) {
    one->CancelLinks();
    std::this_thread::yield();
  }
  linking.join();
  EXPECT_FALSE(status.ok());
}

TEST(RefusalTest, NoMemoryIsOfferedThatOthersCouldNotOpen) {
  CommunicatorOptions options;
  options.host = "host";
  EXPECT_FALSE(MakeCommunicator(options).value()->memory().empty());
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0), 0);
  const auto closed = MakeCommunicator(options);
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
  EXPECT_TRUE(closed.value()->memory().empty());
}

TEST(RefusalTest, AnInterfaceThatIsNotHereIsAClearError) {
  CommunicatorOptions options;
  options.gloo.bind_address = "203.0.113.1";
  const auto made = MakeCommunicator(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(made.error().message, HasSubstr("203.0.113.1"));
}

}  // namespace
}  // namespace troupe::groups
