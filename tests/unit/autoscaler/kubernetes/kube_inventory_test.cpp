#include "autoscaler/kubernetes/kube_inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autoscaler/fleet_census.h"

namespace troupe::kubernetes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Time kStart{1'000'000'000'000};

KubePod Pod(const std::string& name, int version, const std::string& node = "n") {
  KubePod pod;
  pod.name = name;
  pod.uid = "uid-" + name;
  pod.version = std::to_string(version);
  pod.node = node;
  pod.started = !node.empty();
  pod.tags = {{kLifeTag, "mine"}};
  return pod;
}

KubeEvent Seen(KubePod pod) {
  KubeEvent event;
  event.pod = std::move(pod);
  return event;
}

KubeEvent Deleted(KubePod pod) {
  KubeEvent event = Seen(std::move(pod));
  event.kind = KubeEvent::Kind::kDeleted;
  return event;
}

class KubeInventoryTest : public ::testing::Test {
 protected:
  std::vector<std::string> Shown(Time now = kStart) {
    std::vector<std::string> shown;
    for (const Machine& machine : inventory_.Take(now)) {
      std::string line = machine.id + " " + machine.state;
      if (machine.preempted_in_s)
        line += " in " + std::to_string(static_cast<int>(*machine.preempted_in_s));
      shown.push_back(line + (machine.ended.empty() ? "" : " " + machine.ended));
    }
    return shown;
  }
  std::string Verdict(Time now, const std::string& name = "a") {
    const auto verdict = inventory_.Judge(now, {name}, kStart + seconds(100));
    if (!verdict) return "wait";
    return verdict->ok() ? "made" : verdict->error().message;
  }
  void Taint(const std::string& key, const std::string& effect, Time now = kStart) {
    KubeEvent event;
    event.node = KubeNode{"n", {{key, "", effect}}};
    inventory_.Told(now, event);
  }
  KubeInventory inventory_{"mine"};
};

TEST_F(KubeInventoryTest, WhatWasMadeIsThereBeforeItIsTold) {
  inventory_.Made(kStart, Pod("a", 5, ""));
  EXPECT_THAT(Shown(), ElementsAre("a pending"));
  inventory_.ListedPods(kStart, 0, {}, "4");  // Older than its making.
  EXPECT_THAT(Shown(), ElementsAre("a pending"));
  inventory_.Told(kStart, Seen(Pod("a", 6)));
  EXPECT_THAT(Shown(), ElementsAre("a running"));
  inventory_.ListedPods(kStart, 0, {}, "9");
  EXPECT_THAT(Shown(), ElementsAre("a stopping it was deleted"));
  EXPECT_THAT(Shown(), IsEmpty());
}

TEST_F(KubeInventoryTest, AListThatIsNewerThanWhatWasMadeCounts) {
  inventory_.Made(kStart, Pod("a", 5, ""));
  inventory_.ListedPods(kStart, 0, {}, "6");
  EXPECT_THAT(Shown(), ElementsAre("a stopping it was deleted"));
}

TEST_F(KubeInventoryTest, WhatIsOlderChangesNothing) {
  inventory_.Told(kStart, Seen(Pod("a", 6)));
  inventory_.Told(kStart, Seen(Pod("a", 5, "")));
  EXPECT_THAT(Shown(), ElementsAre("a running"));
  inventory_.Told(kStart, Deleted(Pod("a", 7)));
  inventory_.Made(kStart, Pod("a", 4, ""));  // The answer comes last.
  inventory_.Told(kStart, Seen(Pod("a", 5, "")));
  EXPECT_THAT(Shown(), ElementsAre("a stopping it was deleted"));
  inventory_.Made(kStart, Pod("a", 4, ""));  // And even later.
  EXPECT_THAT(Shown(), ElementsAre("a stopping it was deleted"));
  KubePod next = Pod("a", 9);
  next.uid = "another";
  inventory_.Told(kStart, Seen(next));
  EXPECT_THAT(Shown(), ElementsAre("a running"));
}

TEST_F(KubeInventoryTest, OneThatIsEndedIsNotToldOfAgain) {
  inventory_.Told(kStart, Seen(Pod("a", 1)));
  EXPECT_FALSE(inventory_.EndOf(kStart, "a").asked);
  EXPECT_EQ(inventory_.EndOf(kStart, "a").uid, "uid-a");
  inventory_.Ending(kStart, "a");
  EXPECT_FALSE(inventory_.EndOf(kStart, "a").asked);  // That is not seen yet.
  KubePod ending = Pod("a", 2);
  ending.deletion_s = 7;
  ending.deletion_grace_s = 30;
  inventory_.Told(kStart, Seen(ending));
  EXPECT_TRUE(inventory_.EndOf(kStart, "a").asked);
  EXPECT_EQ(inventory_.EndOf(kStart, "a").grace_s, kEndGrace_s);
  EXPECT_FALSE(inventory_.EndOf(kStart + seconds(60), "a").asked);
  EXPECT_EQ(inventory_.EndOf(kStart + seconds(60), "a").grace_s, 0);
  EXPECT_THAT(Shown(), ElementsAre("a stopping"));
  inventory_.Told(kStart, Deleted(ending));
  EXPECT_THAT(Shown(), IsEmpty());
}

TEST_F(KubeInventoryTest, AnothersDeletionIsANotice) {
  KubePod pod = Pod("a", 1);
  pod.deletion_s = 1000;
  pod.deletion_grace_s = 30;
  inventory_.Told(kStart, Seen(pod));
  EXPECT_THAT(Shown(kStart + seconds(10)), ElementsAre("a running in 20"));
  KubePod late = Pod("b", 1);
  late.deletion_s = 1000;
  late.deletion_grace_s = 30;
  inventory_.ListedPods(kStart, 995, {pod, late}, "5");  // By this host's clock.
  EXPECT_THAT(Shown(), ElementsAre("a running in 5", "b running in 5"));
  pod.tags[kLifeTag] = "others";
  pod.version = "2";
  inventory_.Told(kStart, Seen(pod));
  EXPECT_THAT(Shown(), testing::Contains(HasSubstr("a stopping")));
}

TEST_F(KubeInventoryTest, ADisruptionAndATaintAreNotices) {
  KubePod pod = Pod("a", 1);
  pod.disruption = "EvictionByEvictionAPI";
  inventory_.Told(kStart, Seen(pod));
  EXPECT_THAT(Shown(kStart + seconds(10)), ElementsAre("a running in 20"));
  inventory_.Told(kStart, Seen(Pod("b", 1)));
  Taint("cloud.google.com/impending-node-termination", "NoSchedule");
  EXPECT_THAT(Shown(kStart + seconds(1)), ElementsAre("a running in 14", "b running in 14"));
  Taint("cloud.google.com/impending-node-termination", "NoSchedule", kStart + seconds(5));
  EXPECT_THAT(Shown(kStart + seconds(5)), ElementsAre("a running in 10", "b running in 10"));
  Taint("node.kubernetes.io/unreachable", "NoExecute");
  EXPECT_THAT(Shown(), ElementsAre("a running in 30", "b running"));
  Taint("node.kubernetes.io/out-of-service", "NoExecute");
  EXPECT_THAT(Shown(), ElementsAre("a running in 0", "b running in 0"));
}

TEST_F(KubeInventoryTest, TolerationsSayHowLong) {
  KubePod pod = Pod("a", 1);
  inventory_.Told(kStart, Seen(pod));
  Taint("maintenance", "NoSchedule");
  EXPECT_THAT(Shown(), ElementsAre("a running"));
  Taint("maintenance", "NoExecute");
  EXPECT_THAT(Shown(), ElementsAre("a running in 30"));
  pod.version = "2";
  pod.tolerations = {{"maintenance", "", "NoExecute", true, 60}};
  inventory_.Told(kStart, Seen(pod));
  EXPECT_THAT(Shown(), ElementsAre("a running in 90"));
  pod.version = "3";
  pod.tolerations[0].seconds.reset();
  inventory_.Told(kStart, Seen(pod));
  EXPECT_THAT(Shown(), ElementsAre("a running"));
}

TEST_F(KubeInventoryTest, OneThatEndsIsToldWithItsLastWords) {
  KubePod pod = Pod("a", 2);
  pod.ended = true;
  pod.end = "exit code 1";
  pod.ended_container = "troupe";
  inventory_.Told(kStart, Seen(pod));
  KubePod other = pod;
  other.name = "b";
  other.uid = "uid-b";
  other.tags[kLifeTag] = "others";
  inventory_.Told(kStart, Seen(other));
  EXPECT_THAT(Shown(), ElementsAre("a running", "b stopping exit code 1"));
  const std::vector<WordsAsked> asked = inventory_.TakeWords(kStart);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].container, "troupe");
  EXPECT_THAT(inventory_.TakeWords(kStart), IsEmpty());
  inventory_.LastWords("uid-a", "no disk");
  EXPECT_THAT(Shown(), testing::Contains("a stopping exit code 1; its last words: no disk"));
}

TEST_F(KubeInventoryTest, WhatAnotherHasLeftIsTakenAway) {
  KubePod pod = Pod("a", 2);
  pod.ended = true;
  inventory_.Told(kStart, Seen(pod));
  KubePod other = pod;
  other.name = "b";
  other.uid = "uid-b";
  other.tags[kLifeTag] = "others";
  inventory_.Told(kStart, Seen(other));
  EXPECT_THAT(inventory_.TakeRelics(kStart), IsEmpty());
  EXPECT_THAT(inventory_.TakeRelics(kStart + kRelicAge), ElementsAre("b"));
  EXPECT_THAT(inventory_.TakeRelics(kStart + kRelicAge), IsEmpty());
  EXPECT_THAT(inventory_.TakeRelics(kStart + kRelicAge + kEndAgain), ElementsAre("b"));
}

TEST_F(KubeInventoryTest, WordsAreNotWaitedForWithoutEnd) {
  KubePod pod = Pod("a", 2);
  pod.ended = true;
  pod.end = "exit code 1";
  pod.ended_container = "troupe";
  inventory_.Told(kStart, Seen(pod));
  (void)inventory_.TakeWords(kStart);
  EXPECT_THAT(Shown(kStart + kWordsPatience), ElementsAre("a stopping exit code 1"));
}

TEST_F(KubeInventoryTest, AnOrderIsMadeWhenItsPodRuns) {
  inventory_.Hide("a");
  inventory_.Made(kStart, Pod("a", 1, ""));
  EXPECT_THAT(Shown(), IsEmpty());
  EXPECT_EQ(Verdict(kStart), "wait");
  inventory_.Told(kStart, Seen(Pod("a", 2)));
  EXPECT_EQ(Verdict(kStart), "made");
  inventory_.Show("a");
  EXPECT_THAT(Shown(), ElementsAre("a running"));
}

TEST_F(KubeInventoryTest, AnOrderWithoutAPlaceIsGivenUp) {
  KubePod pod = Pod("a", 2, "");
  pod.unschedulable = "0/3 nodes are available";
  inventory_.Hide("a");
  inventory_.Told(kStart, Seen(pod));
  EXPECT_EQ(Verdict(kStart + seconds(99)), "wait");
  EXPECT_EQ(Verdict(kStart + seconds(100)),
            "no capacity: pod a had no place: 0/3 nodes are available");
  EXPECT_EQ(inventory_.Judge(kStart + seconds(100), {"a"}, kStart)->error().code,
            ErrorCode::kResourceExhausted);
}

TEST_F(KubeInventoryTest, AnOrderThatIsStuckSaysWhy) {
  KubePod pod = Pod("a", 2);
  pod.started = false;
  pod.stuck = "ErrImagePull";
  pod.stuck_container = "troupe";
  pod.stuck_message = "timeout";
  inventory_.Told(kStart, Seen(pod));
  EXPECT_EQ(Verdict(kStart), "wait");
  pod.version = "3";
  pod.stuck = "ImagePullBackOff";
  inventory_.Told(kStart + seconds(50), Seen(pod));
  EXPECT_EQ(Verdict(kStart + seconds(59)), "wait");
  EXPECT_EQ(Verdict(kStart + seconds(60)), "container troupe of pod a: ImagePullBackOff: timeout");
  pod.version = "4";
  pod.stuck_message = "manifest unknown";
  inventory_.Told(kStart, Seen(pod));
  EXPECT_EQ(inventory_.Judge(kStart, {"a"}, kStart)->error().code, ErrorCode::kInvalidArgument);
  pod.version = "5";
  pod.stuck = "CreateContainerConfigError";
  inventory_.Told(kStart, Seen(pod));
  EXPECT_EQ(Verdict(kStart + seconds(9)), "wait");
  EXPECT_THAT(Verdict(kStart + seconds(10)), HasSubstr("CreateContainerConfigError"));
}

TEST_F(KubeInventoryTest, AnOrderWhosePodIsDeletedIsOver) {
  inventory_.Hide("a");
  inventory_.Told(kStart, Seen(Pod("a", 1, "")));
  KubePod gone = Pod("a", 2, "");
  gone.disruption = "PreemptionByScheduler";
  inventory_.Told(kStart, Deleted(gone));
  EXPECT_EQ(Verdict(kStart), "pod a has gone: it was deleted: PreemptionByScheduler");
  inventory_.Show("a");
  EXPECT_THAT(Shown(), IsEmpty());
}

}  // namespace
}  // namespace troupe::kubernetes
