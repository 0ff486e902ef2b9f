// Messages between processes that hold actors, and the description of an actor to be made.
//
// A session is all calls of one process to one incarnation of an actor; its calls are numbered
// without gaps. `base` is the lowest number the caller may still send: what is below is settled,
// so its reply need not be kept, and a receiver that does not know the session begins there.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/core/error_chain.h"
#include "runtime/transport.h"

namespace troupe::actors {

inline constexpr uint8_t kFrameActorCall = 73;
inline constexpr uint8_t kFrameActorReply = 74;
inline constexpr uint8_t kActorBlueprint = 75;
inline constexpr uint8_t kFrameActorCheck = 76;
inline constexpr uint8_t kFrameActorMissing = 77;
inline constexpr uint8_t kFrameActorFull = 78;
inline constexpr uint8_t kFrameActorRoom = 79;
inline constexpr uint8_t kFrameActorCancel = 80;
inline constexpr uint8_t kFrameActorWatch = 81;
inline constexpr uint8_t kFrameActorDown = 82;
inline constexpr uint8_t kMailboxState = 83;

inline constexpr uint32_t kMailboxDepthMax = 10'000;             // Calls that wait in one actor,
inline constexpr uint64_t kMailboxBytesMax = uint64_t{1} << 30;  // and their bytes.
inline constexpr uint32_t kMaxConcurrencyMax = 100'000;

struct ActorCall {
  std::string actor;         // Its id in the process that is called.
  uint64_t incarnation = 0;  // Which the caller means; 0: any.
  uint64_t number = 0;
  uint64_t base = 0;
  std::string method;
  std::string arguments;
  uint64_t timeout_ms = 0;  // Left when it was sent.
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, number, base, method, arguments, timeout_ms);
  }
};

struct ActorReply {
  std::string actor;
  uint64_t number = 0;
  ErrorChain error;  // Empty: success.
  std::string value;
  bool confirm = false;  // Its sender ends when it knows that this has arrived.
  template <class A>
  void Fields(A& a) {
    a(actor, number, error, value, confirm);
  }
};

// The caller waits for these: who has their replies sends them again, and says which it never got.
struct ActorCheck {
  std::string actor;
  uint64_t incarnation = 0;
  uint64_t base = 0;
  std::vector<uint64_t> numbers;
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, base, numbers);
  }
};

struct ActorMissing {
  std::string actor;
  std::vector<uint64_t> numbers;
  template <class A>
  void Fields(A& a) {
    a(actor, numbers);
  }
};

// The mailbox took nothing from this number on; Room follows when it does again.
struct ActorFull {
  std::string actor;
  uint64_t number = 0;
  template <class A>
  void Fields(A& a) {
    a(actor, number);
  }
};

struct ActorRoom {
  std::string actor;
  template <class A>
  void Fields(A& a) {
    a(actor);
  }
};

// How a call is given up.
struct Cancellation {
  bool force = false;     // Of a task: the process that runs it ends.
  bool recursive = true;  // The calls that it has made are given up, too.
};

struct ActorCancel {
  std::string actor;
  uint64_t number = 0;
  bool force = false;
  bool recursive = true;
  template <class A>
  void Fields(A& a) {
    a(actor, number, force, recursive);
  }
};

struct ActorWatch {  // Repeated until Down; tell me when this actor has ended.
  std::string actor;
  bool on = true;
  template <class A>
  void Fields(A& a) {
    a(actor, on);
  }
};

struct ActorDown {
  std::string actor;
  ErrorChain reason;
  template <class A>
  void Fields(A& a) {
    a(actor, reason);
  }
};

// What a full mailbox does with a call.
enum class Overflow : uint8_t {
  kWait,    // The call stays with its caller, who is told when there is room.
  kRefuse,  // It fails at once with kBackpressure.
};
constexpr Overflow LastValue(Overflow) { return Overflow::kRefuse; }

struct ActorBlueprint {
  std::string type;
  std::string arguments;
  uint32_t max_concurrency = 1;
  uint32_t mailbox_depth = kMailboxDepthMax;
  uint64_t mailbox_bytes = uint64_t{64} << 20;
  Overflow overflow = Overflow::kWait;
  bool threads = false;  // Calls run on threads of the actor's own, not on fibers.
  template <class A>
  void Fields(A& a) {
    a(type, arguments, max_concurrency, mailbox_depth, mailbox_bytes, overflow, threads);
  }
};

// Where an actor can be called, and as what. Travels inside messages.
struct ActorAddress {
  std::string actor;         // Id: unique in the cluster.
  uint64_t incarnation = 0;  // Of a placed actor: the last one known; 0: it is in a process.
  std::string type;
  PeerAddress process;  // May be empty for a placed actor, whose whereabouts the head knows.
  bool placed = false;
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, type, process, placed);
  }
};

}  // namespace troupe::actors
