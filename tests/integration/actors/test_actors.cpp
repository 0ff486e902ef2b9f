#include "tests/integration/actors/test_actors.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace troupe::testing {

int64_t Counter::Pid() const { return ::getpid(); }
int64_t Ledger::Pid() const { return ::getpid(); }

void Counter::CorruptTheHeap() {
  auto* block = static_cast<char*>(std::malloc(64));
  std::memset(block - 16, 0x5a, 128);
  std::free(block);  // NOLINT: that is the point.
  std::abort();      // An allocator that does not look goes on.
}

std::string Counter::Linger(CallContext& call) {
  const Status woken = call.Sleep(seconds(60));
  return woken.ok() ? "slept" : std::string(ErrorCodeName(woken.error().code));
}

void Counter::Block(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

int Counter::Gate(CallContext& call, int ms) {
  (void)call.Sleep(milliseconds(ms));
  return ++value_;
}

std::string Counter::Env(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "(none)" : value;
}

int64_t Ledger::AddAndDie(int64_t by) {
  sum_ += by;
  std::_Exit(3);
}

int Boss::AddTo(const ActorHandle<Counter>& counter, int by) {
  return counter.Call(&Counter::Add, by).GetValue();
}

int Boss::MakeFail(const ActorHandle<Counter>& counter, const std::string& what) {
  (void)counter.Call(&Counter::Fail, what).GetValue();
  return 0;
}

ActorHandle<Counter> Boss::Hire(int start) {
  Result<ActorHandle<Counter>> counter = Cluster::Current().Spawn<Counter>({}, start);
  if (!counter.ok()) throw ActorError(counter.error());
  return *counter;
}

ActorHandle<Counter> Boss::HireHere(int start) {
  return Cluster::Current().SpawnHere<Counter>({}, start).value();
}

std::string Boss::WaitFor(const ActorHandle<Counter>& counter) {
  const Result<std::string> said = counter.Call(&Counter::Linger).Get();
  return said.ok() ? *said : said.error().ToString();
}

int Crowd::Meet(int wanted) {
  std::unique_lock lock(mu_);
  ++here_;
  changed_.notify_all();
  (void)changed_.wait_for(lock, std::chrono::seconds(60), [&] { return here_ >= wanted; });
  return here_;
}

int Crowd::AddTo(const ActorHandle<Counter>& counter, int by) {
  return counter.Call(&Counter::Add, by).GetValue();
}

void Crowd::Linger() {
  const Status woken = CallContext::Current()->Sleep(seconds(60));
  std::lock_guard lock(mu_);
  if (!woken.ok() && woken.error().code == ErrorCode::kCancelled) ++cancelled_;
  changed_.notify_all();
}

int Crowd::Cancelled() {
  std::unique_lock lock(mu_);
  (void)changed_.wait_for(lock, std::chrono::seconds(20), [&] { return cancelled_ > 0; });
  return cancelled_;
}

int Square(int x) { return x * x; }
int NestedTask(int depth, double cpus) {
  if (depth == 0) return 0;
  TaskOptions options;
  options.resources = {{"CPU", cpus}};
  return 1 + Cluster::Current().RunWith<&NestedTask>(options, depth - 1, cpus).GetValue();
}
int FailTask(const std::string& why) { throw std::out_of_range(why); }
int LingeringTask(CallContext& call) {
  (void)call.Sleep(seconds(60));
  return 0;
}
int64_t TaskPid(CallContext& call, int ms) {
  (void)call.Sleep(milliseconds(ms));
  return ::getpid();
}

}  // namespace troupe::testing
