#include "scheduler/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::HasSubstr;

bool Matches(const std::string& text, const Labels& labels) {
  const Result<LabelSelector> selector = LabelSelector::Parse(text);
  EXPECT_TRUE(selector.ok()) << (selector.ok() ? "" : selector.error().message);
  return selector.ok() && selector->Matches(labels);
}

TEST(LabelsTest, EveryKindOfTerm) {
  const Labels node = {{"zone", "a"}, {"gpu", "h100"}};
  EXPECT_TRUE(Matches("", node));
  EXPECT_TRUE(Matches("zone=a", node));
  EXPECT_TRUE(Matches("zone == a", node));
  EXPECT_FALSE(Matches("zone=b", node));
  EXPECT_FALSE(Matches("rack=b", node));
  EXPECT_TRUE(Matches("zone!=b", node));
  EXPECT_FALSE(Matches("zone != a", node));
  EXPECT_TRUE(Matches("market!=spot", node));
  EXPECT_TRUE(Matches("gpu in (a100, h100)", node));
  EXPECT_FALSE(Matches("gpu in (a100)", node));
  EXPECT_FALSE(Matches("tpu in (v4)", node));
  EXPECT_TRUE(Matches("gpu not in (a100)", node));
  EXPECT_TRUE(Matches("tpu notin (v4)", node));
  EXPECT_FALSE(Matches("gpu not in (a100,h100)", node));
  EXPECT_TRUE(Matches("gpu", node));
  EXPECT_FALSE(Matches("tpu", node));
  EXPECT_TRUE(Matches("!tpu", node));
  EXPECT_FALSE(Matches("!gpu", node));
}

TEST(LabelsTest, AllTermsMustHold) {
  EXPECT_TRUE(Matches("zone=a, !spot,gpu in (x, y)", {{"zone", "a"}, {"gpu", "y"}}));
  EXPECT_FALSE(Matches("zone=a, !spot", {{"zone", "a"}, {"spot", "1"}}));
  EXPECT_EQ(LabelSelector::Parse("zone=a, !spot")->Unmet({{"zone", "a"}, {"spot", "1"}}), "!spot");
}

TEST(LabelsTest, TextReadsBackAndIsTheSameForTheSame) {
  const LabelSelector a =
      *LabelSelector::Parse("zone=a ,  gpu in (y,x,y), !spot,m!=z, k not in (q)");
  EXPECT_EQ(a.text(), "!spot, gpu in (x, y), k not in (q), m!=z, zone=a");
  EXPECT_EQ(*LabelSelector::Parse(a.text()), a);
  EXPECT_EQ(a, LabelSelector::Parse("!spot")->And(a));
}

TEST(LabelsTest, WhatCannotBeReadIsRefused) {
  for (const char* text : {"=a", "a=", "a b", "in (x)", "a in x", "a in ()", "a in (x", "!", "a,,b",
                           "a=b=c", "a in (x) b", "a not (x)", "a=(b)"}) {
    const Result<LabelSelector> selector = LabelSelector::Parse(text);
    ASSERT_FALSE(selector.ok()) << text;
    EXPECT_THAT(selector.error().message, HasSubstr("a term is key=value")) << text;
  }
  std::string many = "k0";
  for (size_t i = 1; i <= kSelectorTermsMax; ++i) many += ",k" + std::to_string(i);
  EXPECT_THAT(LabelSelector::Parse(many).error().message, HasSubstr("at most 32 terms"));
  std::string values = "k in (v";
  for (size_t i = 0; i < kSelectorValuesMax; ++i) values += ",v" + std::to_string(i);
  EXPECT_THAT(LabelSelector::Parse(values + ")").error().message, HasSubstr("at most 64 values"));
}

TEST(LabelsTest, LabelsOfANodeAreChecked) {
  EXPECT_TRUE(CheckLabels({{"zone", "eu-west/1"}}).ok());
  EXPECT_FALSE(CheckLabels({{"", "a"}}).ok());
  EXPECT_FALSE(CheckLabels({{"a", ""}}).ok());
  EXPECT_FALSE(CheckLabels({{"a", "b c"}}).ok());
  EXPECT_FALSE(CheckLabels({{"a", std::string(kLabelBytesMax + 1, 'x')}}).ok());
}

}  // namespace
}  // namespace troupe
