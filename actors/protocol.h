// Messages between a caller and an actor's process, and the description of an actor to be made.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors {

inline constexpr uint8_t kFrameActorCall = 73;
inline constexpr uint8_t kFrameActorReply = 74;
inline constexpr uint8_t kActorBlueprint = 75;

inline constexpr uint32_t kMailboxDepthMax = 10'000;  // Calls that wait in one actor.
inline constexpr uint32_t kMaxConcurrencyMax = 100'000;

struct ActorCall {
  uint64_t id = 0;  // Unique per caller.
  std::string method;
  std::string arguments;
  template <class A>
  void Fields(A& a) {
    a(id, method, arguments);
  }
};

struct ActorReply {
  uint64_t id = 0;
  uint8_t code = 0;  // ErrorCode.
  std::string message;
  std::string value;
  template <class A>
  void Fields(A& a) {
    a(id, code, message, value);
  }
};

struct ActorBlueprint {
  std::string type;
  std::string arguments;
  uint32_t max_concurrency = 1;
  uint32_t mailbox_depth = kMailboxDepthMax;
  template <class A>
  void Fields(A& a) {
    a(type, arguments, max_concurrency, mailbox_depth);
  }
};

}  // namespace troupe::actors
