// What user code counts, added up over processes that come, go, repeat themselves and fall silent.
#include "daemons/head/core/user_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Time kFirstReport = Time{} + seconds(100);
using enum UserMetricKind;

UserSeries Counted(double value, std::map<std::string, std::string> tags = {}) {
  return {kCounter, "requests", "asked", std::move(tags), {}, {value}};
}
UserSeries Level(double value, std::map<std::string, std::string> tags = {}) {
  return {kGauge, "depth", "waits", std::move(tags), {}, {value}};
}

class UserMetricSumsTest : public ::testing::Test {
 protected:
  UserMetricsTaken Tell(const std::string& process, uint64_t number, std::vector<UserSeries> series,
                        uint64_t life = 0) {
    return sums_.OnMetrics(now_, process, {life, number, std::move(series)});
  }
  // Of the one series that there is.
  [[nodiscard]] std::vector<double> Values() const {
    const std::vector<metrics::Family> families = sums_.Families();
    return families.size() == 1 && families[0].samples.size() == 1 ? families[0].samples[0].values
                                                                   : std::vector<double>{};
  }

  UserMetricSums sums_{"head-1", true};
  Time now_ = kFirstReport;
};

TEST_F(UserMetricSumsTest, CountersOfAllProcessesAreOneSum) {
  EXPECT_EQ(Tell("a", 1, {Counted(2)}).number, 1U);
  (void)Tell("b", 1, {Counted(3)});
  (void)Tell("a", 2, {Counted(7)});
  EXPECT_THAT(Values(), ElementsAre(10));
  sums_.OnEnded("a");
  EXPECT_THAT(Values(), ElementsAre(10)) << "what an ended process has counted stays (UM-2)";
}

TEST_F(UserMetricSumsTest, WhatIsRepeatedOrLateIsCountedOnce) {
  (void)Tell("a", 2, {Counted(5)});
  EXPECT_EQ(Tell("a", 1, {Counted(3)}).number, 2U);
  (void)Tell("a", 2, {Counted(5)});
  (void)Tell("a", 3, {Counted(5)});
  EXPECT_THAT(Values(), ElementsAre(5));
  sums_.OnEnded("a");
  EXPECT_TRUE(Tell("a", 4, {Counted(6)}).ended) << "on its way when the process was reaped";
  EXPECT_THAT(Values(), ElementsAre(5));
}

TEST_F(UserMetricSumsTest, GaugesAreOfAProcessAndGoWithIt) {
  (void)Tell("a", 1, {Level(4, {{"queue", "x"}}), Counted(1)});
  (void)Tell("b", 1, {Level(9, {{"queue", "x"}})});
  ASSERT_THAT(sums_.Families(), SizeIs(2));
  const metrics::Family depth = sums_.Families()[0];
  ASSERT_THAT(depth.samples, SizeIs(2));
  EXPECT_EQ(depth.samples[0].labels.at("troupe_process"), "a");
  EXPECT_EQ(depth.samples[0].labels.at("queue"), "x");
  sums_.OnEnded("a");
  EXPECT_THAT(sums_.Families()[0].samples, SizeIs(1));
  sums_.OnEnded("b");
  ASSERT_THAT(sums_.Families(), SizeIs(1)) << "nobody has it any more (UM-3)";
  EXPECT_EQ(sums_.Families()[0].name, "requests");
}

TEST_F(UserMetricSumsTest, HistogramsAddUpBucketByBucket) {
  const auto tell = [](std::vector<double> values) {
    return UserSeries{kHistogram, "seconds", "", {}, {0.1, 1}, std::move(values)};
  };
  (void)Tell("a", 1, {tell({1, 0, 2, 30.05})});
  (void)Tell("b", 1, {tell({0, 1, 0, 0.5})});
  (void)Tell("a", 2, {tell({1, 0, 3, 20})});  // The sum may shrink: a value was below zero.
  EXPECT_THAT(Values(), ElementsAre(1, 1, 3, 20.5));
}

TEST_F(UserMetricSumsTest, ASilentProcessComesBackInANewLifeAndLosesNothing) {
  (void)Tell("a", 1, {Counted(5), Level(1)});
  now_ = now_ + UserMetricSums::kSilence - milliseconds(1);
  sums_.OnTick(now_);
  EXPECT_THAT(sums_.Families(), SizeIs(2));
  now_ = now_ + milliseconds(1);
  sums_.OnTick(now_);
  EXPECT_THAT(Values(), ElementsAre(5)) << "its gauge is gone";
  const UserMetricsTaken taken = Tell("a", 3, {Counted(8)});
  EXPECT_TRUE(taken.ended);
  EXPECT_EQ(taken.number, 1U) << "from here it counts in its next life";
  EXPECT_FALSE(Tell("a", 4, {Counted(8 - 5), Level(2)}, 1).ended);
  EXPECT_THAT(sums_.Families()[1].samples[0].values, ElementsAre(8));
}

TEST_F(UserMetricSumsTest, WhileTheHeadWasStoppedNobodyWasSilent) {
  (void)Tell("a", 1, {Level(1)});
  now_ = now_ + seconds(60);
  sums_.OnStopped(seconds(60));
  sums_.OnTick(now_);
  EXPECT_THAT(sums_.Families(), SizeIs(1));
}

TEST_F(UserMetricSumsTest, WhatDoesNotFitIsRefusedWithAReason) {
  (void)Tell("a", 1, {Counted(1)});
  UserSeries other = Level(1);
  other.name = "requests";
  const UserMetricsTaken taken = Tell("b", 1, {other});
  EXPECT_EQ(taken.refused, 1U);
  EXPECT_THAT(taken.reason, HasSubstr("requests: another process has one of this name"));
  EXPECT_EQ(Tell("b", 2, {}).refused, 1U) << "the answer before may be lost";
  std::vector<UserSeries> bad(9, Counted(1));
  bad[0].name = "9lives";
  bad[1].name = "troupe_nodes";
  bad[2].tags = {{"a-b", ""}};
  bad[3].tags = {{"troupe_process", "x"}};
  bad[4].help = std::string(UserMetricSums::kSeriesBytesMax, 'x');
  bad[4].tags = {{"new", "x"}};
  bad[5] = {kHistogram, "h", "", {}, {1, 1}, {0, 0, 0, 0}};
  bad[6] = {kHistogram, "h", "", {}, {1}, {0, 0}};
  bad[7].name = "nan";
  bad[7].values = {std::numeric_limits<double>::quiet_NaN()};
  bad[8].values = {};
  EXPECT_EQ(Tell("c", 1, bad).refused, bad.size());
  EXPECT_THAT(Values(), ElementsAre(1));
}

TEST_F(UserMetricSumsTest, SeriesAreBoundedAndGaugesOfTheDeadMakeRoom) {
  std::vector<UserSeries> many;
  for (size_t i = 0; i < UserMetricSums::kSeriesMax; ++i)
    many.push_back(Level(1, {{"i", std::to_string(i)}}));
  EXPECT_EQ(Tell("a", 1, many).refused, 0U);
  const UserMetricsTaken full = Tell("b", 1, {Counted(1)});
  EXPECT_EQ(full.refused, 1U);
  EXPECT_THAT(full.reason, HasSubstr("10000 series"));
  sums_.OnEnded("a");
  EXPECT_EQ(Tell("b", 2, {Counted(1)}).refused, 1U) << "no more than before";
  EXPECT_THAT(Values(), ElementsAre(1));
}

TEST_F(UserMetricSumsTest, TheEndedThatAreRememberedAreBounded) {
  for (size_t i = 0; i <= UserMetricSums::kEndedMax; ++i) {
    (void)Tell("p" + std::to_string(i), 1, {Counted(1)});
    sums_.OnEnded("p" + std::to_string(i));
  }
  EXPECT_TRUE(Tell("p1", 2, {}).ended);
  EXPECT_FALSE(Tell("p0", 2, {}).ended);
  EXPECT_THAT(Values(), ElementsAre(static_cast<double>(UserMetricSums::kEndedMax + 1)));
}

TEST_F(UserMetricSumsTest, NothingIsKeptIfNobodyCanReadIt) {
  UserMetricSums off("head-1", false);
  EXPECT_FALSE(off.OnMetrics(kFirstReport, "a", {0, 1, {Counted(1)}}).wanted);
  EXPECT_THAT(off.Families(), IsEmpty());
}

// A process as pyapi/troupe/util/_metric_report.py has it: it tells what the head lacks by what it
// has heard, over links that lose, repeat and reorder, and is stopped now and then.
struct Counting {
  std::string name;
  double value = 0;
  double base = 0;
  uint64_t life = 0;
  uint64_t number = 0;
  std::map<uint64_t, double> sent;  // By number: the value that it told.

  UserMetrics Next() {
    sent[++number] = value;
    return {life, number, {Counted(value - base)}};
  }
  void Hear(const UserMetricsTaken& taken) {
    if (!taken.ended || taken.life != life) return;
    base = sent.contains(taken.number) ? sent.at(taken.number) : 0;
    ++life;
  }
};

TEST(UserMetricSumsSim, EveryCountIsAddedOnceWhateverIsLost) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    UserMetricSums sums("head", true);
    std::vector<Counting> processes(3);
    std::vector<std::pair<size_t, UserMetrics>> on_the_way;
    Time now = kFirstReport;
    double expected = 0;
    for (size_t i = 0; i < processes.size(); ++i) processes[i].name = "p" + std::to_string(i);
    const auto deliver = [&](size_t i, const UserMetrics& told, bool answered) {
      const UserMetricsTaken taken = sums.OnMetrics(now, processes[i].name, told);
      if (answered) processes[i].Hear(taken);
    };
    for (int event = 0; event < 200; ++event) {
      const size_t i = random() % processes.size();
      switch (random() % 6) {
        case 0:
        case 1:
          processes[i].value += 1;
          expected += 1;
          break;
        case 2:
          on_the_way.emplace_back(i, processes[i].Next());
          break;
        case 3:
        case 4: {
          if (on_the_way.empty()) break;
          const size_t at = random() % on_the_way.size();
          deliver(on_the_way[at].first, on_the_way[at].second, random() % 2 == 0);
          if (random() % 2 == 0) on_the_way.erase(on_the_way.begin() + static_cast<long>(at));
          break;
        }
        default:
          now = now + seconds(random() % 8);
          sums.OnTick(now);
      }
    }
    for (int round = 0; round < 2; ++round) {  // All is well again; the second tells the next life.
      for (size_t i = 0; i < processes.size(); ++i) deliver(i, processes[i].Next(), true);
    }
    double sum = 0;
    for (const metrics::Family& family : sums.Families()) sum += family.samples[0].values[0];
    ASSERT_EQ(sum, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::daemons
