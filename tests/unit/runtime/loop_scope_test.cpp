// What was asked of a loop does not outlive who has asked for it.
#include "runtime/loop_scope.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "runtime/loopback_transport.h"

namespace troupe {
namespace {

class LoopScopeTest : public ::testing::Test {
 protected:
  void Run() { network_.RunFor(seconds(1)); }

  LoopbackNetwork network_{1};
  std::unique_ptr<Transport> transport_ = network_.MakeTransport("here");
  std::optional<LoopScope> scope_{std::in_place, &transport_->loop()};
  int ran_ = 0;
};

TEST_F(LoopScopeTest, WhatIsAskedForRuns) {
  scope_->Post([this] { ++ran_; });
  scope_->CallAfter(milliseconds(5), [this] { ++ran_; });
  scope_->CallAt(network_.Now() + milliseconds(5), [this] { ++ran_; });
  transport_->loop().Post(scope_->Guard([this] { ++ran_; }));
  std::thread([this, back = scope_->back()] { back.Post([this] { ++ran_; }); }).join();
  Run();
  EXPECT_EQ(ran_, 5);
}

TEST_F(LoopScopeTest, NothingRunsWhenTheScopeIsGone) {
  const LoopScope::Back back = scope_->back();
  scope_->Post([this] { ++ran_; });
  scope_->CallAfter(milliseconds(5), [this] { ++ran_; });
  scope_->CallAt(network_.Now() + milliseconds(5), [this] { ++ran_; });
  const auto guarded = scope_->Guard([this] { ++ran_; });
  scope_.reset();
  transport_->loop().Post(guarded);
  back.Post([this] { ++ran_; });
  Run();
  EXPECT_EQ(ran_, 0);
}

TEST_F(LoopScopeTest, ATimerIsCancelledAsEver) {
  const TimerId timer = scope_->CallAfter(milliseconds(5), [this] { ++ran_; });
  transport_->loop().Cancel(timer);
  Run();
  EXPECT_EQ(ran_, 0);
}

// The scope's own end may come from inside what it runs.
TEST_F(LoopScopeTest, MayEndInsideOfWhatItRuns) {
  scope_->Post([this] { scope_.reset(); });
  scope_->Post([this] { ++ran_; });
  Run();
  EXPECT_EQ(ran_, 0);
}

}  // namespace
}  // namespace troupe
