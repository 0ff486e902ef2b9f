// Communicator: the data plane of one member, re-formed from epoch to epoch over persistent links.
//
// Links are made per peer slot and outlive epochs; Begin maps the ranks of a view onto them. Abort
// releases every blocked collective of its epoch in well under a millisecond, from any thread;
// afterwards the links that carried the aborted operations are poisoned and must be offered and
// linked afresh.
// Thread: Offer, Link and Begin from the link lane; collectives from the collective lane, one at a
// time, in the same order on every rank; Abort, CancelLink and CancelLinks from any thread.
// Invariants: GM-4 (messages of another epoch never match: the epoch is part of every message's
// slot).
// Limits: kCollectiveTimeout per operation; addresses are opaque bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective_groups/reduction.h"
#include "collective_groups/view.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

// Death and epoch changes abort an operation long before; this bounds a peer that is alive but does
// nothing.
inline constexpr Duration kCollectiveTimeout = seconds(300);
inline constexpr Duration kLinkTimeout = seconds(2);
inline constexpr size_t kTransferChunkBytes = size_t{1} << 20;

struct ConstBuffer {
  const void* data = nullptr;
  size_t bytes = 0;
};
struct MutableBuffer {
  void* data = nullptr;
  size_t bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // A fresh end of a link towards `peer_slot`, replacing an older one; returns the address the peer
  // must Link to.
  virtual Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot) = 0;
  // Connects our end to the peer's. Both sides call it; blocks up to kLinkTimeout.
  virtual Status Link(uint32_t peer_slot, const std::string& address) = 0;
  // Releases Link calls that are blocked now.
  virtual void CancelLinks() = 0;
  // Gives up the link to be with `peer_slot`: a Link that is blocked, or comes later, fails at once
  // until the next Offer to that slot. A link that is up stays up.
  virtual void CancelLink(uint32_t peer_slot) = 0;

  // Enters the epoch of `view` as `rank`; all peers must be linked.
  virtual Status Begin(const View& view, int rank) = 0;
  // Ends the epoch if it is the current one (or older); its operations fail with kEpochChanged.
  virtual void Abort(Epoch epoch) = 0;

  // In place over `count` elements. All ranks end with identical bits.
  virtual Status AllReduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  virtual Status Broadcast(void* data, size_t bytes, int root) = 0;
  // out = the blocks of all ranks in order; bytes_per_rank may differ and be zero.
  virtual Status AllGather(const void* in, void* out, std::span<const size_t> bytes_per_rank) = 0;
  virtual Status Barrier() = 0;
  // Copies buffers along a chain of ranks, pipelined in chunks with a hash each. Called by every
  // rank of the chain with equal sizes; returns the bytes this rank sent. kCorrupt if a hash does
  // not match.
  virtual Result<uint64_t> Transfer(std::span<const int> chain,
                                    std::span<const MutableBuffer> buffers) = 0;
};

struct GlooOptions {
  std::string bind_address = "127.0.0.1";  // Address of the interface the data plane uses.
};
[[nodiscard]] Result<std::unique_ptr<Communicator>> MakeGlooCommunicator(
    const GlooOptions& options);

}  // namespace troupe::groups
