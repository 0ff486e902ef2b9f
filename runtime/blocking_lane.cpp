#include "runtime/blocking_lane.h"

#include "runtime/thread.h"

namespace troupe {

BlockingLane::BlockingLane(std::string name) : name_(std::move(name)), thread_([this] { Run(); }) {}

BlockingLane::~BlockingLane() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status BlockingLane::Post(std::function<void()> fn) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return Error{ErrorCode::kCancelled, "lane " + name_ + " is stopping"};
    if (queue_.size() >= kLaneQueueMax)
      return Error{ErrorCode::kBackpressure, "lane " + name_ + " is full"};
    queue_.push_back(std::move(fn));
  }
  wake_.notify_one();
  return Status::Ok();
}

void BlockingLane::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  wake_.notify_one();
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void BlockingLane::Run() {
  NameThisThread(name_);
  PreferLowLatency();
  for (;;) {
    std::function<void()> fn;
    {
      std::unique_lock lock(mu_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      fn = std::move(queue_.front());
      queue_.pop_front();
    }
    fn();
  }
}

}  // namespace troupe
