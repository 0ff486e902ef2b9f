// Actors that the tests of real clusters spawn. The test program is their worker, too.
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <troupe/troupe.h>

namespace troupe::testing {

class Counter {
 public:
  explicit Counter(int start) : value_(start) {
    if (start < 0) throw std::invalid_argument("start is negative");
  }
  int Add(int by) { return value_ += by; }
  int Value() const { return value_; }
  int64_t Pid() const;
  void Fail(const std::string& what) { throw std::runtime_error(what); }
  Result<int> Refuse() { return Error{ErrorCode::kPermissionDenied, "not today"}; }
  std::string Echo(const std::string& text) { return text; }
  std::vector<int> EchoNumbers(const std::vector<int>& numbers) { return numbers; }
  void Exit(int code) { std::_Exit(code); }
  void CorruptTheHeap();
  void Leave(CallContext& call, const std::string& reason) { call.Exit(reason); }
  // Until it is cancelled or its time is up; says how it ended.
  std::string Linger(CallContext& call);
  // Blocks its thread, deaf to everything.
  void Block(int milliseconds);
  int Gate(CallContext& call, int milliseconds);
  std::string Env(const std::string& name) const;

 private:
  int value_;
};

// Keeps its state over restarts.
class Ledger {
 public:
  Ledger() = default;
  int64_t Add(int64_t by) { return sum_ += by; }
  int64_t Sum() const { return sum_; }
  // The effect, then the end of the process before anything is said of it.
  int64_t AddAndDie(int64_t by);
  std::string Save() const { return std::to_string(sum_); }
  void Restore(const std::string& state) { sum_ = std::stoll(state); }
  int64_t Pid() const;

 private:
  int64_t sum_ = 0;
};

// Calls others.
class Boss {
 public:
  int AddTo(const ActorHandle<Counter>& counter, int by);
  // Its error is due to the counter's.
  int MakeFail(const ActorHandle<Counter>& counter, const std::string& what);
  ActorHandle<Counter> Hire(int start);
  ActorHandle<Counter> HireHere(int start);
  std::string WaitFor(const ActorHandle<Counter>& counter);
};

// Its methods block their threads.
class Crowd {
 public:
  // Until so many calls are in it; how many there are.
  int Meet(int wanted);
  int AddTo(const ActorHandle<Counter>& counter, int by);
  // Until it is cancelled, or its time is up.
  void Linger();
  // How many calls of Linger were cancelled, when there is one.
  int Cancelled();
  bool Restarted(CallContext& call) { return call.restarted(); }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int here_ = 0;
  int cancelled_ = 0;
};

// What stands in the class comes before its description.
class Chain {
 public:
  int Length(const ActorHandle<Chain>& next) {
    return next ? 1 + next.Call(&Chain::Length, ActorHandle<Chain>()).GetValue() : 1;
  }
  int LengthWithOneMore() { return Length(Cluster::Current().SpawnHere<Chain>({}).value()); }
};

int Square(int x);
// Waits for one like it, `depth` times; each takes `cpus`.
int NestedTask(int depth, double cpus);
int FailTask(const std::string& why);
int64_t TaskPid(CallContext& call, int milliseconds);
// Until it is cancelled.
int LingeringTask(CallContext& call);

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Counter, (int), Add, Value, Pid, Fail, Refuse, Echo, EchoNumbers,
             Exit, CorruptTheHeap, Leave, Linger, Block, Gate, Env);
TROUPE_ACTOR(troupe::testing::Ledger, (), Add, Sum, AddAndDie, Pid);
TROUPE_ACTOR(troupe::testing::Boss, (), AddTo, MakeFail, Hire, HireHere, WaitFor);
TROUPE_ACTOR(troupe::testing::Crowd, (), Meet, AddTo, Linger, Cancelled, Restarted);
TROUPE_ACTOR(troupe::testing::Chain, (), Length, LengthWithOneMore);
TROUPE_TASK(troupe::testing::Square);
TROUPE_TASK(troupe::testing::NestedTask);
TROUPE_TASK(troupe::testing::FailTask);
TROUPE_TASK(troupe::testing::TaskPid);
TROUPE_TASK(troupe::testing::LingeringTask);
