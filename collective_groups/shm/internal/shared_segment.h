// SharedSegment: one process's memory that its peers on the same host map, and their mappings.
//
// A segment is an anonymous file (memfd): it vanishes with its last mapping, whoever dies and
// however. Peers open it through /proc/<pid>/fd, and a random number in it proves that they got
// the right one. Only its owner can write into it, which the kernel sees to: peers map it for
// reading. They write to its doorbell alone, a page of its own. So neither a stray pointer of a
// peer nor one that was stopped and evicted spoils what later epochs read.
// Thread: any; waiting on the doorbell by one thread of the owner at a time.
// Limits: kPeersMax peers, kTeamsMax teams; memory is used as far as it was touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "collective_groups/collectives/team.h"
#include "collective_groups/membership/view.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr size_t kPeersMax = kGroupMembersMax;
inline constexpr size_t kStages = 3;  // Chunks of one team in flight.
inline constexpr size_t kStageBytes = size_t{1} << 20;
inline constexpr size_t kRingBytes = size_t{256} << 10;

// A counter of one epoch: the low 48 bits count, the high 16 are the epoch's.
struct alignas(64) SharedWord {
  std::atomic<uint64_t> value;
};

// What each of a team's chunks in flight belongs to: the signatures of their operations.
struct alignas(64) SharedSignatures {
  std::atomic<uint64_t> of_chunk[kStages];
};

struct SharedHeader {
  uint64_t magic;
  uint64_t nonce;
  alignas(64) std::atomic<uint32_t> sleeping;  // On its doorbell the owner waits for this.
  SharedWord staged[kTeamsMax];                // Chunks of each team: put into the stage,
  SharedWord reduced[kTeamsMax];               // and this member's part of the result computed.
  SharedWord written[kPeersMax];               // Bytes put into the ring to each rank,
  SharedWord consumed[kPeersMax];              // and taken out of the ring from each rank.
  SharedSignatures signatures[kTeamsMax];      // Of what is in the stages.
};

class SharedSegment {
 public:
  // This process's own.
  static Result<std::unique_ptr<SharedSegment>> Create();
  // A peer's, by its address. kUnavailable if it is gone or cannot be opened from here.
  static Result<std::unique_ptr<SharedSegment>> Map(const std::string& address);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const SharedHeader& header() const { return *static_cast<SharedHeader*>(base_); }
  // The owner's, to write to.
  [[nodiscard]] SharedHeader& own_header();
  // Rung by peers when something they publish is new.
  [[nodiscard]] std::atomic<uint32_t>& doorbell() const {
    return *static_cast<std::atomic<uint32_t>*>(bell_);
  }
  // What a member contributes to a chunk, and its part of the chunk's result.
  // These and the rings are for their owner alone to write to.
  [[nodiscard]] char* stage(uint32_t team, uint64_t chunk) const;
  [[nodiscard]] char* result(uint32_t team, uint64_t chunk) const {
    return stage(team, chunk) + kStageBytes;
  }
  [[nodiscard]] char* ring(size_t rank) const;

  // What an owner can wait for: nothing, for it is awake; anything; news of one member, whom all
  // in its epoch know by the same number. Of N members that wait for all others each is woken by
  // the next one it misses, instead of N times.
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kAnything = 1;
  [[nodiscard]] static constexpr uint32_t NewsOf(uint32_t member) { return member + 2; }

  void Ring(uint32_t member);  // Any process: wakes the owner if it waits for news of `member`.
  void RingAlways();           // The owner: a wake-up that is not lost.
  void Sleep(uint32_t bell, Duration at_most);  // The owner: until the doorbell is not `bell`.

 private:
  SharedSegment() = default;
  Status MapFiles(int fd, int bell_fd, bool own);

  std::string address_;
  void* base_ = nullptr;
  void* bell_ = nullptr;
  // The owner's: peers open them by their numbers.
  int fd_ = -1;
  int bell_fd_ = -1;
};

// Names what processes must have in common to map each other's segments: the kernel, its process
// namespace, the user, and `host`. Empty if that cannot work here.
[[nodiscard]] std::string SharedMemoryDomain(const std::string& host);

}  // namespace troupe::groups
