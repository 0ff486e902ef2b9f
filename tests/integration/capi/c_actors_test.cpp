// Actors in C on a real embedded cluster, called from C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include <troupe/dynamic.h>
#include "daemons/worker/plugin_loader.h"
#include "tests/integration/actors/shared_cluster.h"
#include "tests/integration/actors/till.h"

namespace troupe::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kTillPlugin = TROUPE_TEST_PLUGIN_DIR "/till.so";
const std::string kTallyPlugin = TROUPE_TEST_PLUGIN_DIR "/tally.so";

class CActors : public SharedCluster<CActors> {};

TEST_F(CActors, AnActorTypeInCIsCalledFromCpp) {
  const auto tally =
      Started(SpawnDynamic(runtime(), {.max_restarts = 1, .plugin = kTallyPlugin}, "c.Tally", 40));
  EXPECT_EQ(In(tally.CallNamed<int64_t>("Add", 2)), 42);
  EXPECT_EQ(In(tally.CallNamed<std::string>("Program")), "troupe-worker");
  EXPECT_TRUE(tally.CallNamed<void>("Nothing").Get(kSoon).ok());
  const auto failed = tally.CallNamed<int64_t>("Fail", "on purpose").Get(kSoon);
  EXPECT_EQ(failed.error().code, ErrorCode::kUserError);
  EXPECT_THAT(failed.error().message, AllOf(HasSubstr("c.Tally.Fail"), HasSubstr("on purpose")));
  ASSERT_TRUE(failed.error().origin);
  EXPECT_EQ(failed.error().origin->type, "tally.Broken");
  const auto unknown = tally.CallNamed<int64_t>("Nonsense").Get(kSoon);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("c.Tally has no method Nonsense"));
  EXPECT_EQ(tally.CallNamed<int64_t>("Add", "text").Get(kSoon).error().code, ErrorCode::kCorrupt);
  // A handle goes in; the C method calls through it.
  const auto till = Started(runtime().Spawn<Till>({.plugin = kTillPlugin}, 1));
  EXPECT_EQ(In(tally.CallNamed<int64_t>("SellAt", till, 9)), 10);
  // Its state outlives its process.
  const auto pid = static_cast<pid_t>(In(tally.CallNamed<int64_t>("Pid")));
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_EQ(In(tally.CallNamedWith<int64_t>({kSoon, true}, "Add", 1)), 43);
}

TEST_F(CActors, ACallOfAnActorInCIsCancelledAndHasADeadline) {
  const auto tally = Started(SpawnDynamic(runtime(), {.plugin = kTallyPlugin}, "c.Tally", 0));
  const auto slow = tally.CallNamed<void>("Linger");
  EXPECT_EQ(slow.Get(milliseconds(200)).error().code, ErrorCode::kDeadlineExceeded);
  slow.Cancel();
  EXPECT_EQ(slow.Get(kSoon).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(In(tally.CallNamed<int64_t>("Lingered")), 1) << "it has heard of the end";
  EXPECT_EQ(tally.CallNamedWith<void>({milliseconds(200), false}, "Linger").Get(kSoon).error().code,
            ErrorCode::kDeadlineExceeded);
}

TEST_F(CActors, AConstructorInCMayRefuse) {
  const auto tally = SpawnDynamic(runtime(), {.plugin = kTallyPlugin}, "c.Tally", -1);
  ASSERT_FALSE(tally.ok());
  EXPECT_EQ(tally.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(tally.error().message, HasSubstr("a tally begins at 0 or above"));
}

TEST_F(CActors, APluginInCSaysWhatItDescribes) {
  const Result<const troupe_plugin_info*> plugin = daemons::LoadPlugin(kTallyPlugin);
  ASSERT_TRUE(plugin.ok()) << plugin.error().ToString();
  EXPECT_STREQ((*plugin)->describes, "actors c.Tally; tasks none");
}

}  // namespace
}  // namespace troupe::testing

int main(int argc, char** argv) {
  troupe::internal::HostIfWorker(troupe::actors::RegisteredTypes());
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
