#include "runtime/loopback_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/wire.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Node {
  std::unique_ptr<Transport> transport;
  std::vector<std::string> frames;
  std::vector<std::string> dropped;
};

class LoopbackTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Node> Make(LoopbackNetwork& network, const std::string& name) {
    auto node = std::make_unique<Node>();
    node->transport = network.MakeTransport(name);
    node->transport->SetHandler(
        [n = node.get()](const std::string& from, const std::string& frame) {
          n->frames.push_back(from + ":" + frame);
        });
    node->transport->SetDropHandler(
        [n = node.get()](const std::string& to) { n->dropped.push_back(to); });
    return node;
  }
  void SendMany(int count) {
    for (int i = 0; i < count; ++i) EXPECT_TRUE(a_->transport->Send("b", std::to_string(i)).ok());
    network_.RunFor(seconds(1));
  }

  LoopbackNetwork network_{1};
  std::unique_ptr<Node> a_ = Make(network_, "a");
  std::unique_ptr<Node> b_ = Make(network_, "b");
};

TEST_F(LoopbackTest, DeliversInOrderAfterTheDelay) {
  LoopbackFaults faults;
  faults.delay_min = faults.delay_max = milliseconds(5);
  network_.SetFaults(faults);
  EXPECT_TRUE(a_->transport->Send("b", "1").ok());
  EXPECT_TRUE(a_->transport->Send("b", "2").ok());
  network_.RunFor(milliseconds(5) - nanoseconds(1));
  EXPECT_THAT(b_->frames, IsEmpty());
  network_.RunFor(nanoseconds(1));
  EXPECT_THAT(b_->frames, ElementsAre("a:1", "a:2"));
}

TEST_F(LoopbackTest, LossTakesItsShare) {
  LoopbackFaults faults;
  faults.loss = 0.25;
  network_.SetFaults(faults);
  SendMany(1000);
  EXPECT_NEAR(static_cast<double>(b_->frames.size()), 750, 60);
}

TEST_F(LoopbackTest, DuplicationTakesItsShare) {
  LoopbackFaults faults;
  faults.duplicate = 0.25;
  network_.SetFaults(faults);
  SendMany(1000);
  EXPECT_NEAR(static_cast<double>(b_->frames.size()), 1250, 60);
}

TEST_F(LoopbackTest, ARangeOfDelaysReorders) {
  LoopbackFaults faults;
  faults.delay_max = milliseconds(5);
  network_.SetFaults(faults);
  SendMany(100);
  ASSERT_EQ(b_->frames.size(), 100U);
  std::vector<std::string> in_order;
  for (int i = 0; i < 100; ++i) in_order.push_back("a:" + std::to_string(i));
  EXPECT_NE(b_->frames, in_order);
  EXPECT_THAT(b_->frames, ::testing::UnorderedElementsAreArray(in_order));
}

TEST_F(LoopbackTest, ABlockIsOneWayUntilHealed) {
  network_.Block("a", "b");
  EXPECT_TRUE(a_->transport->Send("b", "lost").ok());
  EXPECT_TRUE(b_->transport->Send("a", "back").ok());
  network_.RunFor(seconds(1));
  EXPECT_THAT(b_->frames, IsEmpty());
  EXPECT_THAT(a_->frames, ElementsAre("b:back"));
  network_.Heal();
  EXPECT_TRUE(a_->transport->Send("b", "found").ok());
  network_.RunFor(seconds(1));
  EXPECT_THAT(b_->frames, ElementsAre("a:found"));
}

TEST_F(LoopbackTest, TheSameSeedGivesTheSameRun) {
  const auto run = [](uint64_t seed) {
    LoopbackNetwork network(seed);
    const auto a = Make(network, "a");
    const auto b = Make(network, "b");
    LoopbackFaults faults;
    faults.loss = faults.duplicate = 0.3;
    faults.delay_max = milliseconds(3);
    network.SetFaults(faults);
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(a->transport->Send("b", std::to_string(i)).ok());
      EXPECT_TRUE(b->transport->Send("a", std::to_string(i)).ok());
      network.RunFor(microseconds(100));
    }
    network.RunFor(seconds(1));
    return std::pair(network.event_hash(), b->frames);
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7).first, run(8).first);
}

TEST_F(LoopbackTest, AnUnknownAndADestroyedPeerAreDropped) {
  EXPECT_TRUE(a_->transport->Send("nobody", "x").ok());
  EXPECT_TRUE(a_->transport->Send("b", "on its way").ok());
  b_.reset();
  EXPECT_TRUE(a_->transport->Send("b", "too late").ok());
  network_.RunFor(seconds(1));
  EXPECT_THAT(a_->dropped, ElementsAre("nobody", "b"));
}

TEST_F(LoopbackTest, AFrameOverTheLimitIsRefused) {
  EXPECT_EQ(a_->transport->Send("b", std::string(wire::kWireFrameBytesMax + 1, 'x')).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(LoopbackTest, TheLoopRunsOnVirtualTimeAndEndsWithItsNode) {
  std::string order;
  EventLoop& loop = b_->transport->loop();
  const Time start = loop.Now();
  loop.CallAfter(seconds(2), [&] { order += "2"; });
  loop.CallAfter(seconds(1), [&] { order += "1"; });
  loop.Post([&] { order += "0"; });
  const TimerId cancelled = loop.CallAfter(seconds(1), [&] { order += "x"; });
  loop.Cancel(cancelled);
  loop.CallAfter(seconds(4), [&] { order += "dead"; });
  network_.RunFor(seconds(3));
  EXPECT_EQ(order, "012");
  EXPECT_EQ(loop.Now() - start, seconds(3));
  b_.reset();
  network_.RunFor(seconds(3));
  EXPECT_EQ(order, "012");
}

}  // namespace
}  // namespace troupe
