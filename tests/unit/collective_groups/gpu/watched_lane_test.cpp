#include "collective_groups/gpu/internal/watched_lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace troupe::groups {
namespace {

TEST(WatchedLaneTest, ReturnsWhatTheWorkReturns) {
  WatchedLane lane("lane");
  const auto never = [] { return false; };
  EXPECT_TRUE(lane.Run([] { return Status::Ok(); }, never, seconds(1)).ok());
  const Status failed = lane.Run(
      [] {
        return Status(Error{ErrorCode::kNotFound, "gone"});
      },
      never, seconds(1));
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(lane.lost());
}

TEST(WatchedLaneTest, WorkThatStopsInTimeKeepsTheLane) {
  WatchedLane lane("lane");
  std::atomic<bool> stop{false};
  std::promise<void> began;
  std::future<void> begun = began.get_future();
  std::thread other([&] {
    begun.wait();
    stop = true;
  });
  const Status s = lane.Run(
      [&] {
        began.set_value();
        while (!stop) std::this_thread::yield();
        return Status(Error{ErrorCode::kCancelled, "stopped"});
      },
      [&] { return stop.load(); }, seconds(30));
  other.join();
  EXPECT_EQ(s.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(lane.lost());
}

TEST(WatchedLaneTest, WorkThatDoesNotComeBackIsLeftBehind) {
  auto release = std::make_shared<std::promise<void>>();
  auto gone = std::make_shared<std::promise<void>>();
  const auto held = std::make_shared<int>(7);
  {
    WatchedLane lane("lane");
    const Status lost = lane.Run(
        [held, gone, future = std::make_shared<std::future<void>>(release->get_future())] {
          future->wait();
          gone->set_value();
          return Status::Ok();
        },
        [] { return true; }, milliseconds(20));
    EXPECT_EQ(lost.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_TRUE(lane.lost());
    EXPECT_GT(held.use_count(), 1) << "what the work holds must stay";
    const Status refused = lane.Run([] { return Status::Ok(); }, [] { return false; }, seconds(1));
    EXPECT_EQ(refused.error().code, ErrorCode::kDeadlineExceeded);
  }
  release->set_value();
  gone->get_future().wait();
}

}  // namespace
}  // namespace troupe::groups
