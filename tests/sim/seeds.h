// Which seeds a simulation runs over: TROUPE_SIM_SEEDS=N runs N seeds, TROUPE_SIM_SEED=S replays
// one, TROUPE_SIM_RANDOM=1 starts at a random seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace troupe::sim {

struct Seeds {
  uint64_t first = 1;
  uint64_t count = 1;
  bool replay = false;
  [[nodiscard]] uint64_t end() const { return first + count; }
};

inline Seeds SeedsToRun(uint64_t count) {
  const auto number = [](const char* name, uint64_t fallback) -> uint64_t {
    const char* text = std::getenv(name);
    return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
  };
  if (const uint64_t replay = number("TROUPE_SIM_SEED", 0); replay != 0) return {replay, 1, true};
  const bool random = number("TROUPE_SIM_RANDOM", 0) != 0;
  return {random ? std::random_device()() : 1, number("TROUPE_SIM_SEEDS", count), false};
}

}  // namespace troupe::sim
