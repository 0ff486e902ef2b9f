#include "collective_groups/membership/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace troupe::groups {
namespace {

using ::testing::HasSubstr;

using Share = SampleLedger::Share;
using Shares = std::vector<Share>;

TEST(LedgerTest, LeasesConsecutiveRangesAfterTheCommittedPrefix) {
  SampleLedger ledger(10);
  ledger.BeginEpoch(3);
  EXPECT_EQ(*ledger.Lease(1, {2, 0, 3}), (Shares{{{0, 2}}, {}, {{2, 5}}}));
  EXPECT_EQ(ledger.committed(), 0U);
  ASSERT_TRUE(ledger.Commit(1).ok());
  EXPECT_EQ(ledger.committed(), 5U);
  EXPECT_EQ(ledger.remaining(), 5U);
  EXPECT_EQ(*ledger.Lease(2, {5}), (Shares{{{5, 10}}}));
  EXPECT_EQ(ledger.data_epoch(), 3U);
}

TEST(LedgerTest, AVoidedStepGivesItsSamplesBack) {
  SampleLedger ledger(10);
  ASSERT_TRUE(ledger.Lease(1, {4}).ok());
  ledger.Void(2);  // Not the leased one: nothing happens.
  ASSERT_TRUE(ledger.Commit(1).ok());
  ASSERT_TRUE(ledger.Lease(2, {4}).ok());
  ledger.Void(2);
  EXPECT_EQ(ledger.Commit(2).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(*ledger.Lease(2, {2, 2}), (Shares{{{4, 6}}, {{6, 8}}}));
}

TEST(LedgerTest, RefusesMoreThanRemainsAndKeepsTheOldLease) {
  SampleLedger ledger(5);
  ASSERT_TRUE(ledger.Lease(1, {3}).ok());
  const auto refused = ledger.Lease(2, {3, 3});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("5 remaining"));
  EXPECT_FALSE(ledger.Lease(2, {1, UINT64_MAX}).ok());  // Must not wrap around.
  EXPECT_TRUE(ledger.Commit(1).ok());
  EXPECT_EQ(ledger.committed(), 3U);
}

TEST(LedgerTest, RefusesCommittedStepsAndUnleasedCommits) {
  SampleLedger ledger(8);
  EXPECT_EQ(ledger.Commit(1).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(ledger.Lease(1, {2}).ok());
  EXPECT_EQ(ledger.Commit(2).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(ledger.Commit(1).ok());
  EXPECT_EQ(ledger.Commit(1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ledger.Lease(1, {2}).error().message, HasSubstr("already committed"));
  ledger.BeginEpoch(1);  // Steps count afresh in a data epoch.
  EXPECT_TRUE(ledger.Lease(1, {8}).ok());
}

TEST(LedgerTest, SaveHoldsTheCommittedPartOnly) {
  SampleLedger ledger(9);
  ledger.BeginEpoch(4);
  ASSERT_TRUE(ledger.Lease(6, {2}).ok());
  ASSERT_TRUE(ledger.Commit(6).ok());
  ASSERT_TRUE(ledger.Lease(7, {2}).ok());
  SampleLedger copy;
  ASSERT_TRUE(copy.Load(ledger.Save()).ok());
  EXPECT_EQ(copy.samples(), 9U);
  EXPECT_EQ(copy.data_epoch(), 4U);
  EXPECT_EQ(copy.committed(), 2U);
  EXPECT_FALSE(copy.Commit(7).ok());
  EXPECT_FALSE(copy.Lease(6, {1}).ok());
  EXPECT_TRUE(copy.Lease(7, {1}).ok());
}

TEST(LedgerTest, RefusesDamagedBytesAndStaysAsItWas) {
  SampleLedger ledger(9);
  ASSERT_TRUE(ledger.Lease(1, {4}).ok());
  ASSERT_TRUE(ledger.Commit(1).ok());
  const std::string good = ledger.Save();
  SampleLedger copy(3);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() - 1), good + "x",
                                 std::string("\xff\xff\xff\xff\xff")}) {
    EXPECT_EQ(copy.Load(bad).error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(copy.samples(), 3U);
    EXPECT_EQ(copy.committed(), 0U);
  }
}

TEST(LedgerTest, WhatACommitGivesBackIsLeasedFirst) {
  SampleLedger ledger(12);
  ASSERT_TRUE(ledger.Lease(1, {2, 2, 2}).ok());
  ASSERT_TRUE(ledger.Commit(1, {{2, 4}}).ok());
  EXPECT_EQ(ledger.committed(), 4U);
  EXPECT_EQ(ledger.remaining(), 8U);
  EXPECT_EQ(ledger.Pool(), (Share{{2, 4}, {6, 12}}));
  EXPECT_EQ(*ledger.Lease(2, {1, 3}), (Shares{{{2, 3}}, {{3, 4}, {6, 8}}}));
  ASSERT_TRUE(ledger.Commit(2, {{3, 4}, {6, 7}}).ok());
  EXPECT_EQ(ledger.Pool(), (Share{{3, 4}, {6, 7}, {8, 12}}));
  EXPECT_EQ(ledger.next_step(), 3U);
}

TEST(LedgerTest, WhatIsGivenBackAtTheFrontIsNoHole) {
  SampleLedger ledger(8);
  ASSERT_TRUE(ledger.Lease(1, {3, 3}).ok());
  ASSERT_TRUE(ledger.Commit(1, {{3, 6}}).ok());
  EXPECT_EQ(ledger.Pool(), (Share{{3, 8}}));
  ASSERT_TRUE(ledger.Lease(2, {5}).ok());
  ASSERT_TRUE(ledger.Commit(2, {{3, 8}}).ok());
  EXPECT_EQ(ledger.committed(), 3U);
}

TEST(LedgerTest, RefusesToGiveBackWhatIsNotLeased) {
  SampleLedger ledger(10);
  ASSERT_TRUE(ledger.Lease(1, {2, 2}).ok());
  for (const Share& bad : {Share{{3, 5}}, Share{{0, 2}, {1, 3}}, Share{{2, 2}}, Share{{3, 1}},
                           Share{{0, 1}, {0, 1}}}) {
    EXPECT_EQ(ledger.Commit(1, bad).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(ledger.committed(), 0U);
  }
  EXPECT_TRUE(ledger.Commit(1, {{0, 1}, {3, 4}}).ok());
}

TEST(LedgerTest, SaveHoldsTheHoles) {
  SampleLedger ledger(10);
  ASSERT_TRUE(ledger.Lease(1, {2, 2, 2}).ok());
  ASSERT_TRUE(ledger.Commit(1, {{0, 2}}).ok());
  SampleLedger copy;
  ASSERT_TRUE(copy.Load(ledger.Save()).ok());
  EXPECT_EQ(copy.Pool(), (Share{{0, 2}, {6, 10}}));
  EXPECT_EQ(copy.committed(), 4U);
}

// One random walk through a data epoch; counts how often each sample is part of a committed step.
std::vector<int> CountCommits(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  const uint64_t samples = below(200);
  std::vector<int> counts(samples, 0);
  SampleLedger ledger(samples);
  ledger.BeginEpoch(seed);
  uint64_t step = 0;
  uint64_t ranks = 1 + below(6);
  while (ledger.remaining() > 0) {
    ++step;
    if (below(5) == 0) ranks = 1 + below(6);  // The group was re-sized.
    std::vector<uint64_t> sizes;
    uint64_t left = ledger.remaining();
    for (uint64_t r = 0; r < ranks; ++r) {
      sizes.push_back(std::min(left, below(9)));
      left -= sizes.back();
    }
    const auto shares = ledger.Lease(step, sizes);
    if (!shares.ok()) {
      ADD_FAILURE() << shares.error().message;
      break;
    }
    if (below(4) == 0) {
      ledger.Void(step);
    } else if (below(6) == 0) {  // A newcomer takes over from the replicated state.
      SampleLedger restored;
      EXPECT_TRUE(restored.Load(ledger.Save()).ok());
      ledger = restored;
    } else if (below(8) != 0) {  // Otherwise the next lease replaces this one.
      Share returned;            // By ranks that died in the step.
      for (const Share& share : *shares) {
        if (below(6) == 0) {
          returned.insert(returned.end(), share.begin(), share.end());
          continue;
        }
        for (const auto& [begin, end] : share) {
          for (uint64_t i = begin; i < end; ++i) ++counts.at(i);
        }
      }
      EXPECT_TRUE(ledger.Commit(step, returned).ok());
    }
  }
  return counts;
}

TEST(LedgerTest, EverySampleIsCommittedExactlyOnce) {  // GM-9
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    EXPECT_THAT(CountCommits(seed), ::testing::Each(1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::groups
