#include "autoscaler/spot_schedule.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

SpotEvent Add(Duration at, const std::string& pool, int count) {
  SpotEvent event;
  event.at = at;
  event.pool = pool;
  event.count = count;
  return event;
}

SpotEvent Kill(Duration at, const std::string& pool, const std::string& node) {
  SpotEvent event;
  event.at = at;
  event.kind = SpotEvent::Kind::kKill;
  event.pool = pool;
  event.node = node;
  return event;
}

TEST(SpotScheduleTest, EventsComeOnceAndInOrderOfTime) {
  SpotSchedule schedule(
      {Kill(seconds(9), "spot", "spot-2"), Add(seconds(5), "spot", 2), Add(seconds(5), "b", 1)});
  EXPECT_EQ(schedule.next(), seconds(5));
  EXPECT_TRUE(schedule.TakeDue(milliseconds(4999)).empty());
  const std::vector<SpotEvent> due = schedule.TakeDue(seconds(5));
  ASSERT_EQ(due.size(), 2u);
  EXPECT_EQ(due[0].pool, "spot");
  EXPECT_EQ(due[1].pool, "b");
  EXPECT_TRUE(schedule.TakeDue(seconds(5)).empty());
  EXPECT_EQ(schedule.next(), seconds(9));
  EXPECT_EQ(schedule.TakeDue(seconds(100)).size(), 1u);
  EXPECT_EQ(schedule.next(), std::nullopt);
}

TEST(SpotScheduleTest, EventsMayCountFromWhenTheTrainingRuns) {
  SpotEvent late = Add(seconds(2), "spot", 1);
  late.after_running = true;
  SpotEvent later = Kill(seconds(4), "spot", "spot-1");
  later.after_running = true;
  SpotSchedule schedule({later, late, Add(seconds(0), "spot", 1), Add(seconds(33), "b", 1)});
  EXPECT_EQ(schedule.TakeDue(seconds(30)).size(), 1u);  // However long the training needs.
  EXPECT_EQ(schedule.next(), seconds(33));
  schedule.TrainingRuns(seconds(30));
  EXPECT_EQ(schedule.next(), seconds(32));
  EXPECT_EQ(schedule.TakeDue(seconds(32)).size(), 1u);
  EXPECT_EQ(schedule.OfferOf("spot"), 2);
  const std::vector<SpotEvent> due = schedule.TakeDue(seconds(34));
  ASSERT_EQ(due.size(), 2u);
  EXPECT_EQ(due[0].pool, "b");
  EXPECT_EQ(due[1].node, "spot-1");
  EXPECT_EQ(schedule.next(), std::nullopt);
}

TEST(SpotScheduleTest, OfferFollowsTheEventsAndIsUnlimitedWithoutThem) {
  SpotSchedule schedule({Add(seconds(5), "spot", 2), Kill(seconds(9), "spot", "spot-1"),
                         Kill(seconds(10), "free", "free-1")});
  EXPECT_EQ(schedule.OfferOf("spot"), 0);
  EXPECT_EQ(schedule.OfferOf("free"), std::nullopt);
  schedule.TakeDue(seconds(5));
  EXPECT_EQ(schedule.OfferOf("spot"), 2);
  schedule.TakeDue(seconds(20));
  EXPECT_EQ(schedule.OfferOf("spot"), 1);
  EXPECT_EQ(schedule.OfferOf("free"), std::nullopt);
}

}  // namespace
}  // namespace troupe
