// LoopScope: what an object asks of its loop, for as long as the object lives.
//
// Functions that were posted, timers and answers from other threads may come when the object that
// asked for them is gone. Through a scope, its last member, they do nothing then.
// Thread: the loop's, but for the constructor, Back and what is made of it. The destructor runs on
// the loop, or when the loop has ended.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/event_loop.h"

namespace troupe {

class LoopScope {
 public:
  // The way from another thread back to the loop. It may outlive the scope.
  class Back {
   public:
    void Post(std::function<void()> fn) const {
      loop_->Post([open = open_, fn = std::move(fn)] {
        if (*open) fn();
      });
    }

   private:
    friend class LoopScope;
    Back(EventLoop* loop, std::shared_ptr<const bool> open) : loop_(loop), open_(std::move(open)) {}
    EventLoop* loop_;
    std::shared_ptr<const bool> open_;
  };

  explicit LoopScope(EventLoop* loop) : loop_(loop) {}
  ~LoopScope() { *open_ = false; }
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;

  void Post(std::function<void()> fn) const { back().Post(std::move(fn)); }
  TimerId CallAt(Time when, std::function<void()> fn) const {
    return loop_->CallAt(when, Guard(std::move(fn)));
  }
  TimerId CallAfter(Duration delay, std::function<void()> fn) const {
    return loop_->CallAfter(delay, Guard(std::move(fn)));
  }
  // `fn`, for somebody else to call on the loop.
  [[nodiscard]] std::function<void()> Guard(std::function<void()> fn) const {
    return [open = open_, fn = std::move(fn)] {
      if (*open) fn();
    };
  }
  [[nodiscard]] Back back() const { return {loop_, open_}; }

 private:
  EventLoop* const loop_;
  const std::shared_ptr<bool> open_ = std::make_shared<bool>(true);
};

}  // namespace troupe
