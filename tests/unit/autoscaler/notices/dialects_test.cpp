// What each cloud's service says, and what is made of it.
#include "autoscaler/notices/notice_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/autoscaler/notices/watch_rig.h"

namespace troupe::notices {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Site;
using ::testing::SizeIs;
using testing::WatchRig;
using What = NoticeChange::What;

const std::string kMeta = "/latest/meta-data/";

// ---- AWS ----

TEST(AwsTest, EveryQuestionCarriesATokenThatIsRenewedBeforeItsEnd) {
  WatchRig rig("aws");
  rig.answer_ = Site{};
  rig.Run(seconds(7200));
  int tokens = 0;
  for (const HttpRequest& request : rig.asked_) {
    ASSERT_THAT(request.headers, SizeIs(1));
    if (request.method == "PUT") {
      ++tokens;
      EXPECT_EQ(request.url, "/latest/api/token");
      EXPECT_EQ(request.headers[0].second, "3600");
    } else {
      EXPECT_EQ(request.headers[0].second, "token");
    }
  }
  EXPECT_EQ(tokens, 3);
}

TEST(AwsTest, AForgottenTokenIsAskedForOnceMore) {
  WatchRig rig("aws");
  int valid = 1;
  int given = 0;
  rig.answer_ = [&](const HttpRequest& request) -> Result<HttpReply> {
    if (request.method == "PUT") return HttpReply{200, {}, "t" + std::to_string(++given)};
    const bool good = request.headers[0].second == "t" + std::to_string(valid);
    return HttpReply{good ? 404 : 401};
  };
  rig.Settle();
  EXPECT_EQ(given, 1);
  valid = 2;  // The service was restarted.
  rig.Pass(seconds(6));
  rig.Settle();
  EXPECT_EQ(given, 2);
  valid = 0;  // It takes none: that is trouble, not a loop.
  for (int round = 0; round < 3; ++round) {
    rig.Pass(seconds(30));
    EXPECT_LT(rig.Settle(), 25);
  }
  ASSERT_THAT(rig.Of(What::kTrouble), SizeIs(1));
  EXPECT_THAT(rig.changes_[0].text, HasSubstr("tokens"));
}

TEST(AwsTest, ATokenThatWouldBreakAHeaderIsNone) {
  WatchRig rig("aws");
  rig.answer_ = [&](const HttpRequest& request) -> Result<HttpReply> {
    return HttpReply{200, {}, request.method == "PUT" ? "a\r\nX: y" : "{}"};
  };
  rig.Run(seconds(60));
  for (const HttpRequest& request : rig.asked_) EXPECT_EQ(request.method, "PUT");
}

TEST(AwsTest, AnInterruptionIsHardWhateverItsTime) {
  for (const auto& [time, left] :
       std::map<std::string, Duration>{{"2026-01-01T00:01:30Z", seconds(90)},
                                       {"2025-12-31T00:00:00Z", seconds(0)},
                                       {"2038-01-01T00:00:00Z", seconds(120)},
                                       {"soon", seconds(0)}}) {
    WatchRig rig("aws");
    rig.answer_ = Site{{{kMeta + "spot/instance-action",
                         {200, {}, R"({"action": "terminate", "time": ")" + time + "\"}"}}}};
    rig.Settle();
    ASSERT_THAT(rig.changes_, SizeIs(1)) << time;
    EXPECT_EQ(rig.changes_[0].what, What::kHard);
    EXPECT_EQ(rig.changes_[0].kind, NoticeKind::kPreempt);
    EXPECT_EQ(rig.changes_[0].deadline, rig.now().now + left) << time;
    EXPECT_EQ(rig.changes_[0].text, "terminate at " + time);
  }
}

TEST(AwsTest, TheOldFormOfANoticeIsANotice) {
  WatchRig rig("aws");
  Site site{{{kMeta + "spot/termination-time", {200, {}, "2026-01-01T00:02:00Z\n"}}}};
  rig.answer_ = site;
  rig.Settle();
  EXPECT_THAT(rig.Of(What::kHard), SizeIs(1));
  // Both are one notice.
  site.at[kMeta + "spot/instance-action"] = {
      200, {}, R"({"action": "terminate", "time": "2026-01-01T00:02:00Z"})"};
  rig.answer_ = site;
  rig.Run(seconds(30));
  EXPECT_THAT(rig.changes_, SizeIs(1));
  WatchRig other("aws");
  other.answer_ = Site{{{kMeta + "spot/termination-time", {200, {}, "not set"}}}};
  other.Run(seconds(30));
  EXPECT_THAT(other.changes_, IsEmpty());
}

TEST(AwsTest, ARebalanceIsSoftAndAFalseAlarmGoesAway) {
  WatchRig rig("aws");
  rig.answer_ = Site{{{kMeta + "events/recommendations/rebalance",
                       {200, {}, R"({"noticeTime": "2025-12-31T23:59:00Z"})"}}}};
  rig.Run(seconds(3600));
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kSoft);
  EXPECT_EQ(rig.changes_[0].kind, NoticeKind::kRebalance);
  EXPECT_EQ(rig.changes_[0].deadline, Time::Never());
  rig.answer_ = Site{};
  rig.Run(seconds(10));
  ASSERT_THAT(rig.changes_, SizeIs(2));
  EXPECT_EQ(rig.changes_[1].what, What::kWithdrawn);
  EXPECT_FALSE(rig.changes_[1].hard);
}

TEST(AwsTest, MaintenanceIsSoftUntilItIsNear) {
  WatchRig rig("aws");
  rig.answer_ = Site{{{kMeta + "events/maintenance/scheduled", {200, {}, R"([
      {"NotBefore": "1 Jan 2026 01:00:00 GMT", "Code": "system-reboot", "EventId": "i-1",
       "State": "active"},
      {"NotBefore": "1 Jan 2026 00:01:00 GMT", "Code": "system-reboot", "EventId": "i-0",
       "State": "completed"}, 7, {"EventId": "i-2", "State": "active"}])"}}}};
  rig.Settle();
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kSoft);
  const Time deadline = rig.now().now + seconds(3600);
  // Also if the service has gone meanwhile, and at the time, not at the next question.
  rig.answer_ = [](const HttpRequest&) -> Result<HttpReply> {
    return Error{ErrorCode::kUnavailable, "gone"};
  };
  rig.Run(seconds(3299));
  EXPECT_THAT(rig.Of(What::kHard), IsEmpty());
  rig.Run(seconds(1));
  ASSERT_THAT(rig.Of(What::kHard), SizeIs(1));
  EXPECT_EQ(rig.Of(What::kHard)[0].deadline, deadline);
}

TEST(AwsTest, AnAutoScalingGroupThatTerminatesIsHard) {
  WatchRig rig("aws");
  Site site{{{kMeta + "autoscaling/target-lifecycle-state", {200, {}, "InService"}}}};
  rig.answer_ = site;
  rig.Settle();
  EXPECT_THAT(rig.changes_, IsEmpty());
  site.at.begin()->second.body = "Terminated";
  rig.answer_ = site;
  rig.Run(seconds(6));
  EXPECT_THAT(rig.Of(What::kHard), SizeIs(1));
}

// ---- GCP ----

HttpReply Google(const std::string& body, const std::string& etag = "1f") {
  return {200, {{"metadata-flavor", "Google"}, {"etag", etag}}, body};
}
const std::string kInstance = "/computeMetadata/v1/instance/";

TEST(GcpTest, APreemptionIsHardAndIsWaitedFor) {
  WatchRig rig("gcp");
  Site site{{{kInstance + "preempted", Google("FALSE", "abc1")},
             {kInstance + "maintenance-event", Google("NONE")}}};
  rig.answer_ = site;
  rig.Run(seconds(5));
  EXPECT_THAT(rig.changes_, IsEmpty());
  EXPECT_EQ(rig.asked_.front().headers[0].second, "Google");
  const HttpRequest& hanging = rig.asked_.back();
  EXPECT_EQ(hanging.url,
            kInstance + "preempted?wait_for_change=true&last_etag=abc1&timeout_sec=10");
  EXPECT_GT(hanging.limit, seconds(10));
  site.at[kInstance + "preempted"] = Google("TRUE");
  rig.answer_ = site;
  rig.Pass(seconds(2));
  rig.Settle();
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kHard);
  EXPECT_EQ(rig.changes_[0].deadline, rig.now().now + seconds(30));
}

TEST(GcpTest, WhoDoesNotSayThatItIsGoogleIsNotBelieved) {
  WatchRig rig("gcp");
  rig.answer_ = Site{{{kInstance + "preempted", {200, {}, "TRUE"}},
                      {kInstance + "maintenance-event", {200, {}, "NONE"}}}};
  rig.Run(seconds(60));
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kTrouble);
}

TEST(GcpTest, AnEtagThatWouldChangeTheQuestionIsNotUsed) {
  WatchRig rig("gcp");
  rig.answer_ = Site{{{kInstance + "preempted", Google("FALSE", "x&alt=json")},
                      {kInstance + "maintenance-event", Google("NONE")}}};
  rig.Run(seconds(30));
  for (const HttpRequest& request : rig.asked_)
    EXPECT_EQ(request.url.find('?'), std::string::npos) << request.url;
}

TEST(GcpTest, AMigrationIsSoftAndAnEndOfTheHostHard) {
  WatchRig rig("gcp");
  Site site{{{kInstance + "preempted", Google("FALSE")},
             {kInstance + "maintenance-event", Google("MIGRATE_ON_HOST_MAINTENANCE")}}};
  rig.answer_ = site;
  rig.Run(seconds(120));
  ASSERT_THAT(rig.changes_, SizeIs(1));
  EXPECT_EQ(rig.changes_[0].what, What::kSoft);
  WatchRig other("gcp");
  site.at[kInstance + "maintenance-event"] = Google("TERMINATE_ON_HOST_MAINTENANCE");
  other.answer_ = site;
  other.Settle();
  ASSERT_THAT(other.Of(What::kHard), SizeIs(1));
  EXPECT_EQ(other.changes_[0].kind, NoticeKind::kMaintenance);
}

// ---- Azure ----

class AzureTest : public ::testing::Test {
 protected:
  static std::string Event(const std::string& id, const std::string& type,
                           const std::string& resources,
                           const std::string& not_before = "Thu, 01 Jan 2026 00:00:40 GMT",
                           const std::string& status = "Scheduled") {
    return R"({"EventId": ")" + id + R"(", "EventType": ")" + type +
           R"(", "ResourceType": "VirtualMachine", "Resources": )" + resources +
           R"(, "EventStatus": ")" + status + R"(", "NotBefore": ")" + not_before + "\"}";
  }
  void Events(const std::string& events) {
    site_.at["/metadata/scheduledevents"] = {200,
                                             {},
                                             R"({"DocumentIncarnation": )" +
                                                 std::to_string(++incarnation_) +
                                                 R"(, "Events": [)" + events + "]}"};
    rig_.answer_ = [this](const HttpRequest& request) -> Result<HttpReply> {
      if (request.method == "POST") return posted_.push_back(request.body), HttpReply{200};
      return site_(request);
    };
  }

  WatchRig rig_{"azure"};
  Site site_{{{"/metadata/instance/compute", {200, {}, R"({"name": "vm0"})"}}}};
  int incarnation_ = 0;
  std::vector<std::string> posted_;
};

TEST_F(AzureTest, OnlyEventsOfThisMachineCount) {
  Events(Event("a", "Preempt", R"(["vm1"])") + "," + Event("b", "Reboot", R"(["other", 3])") + "," +
         Event("c", "Party", R"(["vm0"])") + ",7,{}");
  rig_.Run(seconds(30));
  EXPECT_THAT(rig_.changes_, IsEmpty());
  for (const HttpRequest& request : rig_.asked_) EXPECT_EQ(request.headers[0].second, "true");
  Events(Event("d", "Preempt", R"(["vm1", "VM0"])", "Thu, 01 Jan 2026 00:01:10 GMT"));
  rig_.Run(seconds(2));
  ASSERT_THAT(rig_.Of(What::kHard), SizeIs(1));
  EXPECT_EQ(rig_.changes_[0].kind, NoticeKind::kPreempt);
}

TEST_F(AzureTest, WhatHasBegunIsNow) {
  Events(Event("a", "Preempt", R"(["vm0"])", "", "Started"));
  rig_.Settle();
  ASSERT_THAT(rig_.changes_, SizeIs(1));
  EXPECT_EQ(rig_.changes_[0].deadline, rig_.now().now);
}

TEST_F(AzureTest, ARestartIsHardWhenItIsNearAndAFreezeNever) {
  Events(Event("a", "Redeploy", R"(["vm0"])", "Thu, 01 Jan 2026 00:10:00 GMT") + "," +
         Event("b", "Freeze", R"(["vm0"])"));
  rig_.Run(seconds(250));
  EXPECT_THAT(rig_.Of(What::kSoft), SizeIs(2));
  EXPECT_THAT(rig_.Of(What::kHard), IsEmpty());
  rig_.Run(seconds(60));
  ASSERT_THAT(rig_.Of(What::kHard), SizeIs(1));
  EXPECT_EQ(rig_.Of(What::kHard)[0].kind, NoticeKind::kMaintenance);
}

TEST_F(AzureTest, AnEventOfThisMachineAloneIsAcknowledgedOnceWhenItHasDrained) {
  Events(Event("mine", "Preempt", R"(["vm0"])") + "," +
         Event("ours", "Terminate", R"(["vm0", "vm1"])"));
  rig_.Run(seconds(10));
  EXPECT_THAT(posted_, IsEmpty());
  rig_.watch_.Drained();
  rig_.Run(seconds(10));
  EXPECT_THAT(posted_, ::testing::ElementsAre(R"({"StartRequests":[{"EventId":"mine"}]})"));
}

TEST_F(AzureTest, APreemptionThatGoesAwayIsSaid) {
  Events(Event("a", "Preempt", R"(["vm0"])"));
  rig_.Run(seconds(3));
  Events("");
  rig_.Run(seconds(3));
  ASSERT_THAT(rig_.changes_, SizeIs(2));
  EXPECT_EQ(rig_.changes_[1].what, What::kWithdrawn);
  EXPECT_TRUE(rig_.changes_[1].hard);
}

TEST_F(AzureTest, TheFirstAnswerMayTakeTwoMinutes) {
  rig_.answer_ = [](const HttpRequest&) -> Result<HttpReply> {
    return Error{ErrorCode::kDeadlineExceeded, "no reply in time"};
  };
  rig_.Run(seconds(140));
  EXPECT_THAT(rig_.changes_, IsEmpty());
  rig_.Run(seconds(60));
  EXPECT_THAT(rig_.Of(What::kTrouble), SizeIs(1));
}

}  // namespace
}  // namespace troupe::notices
