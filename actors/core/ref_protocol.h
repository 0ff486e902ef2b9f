// Messages between processes that refer to each other's objects. See RefTable.
// Thread: plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/core/protocol.h"
#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr uint8_t kRefNotes = 110;
inline constexpr uint8_t kRefAnswers = 111;

// What a process that has died had passed on is on its way for no longer.
inline constexpr Duration kRefSettle = seconds(5);

// As whose objects RefTable knows actors whose handles are counted: the head counts them.
inline constexpr const char* kHandles = "handles";

struct RefKey {
  std::string owner;    // The process.
  uint64_t number = 0;  // Of the object there.
  auto operator<=>(const RefKey&) const = default;
};

struct RefNote {
  uint64_t number = 0;   // Of the object.
  uint64_t version = 0;  // The highest counts, in whatever order they come.
  bool held = false;     // The sender borrows it, or does not any more.
  template <class A>
  void Fields(A& a) {
    a(number, version, held);
  }
};

// To an owner, of its objects; and to who has sent refs, of its messages.
struct RefNotes {
  ActorAddress sender;  // Where it reads objects of others' and its own are read.
  std::vector<RefNote> holds;
  std::vector<uint64_t> taken;  // After those.
  template <class A>
  void Fields(A& a) {
    a(sender, holds, taken);
  }
};

struct RefAnswer {
  uint64_t number = 0;
  uint64_t version = 0;
  bool known = false;  // False: there is no such object any more.
  template <class A>
  void Fields(A& a) {
    a(number, version, known);
  }
};

struct RefAnswers {
  std::vector<RefAnswer> holds;
  std::vector<uint64_t> taken;
  template <class A>
  void Fields(A& a) {
    a(holds, taken);
  }
};

}  // namespace troupe::actors
