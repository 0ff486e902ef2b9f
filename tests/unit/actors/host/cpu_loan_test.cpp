// When a process lends its CPU, and when it takes it back.
#include "actors/host/cpu_loan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/loopback_transport.h"

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CpuLoanTest : public ::testing::Test {
 protected:
  LoopbackNetwork network_{1};
  std::unique_ptr<Transport> transport_ = network_.MakeTransport("p");
  std::vector<std::string> told_;
  std::shared_ptr<CpuLoan> loan_ =
      std::make_shared<CpuLoan>(&transport_->loop(), [this](uint64_t number, bool lent) {
        told_.push_back(std::to_string(number) + (lent ? " lent" : " back"));
      });
};

TEST_F(CpuLoanTest, IsLentWhenAllCallsWaitAndTakenBackAtOnce) {
  loan_->CallBegan();
  loan_->CallBegan();
  loan_->WaitBegan();
  network_.RunFor(seconds(1));
  EXPECT_THAT(told_, IsEmpty()) << "the other one runs";
  loan_->WaitBegan();
  network_.RunFor(kLendAfter / 2);
  EXPECT_THAT(told_, IsEmpty());
  network_.RunFor(kLendAfter);
  EXPECT_THAT(told_, ElementsAre("1 lent"));
  loan_->WaitEnded();
  EXPECT_THAT(told_, ElementsAre("1 lent", "2 back"));
  loan_->WaitBegan();
  network_.RunFor(2 * kLendAfter);
  loan_->CallBegan();
  EXPECT_THAT(told_, ElementsAre("1 lent", "2 back", "3 lent", "4 back"));
}

TEST_F(CpuLoanTest, AShortWaitTellsNothing) {
  loan_->CallBegan();
  for (int i = 0; i < 1000; ++i) {
    loan_->WaitBegan();
    network_.RunFor(kLendAfter / 4);
    loan_->WaitEnded();
  }
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(CpuLoanTest, WhoRunsNothingLendsNothing) {
  loan_->CallBegan();
  loan_->WaitBegan();
  loan_->WaitEnded();
  loan_->CallEnded();
  network_.RunFor(seconds(1));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(CpuLoanTest, ItsLastLookMayOutliveIt) {
  loan_->CallBegan();
  loan_->WaitBegan();
  loan_.reset();
  network_.RunFor(seconds(1));
  EXPECT_THAT(told_, IsEmpty());
}

}  // namespace
}  // namespace troupe::actors
