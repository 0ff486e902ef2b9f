// Records over a store that fails, comes back, or comes back empty.
#include "daemons/head/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordsTest : public ::testing::Test {
 protected:
  RecordsTest() {
    records_.Mark();
    Settle();
  }
  ~RecordsTest() override { lane_.Stop(); }

  void Settle() { ASSERT_TRUE(SettleLane(lane_, transport_)) << "the store is stuck"; }
  // What is due is done.
  void Pass(Duration d) {
    for (const Time end = clock_.Now() + d; clock_.Now() < end;) {
      const Time until = clock_.Now() + milliseconds(100);
      while (transport_.RunTimer(until)) Settle();
      Settle();
    }
  }
  void Put(const std::string& key, const std::string& value) {
    records_.Put(key, value);
    truth_[key] = value;
  }
  void Delete(const std::string& key) {
    records_.Delete(key);
    truth_.erase(key);
  }
  void DeletePrefix(const std::string& prefix) {
    records_.DeletePrefix(prefix);
    std::erase_if(truth_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  }
  // All that the store has, but for the mark.
  [[nodiscard]] std::map<std::string, std::string> Stored() {
    std::map<std::string, std::string> all;
    for (const char* prefix : {"a", "b", "c", "job/", "k/", "large"}) {
      Result<std::map<std::string, std::string>> some = store_.List(prefix);
      if (some.ok()) all.merge(*some);
    }
    return all;
  }
  void Lose() {
    for (const char* prefix : {"a", "b", "c", "head/", "job/", "k/"})
      ASSERT_TRUE(store_.DeletePrefix(prefix).ok());
  }
  void Note(const std::string& what) {
    records_.WhenKept(what, [this, what] { noted_.push_back(what); });
  }

  FakeClock clock_;
  ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
  std::map<std::string, std::string> truth_;  // What is to be kept.
  size_t refills_ = 0;
  Records records_{&transport_.loop(), &lane_, &store_, seconds(1'000'000), [this] {
                     ++refills_;
                     for (const auto& [key, value] : truth_) records_.Put(key, value);
                   }};
  std::vector<std::string> noted_;
};

TEST_F(RecordsTest, WhatIsPromisedIsKeptBefore) {
  Note("nothing to keep");
  EXPECT_THAT(noted_, ElementsAre("nothing to keep"));
  Put("a", "1");
  records_.WhenKept([this] { EXPECT_EQ(Stored(), truth_); });
  Note("a");
  EXPECT_THAT(noted_, ElementsAre("nothing to keep"));
  Settle();
  EXPECT_THAT(noted_, ElementsAre("nothing to keep", "a"));
}

TEST_F(RecordsTest, AStoreThatIsAwayGetsTheNewestOfEachWhenItIsBack) {
  Put("a", "1");
  Put("b", "1");
  Settle();
  store_.SetAvailable(false);
  Put("a", "2");
  Note("first");
  Settle();
  Put("a", "3");
  Delete("b");
  Put("c", "1");
  Note("first");  // The request again.
  Note("second");
  Pass(seconds(3));
  EXPECT_THAT(noted_, IsEmpty());
  store_.SetAvailable(true);
  Pass(seconds(1));
  EXPECT_EQ(Stored(), truth_);
  EXPECT_THAT(noted_, ElementsAre("first", "second"));
  EXPECT_EQ(refills_, 0);
}

TEST_F(RecordsTest, AStoreThatCameBackEmptyIsFilledBeforeAnythingIsPromised) {
  Put("a", "1");
  Put("b", "1");
  Settle();
  store_.SetAvailable(false);
  Put("c", "1");
  records_.WhenKept([this] { EXPECT_EQ(Stored(), truth_); });
  Note("c");
  Settle();
  store_.SetAvailable(true);
  Lose();
  Pass(seconds(1));
  EXPECT_THAT(noted_, ElementsAre("c"));
  EXPECT_EQ(refills_, 1);
}

TEST_F(RecordsTest, ALossThatNobodyElseHasSeenIsNoticed) {
  Put("a", "1");
  Settle();
  Lose();
  Pass(Records::kLook + milliseconds(200));
  EXPECT_EQ(Stored(), truth_);
  EXPECT_EQ(refills_, 1);
  Pass(seconds(10));
  EXPECT_EQ(refills_, 1);
}

// The next head has read them, and writes its own mark only when it knows that they are there.
TEST_F(RecordsTest, ALossSinceTheRecordsWereReadIsNoticed) {
  Put("a", "1");
  Settle();
  for (const bool lost : {false, true}) {
    size_t refills = 0;
    std::optional<Records> next;
    next.emplace(&transport_.loop(), &lane_, &store_, seconds(1'000'000), [&] {
      ++refills;
      next->Put("a", "1");
    });
    if (lost) Lose();
    next->Watch();
    Settle();
    EXPECT_EQ(refills, lost ? 1U : 0U);
    EXPECT_EQ(Stored(), truth_);
  }
}

TEST_F(RecordsTest, APrefixIsGoneAndWhatCameAfterItIsNot) {
  Put("job/1/spec", "1");
  Put("job/10/spec", "1");
  DeletePrefix("job/1/");
  Put("job/1/state", "2");
  Settle();
  EXPECT_EQ(Stored(), truth_);
  store_.SetAvailable(false);
  Put("job/1/spec", "3");
  Settle();
  DeletePrefix("job/1/");
  Put("job/1/spec", "4");
  store_.SetAvailable(true);
  Pass(seconds(1));
  EXPECT_EQ(Stored(),
            (std::map<std::string, std::string>{{"job/1/spec", "4"}, {"job/10/spec", "1"}}));
}

TEST_F(RecordsTest, WhatNoStoreTakesHoldsNobodyUp) {
  records_.Put(std::string(kStoreKeyBytesMax + 1, 'k'), "its key is too long");
  Put("a", "1");
  Note("a");
  Settle();
  EXPECT_EQ(Stored(), truth_);
  EXPECT_THAT(noted_, ElementsAre("a"));
}

TEST_F(RecordsTest, AValueOverTheLimitOfTheStoreIsKeptInParts) {
  std::string large(2 * kStoreValueBytesMax + 1, 'x');
  for (size_t i = 0; i < large.size(); i += 4096) large[i] = static_cast<char>('a' + i / 4096 % 26);
  records_.Put("large", large);
  records_.Put("job/1/spec", "small");
  Note("large");
  Settle();
  EXPECT_THAT(noted_, ElementsAre("large"));
  Result<std::map<std::string, std::string>> loaded = Records::Load(store_, "large");
  ASSERT_TRUE(loaded.ok());
  ASSERT_EQ(loaded->size(), 1U);
  EXPECT_TRUE(loaded->at("large") == large);
  EXPECT_EQ(Records::Load(store_, "job/")->at("job/1/spec"), "small");
  ASSERT_TRUE(store_.Delete("large#part1").ok());
  EXPECT_TRUE(Records::Load(store_, "large")->empty()) << "half of it is nothing";
}

TEST_F(RecordsTest, NoPartOutlivesItsValue) {
  records_.Put("large", std::string(kStoreValueBytesMax + 1, 'x'));
  Settle();
  EXPECT_GT(store_.List("large")->size(), 1U);
  records_.Delete("large");
  Settle();
  EXPECT_TRUE(store_.List("large")->empty());
}

TEST_F(RecordsTest, WaitersAreBounded) {
  store_.SetAvailable(false);
  Put("a", "1");
  for (size_t i = 0; i < Records::kWaitersMax + 10; ++i) Note(std::to_string(i));
  store_.SetAvailable(true);
  Pass(seconds(1));
  EXPECT_EQ(noted_.size(), Records::kWaitersMax);
}

// Whatever is asked for, and whatever becomes of the store meanwhile.
TEST_F(RecordsTest, AnyOrderOfFaultsEndsWithTheTruth) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
    const auto key = [&] {
      return "k/" + std::to_string(below(3)) + "/" + std::to_string(below(3));
    };
    for (int step = 0; step < 40; ++step) {
      const int what = below(10);
      if (what < 4) Put(key(), std::to_string(below(1000)));
      if (what == 4) Delete(key());
      if (what == 5) DeletePrefix("k/" + std::to_string(below(3)) + "/");
      if (what == 6) store_.SetAvailable(below(2) == 0);
      if (what == 7 && below(4) == 0) {
        store_.SetAvailable(true);
        Lose();
        store_.SetAvailable(below(2) == 0);
      }
      if (what >= 8) Pass(milliseconds(100 * below(8)));
    }
    store_.SetAvailable(true);
    Pass(seconds(3));
    ASSERT_EQ(Stored(), truth_) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::daemons::testing
