// Adapter of Boost.Fiber: the only file that includes it.
//
// Each thread's main context takes work, sleeps, and wakes fibers whose event is set or has waited
// too long; whenever a fiber is ready it makes way. A sleeping thread may run a loop instead
// (Options::idle), so that what arrives there is handled where it is worked on.
// Only a fiber's own thread makes it ready: another one that sets its event leaves it in a list
// there. Boost's own mutexes and condition variables are not used for that, since their spin locks
// never sleep: the thread that is woken often runs before the one that wakes it has let go of the
// lock, and spins until that one gets its turn again.
#include "runtime/executor.h"

#include <atomic>
#include <boost/fiber/all.hpp>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/thread.h"

namespace troupe {
namespace {

constexpr size_t kSpareStacks = 64;     // Kept by a thread: making one takes three system calls.
constexpr int kTurnsBetweenLooks = 16;  // A thread with ready fibers looks at its loop so often.

// Guarded stacks that are used again.
class SpareStacks {
 public:
  ~SpareStacks() {
    for (boost::context::stack_context& stack : spare_) maker_.deallocate(stack);
  }
  boost::context::stack_context Take() {
    if (spare_.empty()) return maker_.allocate();
    boost::context::stack_context stack = spare_.back();
    spare_.pop_back();
    return stack;
  }
  void Give(boost::context::stack_context& stack) {
    if (spare_.size() < kSpareStacks) {
      spare_.push_back(stack);
    } else {
      maker_.deallocate(stack);
    }
  }

 private:
  boost::fibers::protected_fixedsize_stack maker_{kFiberStackBytes};
  std::vector<boost::context::stack_context> spare_;
};

struct StackSource {
  SpareStacks* spare;
  boost::context::stack_context allocate() { return spare->Take(); }
  void deallocate(boost::context::stack_context& stack) { spare->Give(stack); }
};

struct Worker;

// A fiber that waits for an event until a time.
struct Waiter {
  Worker* const worker;
  boost::fibers::context* const fiber;
  // Its thread's.
  std::multimap<Time, std::shared_ptr<Waiter>>::iterator until;
  bool woken = false;
};

struct Worker {
  const Executor::Options* options = nullptr;
  bool drives = false;  // It has Options::idle.

  // From any thread.
  std::mutex mu;
  std::condition_variable changed;
  std::deque<std::function<void()>> incoming;
  std::vector<std::shared_ptr<Waiter>> set;  // Their events are.
  bool stopping = false;
  bool poked = false;
  std::atomic<bool> in_loop{false};  // It runs the loop of Options::idle.
  std::atomic<int> wakers{0};        // Threads that are about to wake it, or do.

  // Its thread's.
  size_t ready = 0;  // Fibers.
  std::multimap<Time, std::shared_ptr<Waiter>> waiting;
  SpareStacks stacks;
  std::thread thread;

  // With mu held: there is something to do, or was since Launch.
  [[nodiscard]] bool Called() const {
    return poked || stopping || !incoming.empty() || !set.empty();
  }

  void Poke() {
    {
      std::lock_guard lock(mu);
      if (std::exchange(poked, true)) return;  // Whoever did it has woken it, or does.
    }
    changed.notify_one();
    if (in_loop.load()) options->wake();
  }

  // On its thread.
  void MakeReady(Waiter& waiter) {
    if (std::exchange(waiter.woken, true)) return;
    waiting.erase(waiter.until);
    boost::fibers::context::active()->schedule(waiter.fiber);
  }
};

thread_local Worker* t_worker = nullptr;

// Boost's round robin, counting.
class CountingRoundRobin final : public boost::fibers::algo::round_robin {
 public:
  explicit CountingRoundRobin(Worker* worker) : worker_(worker) {}
  void awakened(boost::fibers::context* context) noexcept override {
    if (Counts(context)) ++worker_->ready;
    round_robin::awakened(context);
  }
  boost::fibers::context* pick_next() noexcept override {
    boost::fibers::context* context = round_robin::pick_next();
    if (context != nullptr && Counts(context)) --worker_->ready;
    return context;
  }

 private:
  static bool Counts(const boost::fibers::context* context) {
    return !context->is_context(boost::fibers::type::pinned_context);
  }
  Worker* const worker_;
};

struct Anything;
boost::fibers::fiber_specific_ptr<Anything>& LocalSlot() {
  static boost::fibers::fiber_specific_ptr<Anything> slot([](Anything*) {});  // It owns nothing.
  return slot;
}

}  // namespace

struct Executor::Impl {
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

  // False when the thread is to end.
  bool Launch(Worker& worker) {
    std::deque<std::function<void()>> batch;
    std::vector<std::shared_ptr<Waiter>> set;
    {
      std::lock_guard lock(worker.mu);
      worker.poked = false;
      batch.swap(worker.incoming);
      set.swap(worker.set);
      if (batch.empty() && worker.stopping) return false;
    }
    for (const auto& waiter : set) worker.MakeReady(*waiter);
    for (auto& fn : batch) {
      boost::fibers::fiber(boost::fibers::launch::dispatch, std::allocator_arg,
                           StackSource{&worker.stacks},
                           [this, fn = std::move(fn)] { RunFiber(fn); })
          .detach();
    }
    return true;
  }

  static void WakeLate(Worker& worker) {
    const Time now = worker.waiting.empty() ? Time{} : SteadyClock().Now();
    while (!worker.waiting.empty() && worker.waiting.begin()->first <= now) {
      const std::shared_ptr<Waiter> late = worker.waiting.begin()->second;
      worker.MakeReady(*late);
    }
  }

  static void Sleep(Worker& worker, Time until) {
    if (worker.drives) {
      worker.in_loop.store(true);
      bool called = false;
      {
        std::lock_guard lock(worker.mu);
        called = worker.Called();
      }
      const bool helped = called || worker.options->idle(until);
      worker.in_loop.store(false);
      if (helped) return;
    }
    std::unique_lock lock(worker.mu);
    const auto woken = [&] { return worker.Called(); };
    if (until == Time::Never()) {
      worker.changed.wait(lock, woken);
    } else {
      worker.changed.wait_for(lock, until - SteadyClock().Now(), woken);
    }
  }

  void RunThread(Worker& worker) {
    t_worker = &worker;
    boost::fibers::use_scheduling_algorithm<CountingRoundRobin>(&worker);
    NameThisThread(options.name);
    PreferLowLatency();
    int turns = 0;
    while (Launch(worker)) {
      boost::this_fiber::yield();
      WakeLate(worker);
      if (worker.ready == 0) {
        Sleep(worker, worker.waiting.empty() ? Time::Never() : worker.waiting.begin()->first);
      } else if (worker.drives && ++turns % kTurnsBetweenLooks == 0) {
        (void)options.idle(Time{});
      }
    }
    t_worker = nullptr;
  }
};

Executor::Executor(Options options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  const int threads = std::max(1, impl_->options.threads);
  for (int i = 0; i < threads; ++i) {
    impl_->workers.push_back(std::make_unique<Worker>());
    Worker& worker = *impl_->workers.back();
    worker.options = &impl_->options;
    worker.drives = i == 0 && impl_->options.idle != nullptr;
    worker.thread = std::thread([this, &worker] { impl_->RunThread(worker); });
  }
}

Executor::~Executor() {
  // A fiber that still waits keeps its thread alive (F-7); every wait has a limit, so this ends.
  while (!Stop(seconds(10)).ok()) {
  }
  for (auto& worker : impl_->workers) {
    {
      std::lock_guard lock(worker->mu);
      worker->stopping = true;
    }
    worker->Poke();
    if (worker->thread.joinable()) worker->thread.join();
    // Who has woken its last fiber may not have let go of it.
    while (worker->wakers.load() > 0) std::this_thread::yield();
  }
}

Status Executor::Spawn(size_t thread, std::function<void()> fn) {
  {
    std::lock_guard lock(impl_->mu);
    if (impl_->stopping)
      return Error{ErrorCode::kCancelled, "executor " + impl_->options.name + " is stopping"};
    ++impl_->running;
  }
  Worker& worker = *impl_->workers[thread % impl_->workers.size()];
  worker.wakers.fetch_add(1);  // The fiber may be over, and the executor ending, before the poke.
  {
    std::lock_guard lock(worker.mu);
    worker.incoming.push_back(std::move(fn));
  }
  if (t_worker != &worker) worker.Poke();
  worker.wakers.fetch_sub(1);
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

void* FiberLocal() { return LocalSlot().get(); }
void SetFiberLocal(void* value) { LocalSlot().reset(static_cast<Anything*>(value)); }

struct FiberEvent::Impl {
  std::mutex mu;
  std::atomic<bool> set{false};                  // Written with mu held.
  std::condition_variable changed;               // For plain threads.
  std::vector<std::shared_ptr<Waiter>> waiters;  // Fibers.
};

FiberEvent::FiberEvent() : impl_(std::make_shared<Impl>()) {}
FiberEvent::~FiberEvent() = default;

void FiberEvent::Set() {
  const auto impl = impl_;  // The waiter may destroy this object as soon as it sees the flag.
  std::vector<std::shared_ptr<Waiter>> waiters;
  {
    std::lock_guard lock(impl->mu);
    impl->set.store(true);
    waiters.swap(impl->waiters);
    // One that is late needs this lock to return, and its thread lives until it has.
    for (const auto& waiter : waiters) waiter->worker->wakers.fetch_add(1);
  }
  impl->changed.notify_all();
  for (const auto& waiter : waiters) {
    Worker& worker = *waiter->worker;
    if (&worker == t_worker) {
      worker.MakeReady(*waiter);
    } else {
      {
        std::lock_guard lock(worker.mu);
        worker.set.push_back(waiter);
      }
      worker.Poke();
    }
    worker.wakers.fetch_sub(1);
  }
}

bool FiberEvent::IsSet() const { return impl_->set.load(); }

bool FiberEvent::WaitFor(Duration limit) {
  const auto impl = impl_;
  if (impl->set.load() || limit <= Duration::zero()) return impl->set.load();
  const bool for_ever = limit > std::chrono::hours(24 * 365 * 10);
  Worker* const worker = t_worker;
  const bool on_fiber = worker != nullptr && !boost::fibers::context::active()->is_context(
                                                 boost::fibers::type::pinned_context);
  std::unique_lock lock(impl->mu);
  const auto is_set = [&] { return impl->set.load(); };
  if (!on_fiber) {
    if (!for_ever) return impl->changed.wait_for(lock, limit, is_set);
    impl->changed.wait(lock, is_set);
    return true;
  }
  if (is_set()) return true;
  const auto waiter =
      std::make_shared<Waiter>(Waiter{worker, boost::fibers::context::active(), {}, false});
  waiter->until =
      worker->waiting.emplace(for_ever ? Time::Never() : SteadyClock().Now() + limit, waiter);
  impl->waiters.push_back(waiter);
  lock.unlock();
  // Whoever sets it from now on leaves that to this thread, which looks when this is suspended.
  boost::fibers::context::active()->suspend();
  if (is_set()) return true;
  lock.lock();
  std::erase(impl->waiters, waiter);
  return is_set();
}

}  // namespace troupe
