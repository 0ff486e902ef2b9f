// Communicator: the data plane of one member, re-formed from epoch to epoch over persistent links.
//
// It chooses the way for every team by itself: shared memory among members of one host, Gloo
// between hosts, both in two levels when a team spans hosts with several members. Before an
// operation is done for the first time in an epoch, all ranks compare what they are about to do;
// afterwards nothing is negotiated. Abort releases every blocked operation of its epoch in well
// under a millisecond, from any thread.
// Thread: Offer, Link and Begin from the link lane (Link of several peers also at once); operations
// from one thread at a time, in the same order on every rank; Abort, CancelLink and CancelLinks
// from any thread.
// Invariants: GM-4 (messages of another epoch never match). An operation that fails leaves its
// input as it was, unless input and output are the same memory.
// Limits: kCollectiveTimeout per wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective_groups/collectives/algorithms.h"
#include "collective_groups/collectives/team.h"
#include "collective_groups/gpu/device.h"
#include "collective_groups/links/links.h"
#include "collective_groups/membership/view.h"
#include "collective_groups/reduction/reduction.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

// Death, stalls and epoch changes end an operation long before; this bounds everything else.
inline constexpr Duration kCollectiveTimeout = seconds(3600);
// Signatures that a member keeps of those that all have called in an epoch; names that never come
// again would be kept for ever. Who has as many forgets all of them, at the same call as everybody.
inline constexpr size_t kAgreedMax = 65'536;

// What a rank is about to do.
struct Operation {
  uint32_t team = 0;
  // Of everything that all ranks must agree on; 0: they do not compare.
  uint64_t signature = 0;
  std::string text;  // The same for people, such as `all-reduce "grad" float32[1024] sum`.
  Device device{};   // Where all buffers are. State transfers are of host memory always.
};

struct ReduceArguments {
  Elements elements;
  size_t count = 0;  // Elements.
  double prescale = 1.0;
  double postscale = 1.0;
  bool average = false;  // Divides by the size of the team after a sum.
  // Each rank has a prescale of its own. All else is equal on all ranks.
  bool weighted = false;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // ---- links ----
  // Members with the same, non-empty value can share memory.
  [[nodiscard]] virtual const std::string& memory() const = 0;
  // See Links; `peer_memory` is the peer's memory().
  virtual Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot,
                                    const std::string& peer_memory) = 0;
  virtual Status Link(uint32_t peer_slot, const std::string& address) = 0;
  virtual void CancelLinks() = 0;
  // Gives up the link to be with `peer_slot`: a Link that is blocked, or comes later, fails at once
  // until the next Offer to that slot. A link that is up stays up.
  virtual void CancelLink(uint32_t peer_slot) = 0;

  // Enters the epoch of `view` as `rank`; all peers must be linked. Ends the epoch before, and
  // returns when nothing of it runs any more. `teams` are those besides the whole view.
  virtual Status Begin(const View& view, int rank, std::vector<Team> teams) = 0;
  // Bytes that have moved over connections to other hosts so far; 0: not known. Any thread.
  [[nodiscard]] virtual uint64_t moved() { return 0; }
  // Ends the epoch if it is the current one (or older); its operations fail with kEpochChanged.
  virtual void Abort(Epoch epoch) = 0;

  // ---- operations ----
  // kMismatch, on every rank and naming both sides, if the ranks disagree; kEpochChanged
  // after Abort; kPeerGone if a link broke. Roots and peers are positions in the team.

  // A team that begins now, in this place of the order of operations.
  virtual Status AddTeam(Team team) = 0;
  // The highest `value` of these ranks of the view, ascending, which are in no team of their own
  // yet; the others do not call it.
  virtual Result<uint64_t> HighestAmong(const Operation& operation, std::span<const int> ranks,
                                        int64_t value);
  // `in` and `out` hold `count` elements each, in pieces; they may be the same memory. An empty
  // `out`: this rank does not want the result. All ranks that do end with identical bits.
  virtual Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                           std::span<const MutableBuffer> out,
                           const ReduceArguments& arguments) = 0;
  // `in` holds the blocks of all ranks in order, `counts[r]` elements for rank r; `out` takes the
  // reduced block of this rank.
  virtual Status ReduceScatter(const Operation& operation, const void* in, void* out,
                               std::span<const size_t> counts,
                               const ReduceArguments& arguments) = 0;
  virtual Status Broadcast(const Operation& operation, void* data, size_t bytes, int root) = 0;
  // Sizes of blocks must fit pairwise; a block for oneself is not allowed.
  virtual Status Exchange(const Operation& operation, std::span<const OutgoingBlock> outgoing,
                          std::span<const IncomingBlock> incoming) = 0;
  virtual Status Barrier(const Operation& operation) = 0;
  // From this member to `to`, which calls Receive with as many bytes; the others call neither. Both
  // compare what they mean first, so neither returns before the other has come.
  virtual Status Send(const Operation& operation, const void* data, size_t bytes, int to);
  virtual Status Receive(const Operation& operation, void* data, size_t bytes, int from);
  // Copies `buffers` from the sources, which hold the same bytes, to the receivers (ranks of the
  // view; others need not call). Returns the bytes this rank sent; kCorrupt if a chunk's hash does
  // not match.
  virtual Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                                    std::span<const MutableBuffer> buffers) = 0;
  // Of the current epoch; an empty team if there is none of this number.
  [[nodiscard]] virtual Team team(uint32_t id) const = 0;

  // ---- devices ----
  // Whether buffers may be in device memory. From any thread, as Mark.
  [[nodiscard]] virtual bool devices() const { return false; }
  // For an operation on memory of device `index` that waits for what is in `stream` now.
  virtual Result<Device> Mark(int index, void* stream);
  // AllGather (collectives.h) of an operation on devices.
  virtual Status AllGatherOnDevice(const Operation& operation, const void* in, void* out,
                                   std::span<const size_t> bytes_per_rank);
};

struct CommunicatorOptions {
  GlooOptions gloo;
  // Members with the same host share memory if the kernel lets them. Empty: no shared memory.
  std::string host;
};
// For memory of the host and, where there is a CUDA driver, of GPUs.
[[nodiscard]] Result<std::unique_ptr<Communicator>> MakeCommunicator(
    const CommunicatorOptions& options);
// Over links of another kind, for host memory alone; `host` as in the options.
[[nodiscard]] Result<std::unique_ptr<Communicator>> MakeCommunicator(std::unique_ptr<Links> links,
                                                                     const std::string& host);

}  // namespace troupe::groups
