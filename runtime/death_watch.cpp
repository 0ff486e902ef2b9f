#include "runtime/death_watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace troupe {
namespace {

constexpr uint32_t kMagic = 0x54525058;  // "TRPX"
constexpr int64_t kWatchSliceNs =
    200'000'000;  // How often a watcher looks whether it was told to stop.
constexpr int64_t kOutOfTurnNs = 2'000'000'000;  // In which whoever holds such a slot lets go.

struct Slot {
  pthread_mutex_t mutex;
  std::atomic<uint32_t> held;  // 1 from the moment the worker owns the mutex.
  std::atomic<uint64_t> turn;  // Whose slot it is.
};
struct Page {
  std::atomic<uint32_t> magic;
  Slot slots[kDeathWatchSlots];
};

void InitMutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

timespec MonotonicIn(int64_t ns) {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  const int64_t total = t.tv_nsec + ns;
  return {t.tv_sec + total / 1'000'000'000, static_cast<long>(total % 1'000'000'000)};
}

// Takes a slot in this turn. Who came too late for its own turn may hold it for a moment, or have
// died with it.
Status Take(Slot& slot, uint64_t turn) {
  const Error passed{ErrorCode::kFenced,
                     "this process was given up before it began; its slot is another one's"};
  if (slot.turn.load() != turn) return passed;
  const timespec until = MonotonicIn(kOutOfTurnNs);
  int rc = pthread_mutex_clocklock(&slot.mutex, CLOCK_MONOTONIC, &until);
  if (rc == EOWNERDEAD) rc = pthread_mutex_consistent(&slot.mutex);
  if (slot.turn.load() == turn) {
    if (rc == 0) return Status::Ok();
    return Error{
        ErrorCode::kAlreadyExists,
        std::string("its death-watch slot is held by another process: ") + std::strerror(rc)};
  }
  if (rc == 0) pthread_mutex_unlock(&slot.mutex);
  return passed;
}

}  // namespace

struct DeathWatch::Impl {
  struct Watcher {
    std::atomic<bool> stop{false};
    std::thread thread;
  };

  Page* page = nullptr;
  std::mutex mu;
  std::map<uint32_t, std::unique_ptr<Watcher>> watchers;
  // Worker side.
  std::thread holder;
  std::condition_variable release;
  bool releasing = false;

  void WatchSlot(uint32_t index, Watcher& watcher, const std::function<void()>& on_death) {
    Slot& slot = page->slots[index];
    while (!watcher.stop.load()) {
      if (slot.held.load() == 0) {  // Not taken yet: locking now would take it from the worker.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
      const timespec until = MonotonicIn(kWatchSliceNs);
      const int rc = pthread_mutex_clocklock(&slot.mutex, CLOCK_MONOTONIC, &until);
      if (rc == ETIMEDOUT) continue;
      if (rc == EOWNERDEAD) pthread_mutex_consistent(&slot.mutex);
      if (rc == 0 || rc == EOWNERDEAD) pthread_mutex_unlock(&slot.mutex);
      if (!watcher.stop.load()) on_death();
      return;
    }
  }
};

DeathWatch::DeathWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DeathWatch::~DeathWatch() {
  std::map<uint32_t, std::unique_ptr<Impl::Watcher>> watchers;
  {
    std::lock_guard lock(impl_->mu);
    watchers.swap(impl_->watchers);
    impl_->releasing = true;
  }
  impl_->release.notify_all();
  for (auto& [slot, watcher] : watchers) watcher->stop.store(true);
  for (auto& [slot, watcher] : watchers) watcher->thread.join();
  if (impl_->holder.joinable()) impl_->holder.join();
  ::munmap(impl_->page, sizeof(Page));
}

Result<std::unique_ptr<DeathWatch>> DeathWatch::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{ErrorCode::kUnavailable, "cannot create " + path + ": " + std::strerror(errno)};
  // posix_fallocate, not ftruncate: a full disk must be an error here, not a SIGBUS later.
  const int rc = ::posix_fallocate(fd, 0, sizeof(Page));
  void* memory = rc == 0 ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                         : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::kResourceExhausted,
                 "cannot map " + path + ": " + std::strerror(rc != 0 ? rc : errno)};
  }
  auto impl = std::make_unique<Impl>();
  impl->page = new (memory) Page;
  for (Slot& slot : impl->page->slots) {
    InitMutex(&slot.mutex);
    slot.held.store(0);
    slot.turn.store(0);
  }
  impl->page->magic.store(kMagic);
  return std::unique_ptr<DeathWatch>(new DeathWatch(std::move(impl)));
}

Result<std::unique_ptr<DeathWatch>> DeathWatch::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return Error{ErrorCode::kNotFound, "cannot open " + path + ": " + std::strerror(errno)};
  const off_t size = ::lseek(fd, 0, SEEK_END);
  void* memory = size == static_cast<off_t>(sizeof(Page))
                     ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return Error{ErrorCode::kCorrupt, path + " is not a death-watch page"};
  auto impl = std::make_unique<Impl>();
  impl->page = static_cast<Page*>(memory);
  if (impl->page->magic.load() != kMagic) {
    ::munmap(memory, sizeof(Page));
    return Error{ErrorCode::kCorrupt, path + " is not a death-watch page"};
  }
  return std::unique_ptr<DeathWatch>(new DeathWatch(std::move(impl)));
}

Status DeathWatch::Hold(uint32_t slot, uint64_t turn) {
  if (slot >= kDeathWatchSlots)
    return Error{ErrorCode::kInvalidArgument, "death-watch slot out of range"};
  std::optional<Status> taken;
  std::unique_lock lock(impl_->mu);
  if (impl_->holder.joinable())
    return Error{ErrorCode::kAlreadyExists, "this object holds a death-watch slot already"};
  impl_->holder = std::thread([this, slot, turn, &taken] {
    Slot& mine = impl_->page->slots[slot];
    const Status status = Take(mine, turn);
    std::unique_lock inner(impl_->mu);
    if (status.ok()) mine.held.store(1);
    taken = status;
    impl_->release.notify_all();
    if (!status.ok()) return;
    impl_->release.wait(inner, [this] { return impl_->releasing; });
    pthread_mutex_unlock(&mine.mutex);
  });
  impl_->release.wait(lock, [&] { return taken.has_value(); });
  if (taken->ok()) return Status::Ok();
  lock.unlock();
  impl_->holder.join();
  return *taken;
}

uint64_t DeathWatch::Reset(uint32_t slot) {
  Slot& reset = impl_->page->slots[slot];
  const uint64_t turn = reset.turn.load() + 1;
  reset.turn.store(turn);
  reset.held.store(0);
  InitMutex(&reset.mutex);
  return turn;
}

bool DeathWatch::WasHeld(uint32_t slot) const { return impl_->page->slots[slot].held.load() != 0; }

void DeathWatch::Watch(uint32_t slot, std::function<void()> on_death) {
  Unwatch(slot);
  auto watcher = std::make_unique<Impl::Watcher>();
  Impl::Watcher& ref = *watcher;
  ref.thread = std::thread(
      [this, slot, &ref, fn = std::move(on_death)] { impl_->WatchSlot(slot, ref, fn); });
  std::lock_guard lock(impl_->mu);
  impl_->watchers[slot] = std::move(watcher);
}

void DeathWatch::Unwatch(uint32_t slot) {
  std::unique_ptr<Impl::Watcher> watcher;
  {
    std::lock_guard lock(impl_->mu);
    const auto it = impl_->watchers.find(slot);
    if (it == impl_->watchers.end()) return;
    watcher = std::move(it->second);
    impl_->watchers.erase(it);
  }
  watcher->stop.store(true);
  watcher->thread.join();
}

}  // namespace troupe
