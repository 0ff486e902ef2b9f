#include "collective_groups/torch/elastic_sampler.h"

#include <gtest/gtest.h>

#include <map>

namespace troupe::elastic {
namespace {

// All ranks' next step, committed.
void StepAll(std::vector<ElasticSampler>& ranks, std::map<int64_t, int>& counts) {
  uint64_t counted = 0;
  uint64_t step_size = 0;
  for (ElasticSampler& rank : ranks) {
    const Result<Batch> batch = rank.Next();
    ASSERT_TRUE(batch.ok()) << batch.error().ToString();
    ASSERT_FALSE(batch->indices.empty());  // Also a ghost has something to compute.
    for (uint64_t i = 0; i < batch->counted; ++i) ++counts[batch->indices[i]];
    counted += batch->counted;
    step_size = batch->step_size;
  }
  EXPECT_EQ(counted, step_size);
  for (ElasticSampler& rank : ranks) ASSERT_TRUE(rank.Commit().ok());
}

void Enter(std::vector<ElasticSampler>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i)
    ranks[i].Enter(static_cast<int>(i), static_cast<int>(ranks.size()));
}

TEST(ElasticSampler, CountsEverySampleOnceWhileTheGroupShrinksAndGrows) {  // GM-9
  std::vector<ElasticSampler> ranks(3, ElasticSampler(101, 8, 7));
  Enter(ranks);
  std::map<int64_t, int> counts;
  StepAll(ranks, counts);
  ASSERT_TRUE(ranks[0].Next().ok());  // In flight when a member dies: not counted.
  ranks.pop_back();
  Enter(ranks);
  StepAll(ranks, counts);
  ElasticSampler joiner(101, 8, 7);
  ASSERT_TRUE(joiner.Load(ranks[0].Save()).ok());
  ranks.push_back(joiner);
  ranks.push_back(joiner);
  Enter(ranks);
  while (ranks[0].remaining() > 0) StepAll(ranks, counts);
  ASSERT_EQ(counts.size(), 101U);
  for (const auto& [sample, count] : counts) EXPECT_EQ(count, 1) << sample;
  EXPECT_FALSE(ranks[0].Next().ok());
}

TEST(ElasticSampler, GivesAGhostToARankWithoutAShare) {
  ElasticSampler sampler(2, 4, 1);
  sampler.Enter(2, 3);
  const Result<Batch> batch = sampler.Next();
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->counted, 0U);
  EXPECT_EQ(batch->indices.size(), 1U);
  EXPECT_EQ(batch->step_size, 2U);
}

TEST(ElasticSampler, GivesFollowersNoShareUpToTheNextCommit) {  // GM-9
  std::vector<ElasticSampler> ranks(4, ElasticSampler(50, 8, 7));
  const auto enter = [&](const std::vector<int>& followers) {
    for (int i = 0; i < 4; ++i) ranks[static_cast<size_t>(i)].Enter(i, 4, followers);
  };
  enter({1, 3});
  ASSERT_TRUE(ranks[0].Next().ok());
  for (int again = 0; again < 2; ++again) {  // A lease that is not committed is given back.
    const Result<Batch> follower = ranks[1].Next();
    ASSERT_TRUE(follower.ok());
    EXPECT_EQ(follower->counted, 0U);
    EXPECT_EQ(follower->indices.size(), 2U);
    EXPECT_EQ(follower->step_size, 16U);
  }
  std::map<int64_t, int> counts;
  StepAll(ranks, counts);
  EXPECT_EQ(counts.size(), 16U);
  StepAll(ranks, counts);
  EXPECT_EQ(counts.size(), 48U);
  enter({0, 1, 2});  // Two are left.
  EXPECT_EQ(ranks[3].Next()->counted, 2U);
  StepAll(ranks, counts);
  EXPECT_EQ(ranks[0].remaining(), 0U);
  for (const auto& [sample, count] : counts) EXPECT_EQ(count, 1) << sample;
}

TEST(ElasticSampler, PermutesAnewInEachDataEpochAndAlikeOnAllMembers) {
  ElasticSampler one(50, 50, 3);
  ElasticSampler other(50, 50, 3);
  const auto first = one.Next()->indices;
  EXPECT_EQ(first, other.Next()->indices);
  one.BeginEpoch(1);
  EXPECT_NE(first, one.Next()->indices);
}

TEST(ElasticSampler, RefusesTheStateOfAnotherDataSet) {
  ElasticSampler sampler(50, 5, 3);
  const Status status = sampler.Load(ElasticSampler(51, 5, 3).Save());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_EQ(sampler.remaining(), 50U);
}

}  // namespace
}  // namespace troupe::elastic
