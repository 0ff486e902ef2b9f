// Adapter of Boost.Fiber: the only file that includes it.
//
// Waking a waiter touches the scheduler of its thread, which ends with that thread. So whoever
// wakes holds the mutex meanwhile: the waiter needs it to return from its wait, and Boost's unlock
// keeps it out until it has let go of the scheduler itself.
#include "runtime/executor.h"

#include <atomic>
#include <boost/fiber/all.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe {

struct Executor::Impl {
  // A thread's door: other threads push, the thread's own door fiber pops and launches.
  struct Worker {
    boost::fibers::mutex mu;
    boost::fibers::condition_variable wake;
    std::deque<std::function<void()>> incoming;
    bool stopping = false;
    std::thread thread;
  };

  Options options;
  std::vector<std::unique_ptr<Worker>> workers;
  std::mutex mu;
  std::condition_variable idle;
  size_t running = 0;
  bool stopping = false;

  void RunFiber(const std::function<void()>& fn) {
    std::string uncaught;
    bool failed = false;
    try {
      fn();
    } catch (const boost::fibers::fiber_error& e) {
      failed = true;
      uncaught = e.what();
    } catch (const std::exception& e) {
      failed = true;
      uncaught = e.what();
    } catch (...) {
      failed = true;
      uncaught = "an exception that is not a std::exception";
    }
    if (failed && options.on_uncaught) options.on_uncaught(uncaught);
    std::lock_guard lock(mu);
    if (--running == 0) idle.notify_all();
  }

  void RunThread(Worker& worker) {
    for (;;) {
      std::deque<std::function<void()>> batch;
      {
        std::unique_lock lock(worker.mu);
        worker.wake.wait(lock, [&] { return worker.stopping || !worker.incoming.empty(); });
        batch.swap(worker.incoming);
        if (batch.empty() && worker.stopping) return;
      }
      for (auto& fn : batch) {
        boost::fibers::fiber(boost::fibers::launch::dispatch, std::allocator_arg,
                             boost::fibers::protected_fixedsize_stack(kFiberStackBytes),
                             [this, fn = std::move(fn)] { RunFiber(fn); })
            .detach();
      }
    }
  }
};

Executor::Executor(Options options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  const int threads = std::max(1, impl_->options.threads);
  for (int i = 0; i < threads; ++i) {
    impl_->workers.push_back(std::make_unique<Impl::Worker>());
    Impl::Worker& worker = *impl_->workers.back();
    worker.thread = std::thread([this, &worker] { impl_->RunThread(worker); });
  }
}

Executor::~Executor() {
  // A fiber that still waits keeps its thread alive (F-7); every wait has a limit, so this ends.
  while (!Stop(seconds(10)).ok()) {
  }
  for (auto& worker : impl_->workers) {
    {
      std::unique_lock lock(worker->mu);
      worker->stopping = true;
      worker->wake.notify_all();
    }
    if (worker->thread.joinable()) worker->thread.join();
  }
}

Status Executor::Spawn(size_t thread, std::function<void()> fn) {
  {
    std::lock_guard lock(impl_->mu);
    if (impl_->stopping)
      return Error{ErrorCode::kCancelled, "executor " + impl_->options.name + " is stopping"};
    ++impl_->running;
  }
  Impl::Worker& worker = *impl_->workers[thread % impl_->workers.size()];
  std::unique_lock lock(worker.mu);
  worker.incoming.push_back(std::move(fn));
  worker.wake.notify_one();
  return Status::Ok();
}

size_t Executor::threads() const { return impl_->workers.size(); }

Status Executor::Stop(Duration limit) {
  std::unique_lock lock(impl_->mu);
  impl_->stopping = true;
  if (!impl_->idle.wait_for(lock, limit, [this] { return impl_->running == 0; })) {
    return Error{ErrorCode::kDeadlineExceeded, "executor " + impl_->options.name + ": " +
                                                   std::to_string(impl_->running) +
                                                   " fibers still wait"};
  }
  return Status::Ok();
}

struct FiberEvent::Impl {
  boost::fibers::mutex mu;
  boost::fibers::condition_variable wake;
  bool set = false;
};

FiberEvent::FiberEvent() : impl_(std::make_shared<Impl>()) {}
FiberEvent::~FiberEvent() = default;

void FiberEvent::Set() {
  const auto impl = impl_;  // The waiter may destroy this object as soon as it sees the flag.
  std::unique_lock lock(impl->mu);
  impl->set = true;
  impl->wake.notify_all();
}

bool FiberEvent::IsSet() const {
  std::unique_lock lock(impl_->mu);
  return impl_->set;
}

bool FiberEvent::WaitFor(Duration limit) {
  const auto impl = impl_;
  std::unique_lock lock(impl->mu);
  return impl->wake.wait_for(lock, limit, [&] { return impl->set; });
}

}  // namespace troupe
