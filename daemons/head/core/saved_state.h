// What an actor has saved, as it lies in the store.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::daemons {

struct SavedState {
  uint64_t incarnation = 0;
  uint64_t version = 0;
  std::string state;
  template <class A>
  void Fields(A& a) {
    a(incarnation, version, state);
  }
};

[[nodiscard]] inline std::string ActorStateKey(const std::string& actor) {
  return "actor_state/" + actor;
}

}  // namespace troupe::daemons
