// LoopbackNetwork: transports inside one process on virtual time, with faults, for simulation.
//
// All nodes share one event queue ordered by (time, sequence), driven by Step; the same seed gives
// the same run.
// Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "runtime/timer_queue.h"
#include "runtime/transport.h"

namespace troupe {

struct LoopbackFaults {
  double loss = 0;       // Probability that a frame vanishes.
  double duplicate = 0;  // Probability that a frame arrives twice.
  Duration delay_min = microseconds(20);
  Duration delay_max = microseconds(20);  // A range above zero width reorders frames,
  bool ordered = false;                   // but for those of one sender to one receiver.
};

class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(uint64_t seed);
  ~LoopbackNetwork();

  // A transport that is linked to every other one of this network. Destroying it drops frames
  // addressed to it.
  std::unique_ptr<Transport> MakeTransport(const std::string& name);
  void SetFaults(LoopbackFaults faults) { faults_ = faults; }
  // Frames from `from` to `to` vanish until Heal; call twice for a symmetric partition.
  void Block(const std::string& from, const std::string& to) { blocked_.emplace(from, to); }
  void Heal() { blocked_.clear(); }

  [[nodiscard]] Time Now() const { return now_; }
  // Advances to the next due event and runs it; false when nothing is due up to `until` (time then
  // is `until`).
  bool Step(Time until);
  void RunFor(Duration d);
  // Frames delivered, folded over names and bytes: equal for equal seeds.
  [[nodiscard]] uint64_t event_hash() const { return hash_; }
  [[nodiscard]] std::mt19937_64& random() { return random_; }

 private:
  friend class LoopbackTransport;
  void Route(const std::string& from, const std::string& to, const std::string& frame);
  void Deliver(const std::string& from, const std::string& to, const std::string& frame);

  Time now_{1'000'000'000};
  TimerQueue queue_;
  std::mt19937_64 random_;
  LoopbackFaults faults_;
  std::set<std::pair<std::string, std::string>> blocked_;
  std::map<std::string, class LoopbackTransport*> nodes_;
  std::map<std::pair<std::string, std::string>, Time> last_;  // Arrival, from and to; if ordered.
  uint64_t hash_ = 1469598103934665603ULL;
};

}  // namespace troupe
