// Channel: messages between the ranks of one epoch. What algorithms are written against.
//
// A message is matched by its sender and its key; messages of one sender under one key arrive in
// the order they were sent. Send and Receive only start; the memory must stay until Wait has
// returned or the channel was cleared. Waiting for one message may leave others where they are.
// Thread: the collective lane; Abort from any thread.
// Invariants: GM-4 (a channel belongs to one epoch, whose messages never match those of another).
// Limits: kCollectiveTimeout per Wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/result.h"

namespace troupe::groups {

class Channel {
 public:
  using Ticket = uint64_t;

  virtual ~Channel() = default;

  virtual Ticket Send(int to, uint64_t key, const void* data, size_t bytes) = 0;
  virtual Ticket Receive(int from, uint64_t key, void* data, size_t bytes) = 0;
  // kEpochChanged after Abort; kPeerGone if the link broke.
  [[nodiscard]] virtual Status Wait(Ticket ticket) = 0;
  // Forgets every message that was not waited for; afterwards nothing touches their memory.
  virtual void Clear() = 0;
  // Releases a blocked Wait and fails every later one.
  virtual void Abort() = 0;
};

// What tells the messages of one operation from those of another: 14 bits of the operation's
// number, 24 of its signature, 5 of its team. The phase (5 bits) is added by the algorithm. Ranks
// that call different operations at the same place never match, so none takes a wrong result.
[[nodiscard]] constexpr uint64_t OperationKey(uint32_t team, uint64_t sequence,
                                              uint64_t signature) {
  return (uint64_t{team & 31} << 43) | ((sequence & 0x3fff) << 29) | ((signature & 0xffffff) << 5);
}

}  // namespace troupe::groups
