// NoticeWatch by its invariants: pauses, trouble, and answers that are none.
#include "autoscaler/notices/notice_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/autoscaler/notices/watch_rig.h"

namespace troupe::notices {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Site;
using ::testing::SizeIs;
using testing::WatchRig;
using What = NoticeChange::What;

const Error kRefused{ErrorCode::kUnavailable, "connection refused"};
const std::string kAction = "/latest/meta-data/spot/instance-action";
const std::string kRebalance = "/latest/meta-data/events/recommendations/rebalance";

TEST(NoticeWatchTest, AsksEveryFewSecondsAndNotInStep) {
  WatchRig rig("aws");
  rig.answer_ = Site{};
  rig.Run(seconds(1000));
  EXPECT_THAT(rig.changes_, IsEmpty());
  const auto rounds = static_cast<double>(rig.asked_.size()) / 5;
  EXPECT_GT(rounds, 180);
  EXPECT_LT(rounds, 222);
  WatchRig other("aws");
  other.answer_ = Site{};
  EXPECT_EQ(other.Settle(), 6);  // A token, and five questions.
  const Time due = other.watch_.next_wake();
  EXPECT_NE(due, other.now().now + seconds(5));
  EXPECT_EQ(other.Settle(), 0);
}

TEST(NoticeWatchTest, ThreeFailuresInARowAreTroubleAndNoNotice) {
  WatchRig rig("aws");
  int answers = 0;
  rig.answer_ = [&](const HttpRequest&) -> Result<HttpReply> { return ++answers, kRefused; };
  rig.Settle();
  EXPECT_EQ(answers, 1);  // One that does not answer is not asked more in this round.
  rig.Pass(seconds(6));
  rig.Settle();
  EXPECT_THAT(rig.changes_, IsEmpty());
  rig.Run(seconds(3600));
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kTrouble);
  EXPECT_EQ(rig.changes_[0].text, "connection refused");
  EXPECT_GT(answers, 3600 / 23);  // And it goes on asking,
  EXPECT_LT(answers, 3600 / 16);  // but less often.
  rig.answer_ = Site{};
  rig.Run(seconds(60));
  ASSERT_THAT(rig.changes_, SizeIs(2));
  EXPECT_EQ(rig.changes_[1].what, What::kTroubleOver);
}

TEST(NoticeWatchTest, WhoIsThrottledAsksLessOftenAtOnce) {
  WatchRig rig("aws");
  rig.answer_ = [](const HttpRequest& request) -> Result<HttpReply> {
    return request.method == "PUT" ? HttpReply{200, {}, "t"} : HttpReply{503};
  };
  rig.Settle();
  EXPECT_GT(rig.watch_.next_wake(), rig.now().now + seconds(8));
}

TEST(NoticeWatchTest, AnOutageWithdrawsNothing) {
  const Site with{{{kRebalance, {200, {}, R"({"noticeTime": "2026-01-01T00:00:00Z"})"}},
                   {kAction, {200, {}, R"({"action": "stop", "time": "2026-01-01T00:01:40Z"})"}}}};
  const std::vector<WatchRig::Answer> outages = {
      [](const HttpRequest&) -> Result<HttpReply> { return kRefused; },
      [](const HttpRequest& request) -> Result<HttpReply> {
        return request.method == "PUT" ? HttpReply{200, {}, "t"} : HttpReply{500, {}, "{}"};
      }};
  for (const WatchRig::Answer& outage : outages) {
    WatchRig rig("aws");
    rig.answer_ = with;
    rig.Settle();
    ASSERT_THAT(rig.Of(What::kSoft), SizeIs(1));
    ASSERT_THAT(rig.Of(What::kHard), SizeIs(1));
    rig.answer_ = outage;
    rig.Run(seconds(300));
    rig.answer_ = with;
    rig.Run(seconds(60));
    EXPECT_THAT(rig.Of(What::kSoft), SizeIs(1));
    EXPECT_THAT(rig.Of(What::kHard), SizeIs(1));
    EXPECT_THAT(rig.Of(What::kWithdrawn), IsEmpty());
  }
}

TEST(NoticeWatchTest, ADeadlineOnlyComesNearer) {
  WatchRig rig("aws");
  Site site{{{kAction, {200, {}, R"({"action": "stop", "time": "2026-01-01T00:01:40Z"})"}}}};
  rig.answer_ = site;
  rig.Settle();
  ASSERT_THAT(rig.Of(What::kHard), SizeIs(1));
  const Time deadline = rig.changes_[0].deadline;
  EXPECT_EQ(deadline, rig.now().now + seconds(100));
  rig.MoveWallClock(-3600);  // The same notice, by a clock that was set back.
  rig.Run(seconds(30));
  EXPECT_THAT(rig.changes_, SizeIs(1));
  rig.MoveWallClock(3600);
  site.at[kAction].body = R"({"action": "stop", "time": "2026-01-01T00:00:50Z"})";
  rig.answer_ = site;
  rig.Run(seconds(6));
  ASSERT_THAT(rig.Of(What::kHard), SizeIs(2));
  EXPECT_LT(rig.changes_[1].deadline, deadline);
  site.at[kAction].body = R"({"action": "stop", "time": "2026-01-01T09:00:50Z"})";
  rig.answer_ = site;
  rig.Run(seconds(6));
  EXPECT_THAT(rig.changes_, SizeIs(2));
}

// NW-1: whatever comes, a notice needs an answer that says so.
TEST(NoticeWatchTest, GarbageIsNoNotice) {
  std::mt19937_64 random(11);
  const std::vector<std::string> parts = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"action\"",
                                          ":",
                                          "\"time\"",
                                          ",",
                                          "null",
                                          "1e999",
                                          "TRUE,",
                                          "\\u0000",
                                          "\"Events\"",
                                          "\"DocumentIncarnation\"",
                                          "-9223372036854775809",
                                          "\"EventId\"",
                                          "\xff",
                                          "\"name\"",
                                          "\"Resources\"",
                                          "<html>",
                                          "\"noticeTime\"",
                                          "Terminate"};
  for (const char* cloud : {"aws", "gcp", "azure"}) {
    WatchRig rig(cloud);
    rig.answer_ = [&](const HttpRequest&) -> Result<HttpReply> {
      HttpReply reply;
      reply.status = std::vector<int>{200, 200, 200, 302, 400, 401, 404, 500, 0}[random() % 9];
      if (random() % 2 == 0) reply.headers["metadata-flavor"] = "Google";
      if (random() % 2 == 0) reply.headers["date"] = "Thu, 01 Jan 1970 00:00:00 GMT";
      for (size_t count = random() % 12; count > 0; --count)
        reply.body += parts[random() % parts.size()];
      return reply;
    };
    rig.Run(seconds(20'000));
    EXPECT_GT(rig.asked_.size(), 1000U) << cloud;
    EXPECT_THAT(rig.Of(What::kHard), IsEmpty()) << cloud;
  }
}

TEST(NoticeWatchTest, DeepAndWideAnswersDoNoHarm) {
  const std::string deep(60'000, '[');
  std::string wide = R"({"DocumentIncarnation": 1, "Events": [)";
  for (int i = 0; i < 400; ++i) {
    wide += (i > 0 ? ", " : "") + std::string(R"({"EventId": ")") + std::to_string(i) +
            R"(", "EventType": "Reboot", "ResourceType": "VirtualMachine", "Resources": ["vm"],)"
            R"("EventStatus": "Scheduled", "NotBefore": "Thu, 01 Jan 2027 00:00:00 GMT"})";
  }
  wide += "]}";
  WatchRig rig("azure");
  rig.answer_ = Site{{{"/metadata/instance/compute", {200, {}, R"({"name": "vm"})"}},
                      {"/metadata/scheduledevents", {200, {}, deep}}}};
  rig.Run(seconds(200));
  EXPECT_THAT(rig.Of(What::kTrouble), SizeIs(1));
  EXPECT_THAT(rig.changes_[0].text, HasSubstr("not what they should be"));
  rig.answer_ = Site{{{"/metadata/scheduledevents", {200, {}, wide}}}};
  rig.Run(seconds(60));
  EXPECT_LE(rig.Of(What::kSoft).size(), kNoticesMax);
  EXPECT_GT(rig.Of(What::kSoft).size(), 0U);
}

}  // namespace
}  // namespace troupe::notices
