// What the algorithms share: the phases of a key, tickets in flight, places on a ring.
// Thread: the collective lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "collective_groups/links/channel.h"

namespace troupe::groups {

// Messages in flight ahead of the one that is worked on. That a peer is ready for the next one is
// told behind the data that this one sends: where the network is slower than the CPU, that takes
// milliseconds, which must be full of messages.
inline constexpr size_t kWindow = 16;

// Phases of a key; a round of doubling adds its number to kDoubling, one of halving and one of
// gathering what was halved to kHalving and kGathering.
enum Phase : uint64_t {
  kFold = 1,
  kUnfold = 2,
  kRing = 3,
  kScatter = 4,
  kTree = 5,
  kBlock = 6,
  kChunk = 7,
  kHashes = 8,
  kDoubling = 16,
  kHalving = 16,
  kGathering = 24,
};

inline int Wrap(int value, int size) { return ((value % size) + size) % size; }

// Tickets to wait for, oldest first.
class Tickets {
 public:
  explicit Tickets(Channel* channel) : channel_(channel) {}
  void Add(Channel::Ticket ticket) { waiting_.push_back(ticket); }
  // Waits until at most `most` are left.
  Status Shrink(size_t most = 0) {
    while (waiting_.size() > most) {
      const Channel::Ticket ticket = waiting_.front();
      waiting_.pop_front();
      if (Status s = channel_->Wait(ticket); !s.ok()) return s;
    }
    return Status::Ok();
  }

 private:
  Channel* const channel_;
  std::deque<Channel::Ticket> waiting_;
};

}  // namespace troupe::groups
