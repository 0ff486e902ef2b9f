// What both halves of the fake share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "tests/support/fake_gpu/fake_gpu.h"

namespace troupe::fake_gpu {

struct State {
  std::mutex mu;
  std::condition_variable changed;
  // Guarded by mu.
  Faults faults;
  Counts counts;
  std::string broken_rule;
  std::map<char*, size_t> memory;
  std::set<void*> held;  // Streams.

  static State& Get() {
    static auto* state = new State;  // Threads of streams may outlive main.
    return *state;
  }
  // Under mu.
  void Break(const std::string& rule) {
    if (broken_rule.empty()) broken_rule = rule;
  }
  // Under mu. Whether [data, data + bytes) is device memory.
  [[nodiscard]] bool IsDevice(const void* data, size_t bytes) const {
    auto* at = const_cast<char*>(static_cast<const char*>(data));
    auto it = memory.upper_bound(at);
    if (it == memory.begin()) return false;
    --it;
    return at + bytes <= it->first + it->second;
  }
};

// A stream: a thread that does one piece of work after the other.
class Stream {
 public:
  Stream() : thread_([this] { Work(); }) {}
  ~Stream() {
    {
      std::lock_guard lock(mu_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Enqueue(std::function<void()> work) {
    std::lock_guard lock(mu_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void Work() {
    std::unique_lock lock(mu_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty() || ending_; });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  std::thread thread_;
};

// Whether this thread has a context.
[[nodiscard]] bool HasContext();

[[nodiscard]] inline Stream* DefaultStream() {
  static auto* stream = new Stream;
  return stream;
}
[[nodiscard]] inline Stream* StreamOf(void* handle) {
  return handle == nullptr ? DefaultStream() : static_cast<Stream*>(handle);
}

}  // namespace troupe::fake_gpu
