// What processes use, from what their nodes say.
#include "daemons/head/core/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include "runtime/process.h"

namespace troupe::daemons {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Time kStart = Time{} + seconds(100);

NodeHello Hello(const std::string& node, std::vector<RunningWorker> workers) {
  NodeHello hello;
  hello.node = node;
  hello.workers = std::move(workers);
  return hello;
}
RunningWorker Running(const std::string& process, uint64_t cpu_ms, uint64_t rss_bytes = 1) {
  return {process, 7, "run", false, {}, cpu_ms, rss_bytes};
}

TEST(UsageTest, ARateIsTakenOverAWindow) {
  Usage usage;
  usage.OnNode(kStart, Hello("n", {Running("p", 5000, 10)}));
  EXPECT_EQ(usage.processes().at("p").cores, 0) << "what it has used before is not known";
  usage.OnNode(kStart + milliseconds(300), Hello("n", {Running("p", 5300, 20)}));
  EXPECT_EQ(usage.processes().at("p").cores, 0);
  EXPECT_EQ(usage.processes().at("p").rss_bytes, 20U);
  usage.OnNode(kStart + milliseconds(1200), Hello("n", {Running("p", 6800)}));
  EXPECT_DOUBLE_EQ(usage.processes().at("p").cores, 1.5);
  usage.OnNode(kStart + milliseconds(2200), Hello("n", {Running("p", 6800)}));
  EXPECT_DOUBLE_EQ(usage.processes().at("p").cores, 0);
}

TEST(UsageTest, NothingIsKeptOfWhatIsNotListedAnyMore) {
  Usage usage;
  usage.OnNode(kStart, Hello("n", {Running("p", 1), Running("q", 1)}));
  usage.OnNode(kStart, Hello("m", {Running("r", 1)}));
  RunningWorker ended = Running("q", 1);
  ended.ended = true;
  usage.OnNode(kStart, Hello("n", {ended}));
  EXPECT_THAT(usage.processes(), SizeIs(1));
  usage.OnNodeGone("m");
  EXPECT_THAT(usage.processes(), IsEmpty());
}

TEST(UsageTest, OfAProcessIsWhatTheKernelCounts) {
  const ProcessUsage before = UsageOf(::getpid());
  EXPECT_GT(before.rss_bytes, 1U << 20);
  volatile uint64_t sum = 0;
  while (UsageOf(::getpid()).cpu_ms < before.cpu_ms + 50) sum = sum + 1;
  const ProcessUsage nobody = UsageOf(0);
  EXPECT_EQ(nobody.cpu_ms + nobody.rss_bytes, 0U);
}

}  // namespace
}  // namespace troupe::daemons
