#include "autoscaler/provider_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/autoscaler/fake_supplier.h"

namespace troupe {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::FakeSupplier;
using Fault = FakeSupplier::Fault;
using Outcome = ProviderFinding::Outcome;

std::vector<ProviderFinding> Findings(FakeSupplier& supplier) {
  ProviderCheckOptions options;
  options.settles = seconds(2);
  options.sleep = [](Duration) {};
  options.run = [&](const ExecCommand& command, std::string_view input) {
    return supplier(command, input);
  };
  return CheckProvider(options);
}

std::vector<std::string> WithOutcome(const std::vector<ProviderFinding>& findings,
                                     Outcome outcome) {
  std::vector<std::string> found;
  for (const ProviderFinding& finding : findings) {
    if (finding.outcome == outcome) found.push_back(finding.what + ": " + finding.detail);
  }
  return found;
}

TEST(ProviderCheckTest, OneThatKeepsTheContractPasses) {
  FakeSupplier supplier;
  const std::vector<ProviderFinding> findings = Findings(supplier);
  EXPECT_THAT(WithOutcome(findings, Outcome::kFailed), IsEmpty());
  EXPECT_THAT(WithOutcome(findings, Outcome::kSkipped), IsEmpty());
  EXPECT_THAT(supplier.nodes, IsEmpty());
  const Result<std::string> report = ReportOf(findings);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(*report, HasSubstr("14 passed, 0 failed, 0 skipped"));
}

TEST(ProviderCheckTest, OneWithRoomForOneNodePasses) {
  FakeSupplier supplier;
  supplier.room = 1;
  EXPECT_THAT(WithOutcome(Findings(supplier), Outcome::kFailed), IsEmpty());
}

struct BrokenSupplier {
  Fault fault;
  const char* said;
};

class BrokenProviderTest : public ::testing::TestWithParam<BrokenSupplier> {};

TEST_P(BrokenProviderTest, IsCaught) {
  FakeSupplier supplier(GetParam().fault);
  const std::vector<ProviderFinding> findings = Findings(supplier);
  EXPECT_THAT(WithOutcome(findings, Outcome::kFailed),
              testing::Contains(HasSubstr(GetParam().said)));
  EXPECT_FALSE(ReportOf(findings).ok());
  if (GetParam().fault != Fault::kNeverEnds) {
    EXPECT_THAT(supplier.nodes, IsEmpty()) << "something was left";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenProviderTest,
    ::testing::Values(
        BrokenSupplier{Fault::kNoOffers, "offers says what there is: there is none"},
        BrokenSupplier{Fault::kRubbish, "list answers: its reply is not JSON"},
        BrokenSupplier{Fault::kDoubles,
                       "the same request again makes nothing new: it answered with i-2"},
        BrokenSupplier{Fault::kForgetsRequests,
                       "list shows it, with its request and its tags: it is not"},
        BrokenSupplier{Fault::kMakesTooMany,
                       "create makes a node: it made 2 nodes, one was asked for"},
        BrokenSupplier{Fault::kTakesAnyOffer, "is refused for good: it made 1 nodes of it"},
        BrokenSupplier{Fault::kTakesAnyVerb,
                       "a verb that there is not is no success: it ended with"},
        BrokenSupplier{Fault::kNeverEnds, "see to these yourself: i-1, i-2, i-3, i-4"},
        BrokenSupplier{Fault::kFailsOnEnded,
                       "terminate of an unknown node succeeds: terminate ended with"},
        BrokenSupplier{Fault::kNoPrices,
                       "price says what the offers cost: it has no price of spot"},
        BrokenSupplier{Fault::kSilent, "list answers: did not answer"}));

TEST(ProviderCheckTest, WhatNeedsANodeThatWasNotMadeIsSkipped) {
  FakeSupplier supplier(Fault::kNoOffers);
  EXPECT_THAT(WithOutcome(Findings(supplier), Outcome::kSkipped),
              testing::Contains(HasSubstr("terminate ends a node: no node was made")));
}

}  // namespace
}  // namespace troupe
