// SharedGroup: the members of one host in one epoch, over their shared segments.
//
// Collectives go in chunks through three stages each: every member puts its chunk into its own
// segment, computes its part of the result from everybody's, and copies the other parts. While one
// chunk is copied the next is computed and the one after it put, so that members seldom wait. What
// a member has done it publishes as a counter in its own segment; whoever waits spins a little and
// then sleeps on its own doorbell. Messages (Channel) go through a ring per pair.
//
// Beside each chunk lies the signature of its operation, and who takes the chunk compares it with
// its own. If they differ, the member waits: nobody takes the bytes of another operation for its
// own, even if who put them there, as a root does, has long gone on.
//
// The rule for reusing a stage: chunk g takes the place of chunk g-3. Before a member puts chunk g
// it has seen everybody's chunk g-2 put, which each does after leaving g-3, of whatever operation;
// before it writes its part of g it has seen everybody's g put, which each does after copying g-3.
// Thread: the collective lane; Abort from any thread.
// Invariants: GM-4 (counters carry the epoch; a member that was left behind finds newer ones and
// fails; at the end of an operation it looks once more).
// Limits: kCollectiveTimeout per wait.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "collective_groups/collectives/algorithms.h"
#include "collective_groups/collectives/internal/segments.h"
#include "collective_groups/links/channel.h"
#include "collective_groups/shm/internal/shared_segment.h"

namespace troupe::groups {

// A team's members on this host: positions in SharedGroup's list of peers.
struct LocalTeam {
  uint32_t id = 0;
  std::vector<int> peers;
  int me = 0;              // Position in `peers`.
  uint64_t chunk = 0;      // Chunks this team has used in this epoch.
  uint64_t signature = 0;  // Of the present operation.

  [[nodiscard]] int size() const { return static_cast<int>(peers.size()); }
};

class SharedGroup final : public Channel {
 public:
  struct Peer {
    int rank = 0;  // Of the view.
    std::shared_ptr<SharedSegment> segment;
  };
  // `peers` are in order of rank and include this member, at `me`.
  SharedGroup(Epoch epoch, std::vector<Peer> peers, size_t me);

  // Combines one part of a chunk with the other hosts' (in place); may block.
  using Across = std::function<Status(void* part, size_t count)>;
  struct Reduction {
    Elements elements;
    double prescale = 1.0;
    double postscale = 1.0;
    int owners = 0;   // The first so many members compute a part each; 0: all.
    int members = 0;  // Of the whole team, on all hosts.
    Across across;    // Null: the team is on this host alone.
  };
  // `out` may be empty: this member does not want the result.
  Status AllReduce(LocalTeam& team, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, size_t count, const Reduction& reduction);
  // From the member at position `root`. `fetch`, if given, brings each chunk to the root first.
  using Fetch = std::function<Status(void* chunk, size_t bytes)>;
  Status Broadcast(LocalTeam& team, void* data, size_t bytes, int root, const Fetch& fetch);
  Status Barrier(LocalTeam& team);
  // How an all-reduce of `count` elements of `width` bytes is cut, alike on all hosts.
  [[nodiscard]] static size_t ChunkElements(size_t count, size_t width, int members);

  Ticket Send(int to, uint64_t key, const void* data, size_t bytes) override;
  Ticket Receive(int from, uint64_t key, void* data, size_t bytes) override;
  Status Wait(Ticket ticket) override;
  void Clear() override;
  void Abort() override;

 private:
  struct Message {
    Ticket ticket = 0;
    uint64_t key = 0;
    char* data = nullptr;  // Only read when sending.
    uint64_t bytes = 0;
    bool begun = false;  // Its head is through.
    uint64_t done = 0;
  };
  struct Line {  // Messages between this member and one peer.
    std::deque<Message> sending;
    std::deque<Message> receiving;
    uint64_t written = 0;
    uint64_t consumed = 0;
  };
  enum class Seen : uint8_t { kYes, kNotYet, kNever };

  Status AllReduceSmall(LocalTeam& team, std::span<const ConstBuffer> in,
                        std::span<const MutableBuffer> out, size_t count,
                        const Reduction& reduction);
  // Returns where this member's own input to its part of the chunk lies.
  const char* PutChunk(LocalTeam& team, uint64_t chunk, SegmentReader& in, size_t elements,
                       const Reduction& reduction);
  Status ComputePart(LocalTeam& team, uint64_t chunk, size_t elements, const char* own,
                     const Reduction& reduction);
  Status CopyParts(LocalTeam& team, uint64_t chunk, SegmentWriter* out, size_t elements,
                   const Reduction& reduction);
  Status StillCurrent(const LocalTeam& team) const;

  using Words = SharedWord (SharedHeader::*)[kTeamsMax];
  void Publish(const LocalTeam& team, Words words, uint64_t count);
  // That a chunk is in this member's stage.
  void PublishStaged(const LocalTeam& team, uint64_t chunk);
  Status WaitForAll(const LocalTeam& team, Words words, uint64_t count, const char* what);
  // Nobody needs what this member's stage for `chunk` has held.
  Status WaitForPlace(const LocalTeam& team, uint64_t chunk, const char* what);
  // Every member's `chunk` of this operation is in its stage.
  Status WaitForStaged(const LocalTeam& team, uint64_t chunk, const char* what);
  template <class Check>
  Status WaitForEach(const LocalTeam& team, const char* what, const Check& check);
  [[nodiscard]] Seen Reached(uint64_t word, uint64_t count) const;
  [[nodiscard]] Seen Staged(const LocalTeam& team, int peer, uint64_t chunk) const;
  uint64_t CountOf(uint64_t word);
  Status WaitUntil(const std::function<Seen()>& check, const char* what,
                   const std::function<uint32_t()>& missed = nullptr);
  [[nodiscard]] uint64_t Stamp(uint64_t count) const { return epoch_bits_ | count; }

  [[nodiscard]] size_t IndexOf(int rank) const;
  bool MoveMessages();
  bool MoveOut(size_t peer, Line& line);
  bool MoveIn(size_t peer, Line& line);
  SharedSegment& Mine() { return *peers_[me_].segment; }

  const uint64_t epoch_bits_;
  const std::vector<Peer> peers_;
  const size_t me_;
  const int spins_;
  std::atomic<bool> dead_{false};

  // Owned by the collective lane.
  std::vector<Line> lines_;
  std::set<Ticket> open_;
  bool left_behind_ = false;  // A peer is in a later epoch: nothing in its rings is for this one.
  Ticket next_ticket_ = 1;
};

}  // namespace troupe::groups
