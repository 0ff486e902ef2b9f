#include "actors/host/call_threads.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/thread.h"

namespace troupe::actors {

struct CallThreads::Impl {
  const size_t most;
  std::mutex mu;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  size_t idle = 0;
  bool stopping = false;
  std::vector<std::thread> threads;

  explicit Impl(size_t limit) : most(limit) {}
  void Run() {
    NameThisThread("actor call");
    PreferThroughput();
    std::unique_lock lock(mu);
    for (;;) {
      ++idle;
      changed.wait(lock, [this] { return stopping || !work.empty(); });
      --idle;
      if (work.empty()) return;
      std::function<void()> fn = std::move(work.front());
      work.pop_front();
      lock.unlock();
      fn();
      fn = nullptr;  // What it holds may be the last of its actor: not with the lock.
      lock.lock();
    }
  }
};

CallThreads::CallThreads(uint32_t most)
    : impl_(std::make_shared<Impl>(std::clamp(most, 1U, kCallThreadsMax))) {}

CallThreads::~CallThreads() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(impl_->mu);
    impl_->stopping = true;
    threads.swap(impl_->threads);
    impl_->changed.notify_all();
  }
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

Status CallThreads::Spawn(std::function<void()> fn) {
  std::lock_guard lock(impl_->mu);
  impl_->work.push_back(std::move(fn));
  if (impl_->idle >= impl_->work.size() || impl_->threads.size() >= impl_->most) {
    impl_->changed.notify_one();
    return Status::Ok();
  }
  try {
    impl_->threads.emplace_back([impl = impl_] { impl->Run(); });
  } catch (const std::system_error& error) {
    if (!impl_->threads.empty()) return Status::Ok();  // One of those takes it.
    impl_->work.pop_back();
    return Error{ErrorCode::kResourceExhausted,
                 std::string("no thread can be started for the actor's calls: ") + error.what()};
  }
  return Status::Ok();
}

}  // namespace troupe::actors
