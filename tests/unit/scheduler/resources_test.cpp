#include "scheduler/resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using ::testing::HasSubstr;

std::string ProblemOf(const std::map<std::string, double>& amounts) {
  const Result<ResourceSet> set = ResourceSet::FromMap(amounts);
  return set.ok() ? "" : set.error().message;
}

TEST(ResourcesTest, FractionsAddUpExactly) {
  ResourceSet sum;
  for (int i = 0; i < 10; ++i) sum.Add(Of({{"GPU", 0.1}}));
  EXPECT_EQ(sum, Of({{"GPU", 1}}));
  for (int i = 0; i < 10; ++i) sum.Subtract(Of({{"GPU", 0.1}}));
  EXPECT_TRUE(sum.empty());
}

TEST(ResourcesTest, ZeroIsTheSameAsAbsent) {
  EXPECT_EQ(Of({{"CPU", 0}}), ResourceSet());
  EXPECT_TRUE(ResourceSet().Covers(Of({{"CPU", 0}})));
}

TEST(ResourcesTest, CoversComparesEveryName) {
  const ResourceSet have = Of({{"CPU", 4}, {"GPU", 1}});
  EXPECT_TRUE(have.Covers(Of({{"CPU", 4}})));
  EXPECT_FALSE(have.Covers(Of({{"CPU", 4.0001}})));
  EXPECT_FALSE(have.Covers(Of({{"licence", 1}})));
  EXPECT_EQ(have.Missing(Of({{"CPU", 5}, {"GPU", 1}, {"licence", 2}})),
            Of({{"CPU", 1}, {"licence", 2}}));
}

TEST(ResourcesTest, WellKnownNamesAreReadInAnyCase) {
  EXPECT_EQ(Of({{"cpu", 1}, {"gpu", 2}, {"Memory", 3}}),
            Of({{"CPU", 1}, {"GPU", 2}, {"memory", 3}}));
  EXPECT_THAT(ProblemOf({{"cpu", 1}, {"CPU", 1}}), HasSubstr("given twice"));
}

TEST(ResourcesTest, UnusableAmountsAndNamesAreRefused) {
  EXPECT_THAT(ProblemOf({{"CPU", -1}}), HasSubstr("\"CPU\": the amount is negative"));
  EXPECT_THAT(ProblemOf({{"CPU", std::nan("")}}), HasSubstr("not a finite number"));
  EXPECT_THAT(ProblemOf({{"CPU", std::numeric_limits<double>::infinity()}}),
              HasSubstr("not a finite number"));
  EXPECT_THAT(ProblemOf({{"CPU", 1e15}}), HasSubstr("over 1e14"));
  EXPECT_THAT(ProblemOf({{"CPU", 1e-6}}), HasSubstr("finer than 0.0001"));
  EXPECT_THAT(ProblemOf({{"", 1}}), HasSubstr("a name has"));
  EXPECT_THAT(ProblemOf({{"my gpu", 1}}), HasSubstr("a name has"));
  EXPECT_THAT(ProblemOf({{std::string(65, 'a'), 1}}), HasSubstr("a name has"));
  std::map<std::string, double> many;
  for (size_t i = 0; i <= kResourceNamesMax; ++i) many["r" + std::to_string(i)] = 1;
  EXPECT_THAT(ProblemOf(many), HasSubstr("at most 64"));
}

TEST(ResourcesTest, TextIsForPeople) {
  EXPECT_EQ(Of({{"CPU", 1.5}, {"memory", 4.0 * 1024 * 1024 * 1024}}).ToString(),
            "CPU 1.5, memory 4GiB");
  EXPECT_EQ(ResourceSet().ToString(), "nothing");
  EXPECT_EQ(Of({{"CPU", 2}, {"x", 0.25}}).ToMap(),
            (std::map<std::string, double>{{"CPU", 2}, {"x", 0.25}}));
}

TEST(ResourcesTest, SubtractingMoreThanThereIsAborts) {
  ResourceSet one = Of({{"CPU", 1}});
  EXPECT_DEATH(one.Subtract(Of({{"CPU", 2}})), "more is subtracted than there is");
}

}  // namespace
}  // namespace troupe
