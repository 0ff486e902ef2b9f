// The production head in the simulated cluster, and what it keeps records in.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "daemons/head/head_service.h"
#include "runtime/lane.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/support/memory_spool.h"

namespace troupe::daemons::sim {

// The store's thread: one function after the other, each some time after it was posted.
class SimLane final : public Lane {
 public:
  SimLane(World* world, EventLoop* loop) : world_(world), loop_(loop) {}
  Status Post(std::function<void()> fn) override;
  void Stop() { queue_.clear(); }

 private:
  void Next();
  World* const world_;
  EventLoop* const loop_;
  std::deque<std::function<void()>> queue_;
  bool armed_ = false;
};

// What one head sees of the store. It can end the head between two writes.
class SimStore final : public Store {
 public:
  explicit SimStore(World* world) : world_(world) {}
  void DieAfter(int writes) { left_ = writes; }

  Result<std::optional<std::string>> Get(std::string_view key) override;
  Status Put(std::string_view key, std::string_view value, Duration ttl) override;
  Status CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                       std::string_view value, Duration ttl) override;
  Result<int64_t> Increment(std::string_view key, int64_t by) override;
  Status Delete(std::string_view key) override;
  Result<std::map<std::string, std::string>> List(std::string_view prefix) override;
  Result<size_t> DeletePrefix(std::string_view prefix) override;

 private:
  template <class F>
  auto Write(F&& write) -> decltype(write());

  World* const world_;
  int left_ = 0;  // 0: it lives on.
  bool dead_ = false;
};

class SimHead {
 public:
  explicit SimHead(World* world);
  ~SimHead();
  void Die();
  [[nodiscard]] SimPort& port() { return port_; }
  [[nodiscard]] SimStore& store() { return store_; }

 private:
  SimPort port_;
  SimLane lane_;
  SimStore store_;
  MemorySpool spool_;
  std::unique_ptr<HeadService> service_;
};

}  // namespace troupe::daemons::sim
