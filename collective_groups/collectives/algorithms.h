// Algorithms: collectives over a Channel. Each rank of the team calls the same one.
//
// Small all-reduces double recursively (fewest rounds), larger ones of 2^n ranks halve recursively,
// large ones go around a ring in segments (fewest bytes in few messages); broadcasts go down a
// binomial tree in segments; an exchange posts everything at once. All ranks end with identical
// bits: operands are combined in an order that depends on ranks alone.
// Source: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
// MPICH, 2005.
// Thread: the collective lane.
// Limits: kSmallAllReduceBytes, kMediumAllReduceBytes, kSegmentBytes; 256 ranks (phases of a key).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "collective_groups/collectives/team.h"
#include "collective_groups/links/channel.h"
#include "collective_groups/reduction/reduction.h"

namespace troupe::groups {

inline constexpr size_t kSmallAllReduceBytes = size_t{64} << 10;
inline constexpr size_t kMediumAllReduceBytes = size_t{1} << 20;
inline constexpr size_t kSegmentBytesLeast = size_t{64} << 10;
inline constexpr size_t kSegmentBytes = size_t{1} << 20;

struct Elements {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};
struct ConstBuffer {
  const void* data = nullptr;
  size_t bytes = 0;
};
struct MutableBuffer {
  void* data = nullptr;
  size_t bytes = 0;
};
// A block to send to, or to receive from, a position of the team.
struct OutgoingBlock {
  int peer = 0;
  const void* data = nullptr;
  size_t bytes = 0;
};
struct IncomingBlock {
  int peer = 0;
  void* data = nullptr;
  size_t bytes = 0;
};

// Memory that operations use one after the other. It must outlive what is in flight in the channel.
class Workspace {
 public:
  // Uninitialised; valid until the next call.
  char* Get(size_t bytes) {
    if (bytes > bytes_) {
      memory_ = std::make_unique_for_overwrite<char[]>(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t bytes_ = 0;
};

// What an all-reduce does with parts of its memory (bytes) while others are on their way.
struct AllReduceHooks {
  std::function<void(size_t begin, size_t bytes)> fill;   // Puts the input there; empty: it is.
  std::function<void(size_t begin, size_t bytes)> drain;  // The result is there, and stays.
  double scale = 1.0;                                     // Of the result.
};

// One operation of one team on one channel.
class Algorithms {
 public:
  Algorithms(Channel* channel, const Team* team, uint64_t key, Workspace* workspace)
      : channel_(channel), team_(team), key_(key), workspace_(workspace) {}

  // Over `count` elements; `in` and `out` may be the same memory.
  Status AllReduce(const void* in, void* out, size_t count, Elements elements,
                   const AllReduceHooks& hooks = {});
  // `in` holds the blocks of all ranks in order, `counts[r]` elements for rank r; `out` takes the
  // reduced block of this rank.
  Status ReduceScatter(const void* in, void* out, std::span<const size_t> counts,
                       Elements elements);
  Status Broadcast(void* data, size_t bytes, int root);
  // Blocks of one pair are matched in order. A block for oneself is not allowed.
  Status Exchange(std::span<const OutgoingBlock> outgoing, std::span<const IncomingBlock> incoming);
  // Copies `buffers` from the sources, which hold the same bytes, to the receivers (positions of
  // the team). Chunks are spread over the sources, and passed from receiver to receiver. Returns
  // the bytes this rank sent; kCorrupt if a chunk's hash does not match its source's.
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers);

 private:
  Status WholeAllReduce(const void* in, void* out, size_t count, Elements elements);
  Status Doubling(void* data, size_t count, Elements elements);
  Status Halving(const void* in, void* out, size_t count, Elements elements);
  Status Ring(const void* in, void* out, size_t count, Elements elements,
              const AllReduceHooks& hooks);
  Result<bool> PassHashes(int from, int to, const std::vector<uint64_t>& mine);
  Channel::Ticket Send(int peer, uint64_t phase, const void* data, size_t bytes) {
    return channel_->Send(team_->ranks[peer], key_ | phase, data, bytes);
  }
  Channel::Ticket Receive(int peer, uint64_t phase, void* data, size_t bytes) {
    return channel_->Receive(team_->ranks[peer], key_ | phase, data, bytes);
  }

  Channel* const channel_;
  const Team* const team_;
  const uint64_t key_;
  Workspace* const workspace_;
};

}  // namespace troupe::groups
