// Both ends of a fork server: a process that has prepared itself for work, and of which each that
// is to work is a fork.
//
// A fork costs milliseconds where the preparation (an interpreter and its imports) costs tenths of
// seconds. Each worker is forked by a guard of its own (troupe-guard), which is a child of the
// node, not of the server, and outlives the server.
//
//   node --socket--> server       asks for a worker, with the descriptors of its guard
//                      | clone, as the node's child
//                    guard        tells its pid and the worker's on its socket
//                      | fork     then execs troupe-guard
//                    worker       returns from ServeFork
//
// Only a process without other threads may be forked: a lock that one of them holds would be held
// in the fork for ever.
// Thread: the server's only one; the node's from any.
// Limits: what a socket takes; who asks for more is told that nothing came of it.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// ---- the node ----

struct ForkOrder {
  std::string guard;  // The path of troupe-guard.
  int socket = -1;    // Its stdin.
  int out = -1;       // Stdout and stderr of both.
  int err = -1;
};
// Descriptors stay ours. False: the server has ended, or has too much to do. An order may be given
// before the server is ready.
[[nodiscard]] bool OrderFork(int server, const ForkOrder& order);
// What a server says when it is, and its exit status when it may not be forked.
inline constexpr char kForksReady = 'r';
inline constexpr int kForksNothing = 75;

// ---- the server ----

// What an interpreter has to do about a fork.
struct ForkHooks {
  void (*before)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)() = nullptr;
};
enum class Forked : uint8_t { kParent, kChild, kNodeGone, kUnfit };
// Whether this process has no other thread. Pools of libraries that end before a fork do so now.
[[nodiscard]] bool MayFork();
// Waits for the next order on `socket` and carries it out. kChild: this is the worker; its stdin
// is a pipe, and ends when it has been given its work. kUnfit: as MayFork says.
[[nodiscard]] Forked ServeFork(int socket, const ForkHooks& hooks);

}  // namespace troupe
