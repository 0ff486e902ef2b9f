// What the naive model of the scheduler simulation knows of amounts and nodes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace troupe::sched::sim {

inline constexpr Duration kConfirmWithin = seconds(10);
inline constexpr Duration kStarvationAfter = seconds(20);
inline constexpr int64_t kUnit = 10'000;

using Units = std::map<std::string, int64_t>;  // Amounts in 1/10000; GPU apart from them.

struct Ask {  // What a request or bundle needs.
  Units units;
  int64_t gpu = 0;
  std::string zone;      // The node must have it; empty: any.
  std::string not_zone;  // The node must not have it.

  [[nodiscard]] ResourceSet ToResources() const;
  [[nodiscard]] LabelSelector ToSelector() const;
  [[nodiscard]] int64_t devices() const { return gpu >= kUnit ? gpu / kUnit : 0; }
  auto operator<=>(const Ask&) const = default;
};

// What a node or a bundle has left.
struct Room {
  Units units;
  std::map<uint32_t, int64_t> devices;  // What is free of each.

  [[nodiscard]] bool Fits(const Ask& ask) const;
  [[nodiscard]] bool FitsBeside(const Ask& ask, const Ask& held) const;
  [[nodiscard]] int64_t WholeDevices() const;
  [[nodiscard]] size_t Copies(const Ask& ask, size_t most) const;
  // False if that is more than there is; it is taken all the same.
  bool Take(const Ask& ask, const std::vector<uint32_t>& on);
};

struct ModelNode {
  uint64_t incarnation = 1;
  Units units;
  int64_t devices = 0;
  std::string zone;
  bool alive = true;
  bool draining = false;
  Time aside_until;
  int failures = 0;

  [[nodiscard]] bool Usable(Time now) const { return alive && !draining && aside_until <= now; }
  [[nodiscard]] Room Whole() const;
  [[nodiscard]] bool Accepts(const Ask& ask) const {
    return (ask.zone.empty() || ask.zone == zone) && (ask.not_zone.empty() || ask.not_zone != zone);
  }
};

}  // namespace troupe::sched::sim
