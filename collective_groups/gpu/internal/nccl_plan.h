// How a team comes to its NCCL communicator for an epoch: the same decision on every rank, from
// what all of them state.
//
// What the ranks still have of an earlier epoch is kept, shrunk or grown where that gives the order
// of the view: NCCL closes gaps and puts new ranks at the end. Everything else begins anew. Where
// one rank cannot take part, the whole team goes through host memory.
// Thread: plain values. Pure: neither clocks nor libraries.
// Invariants: NP-1 equal statements give equal plans, whoever asks. NP-2 a communicator that is
// kept, shrunk or grown ends with the ranks of the team in its order. NP-3 one that may have
// operations outstanding is never kept or grown, and is shrunk only with `abort`.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::groups {

// Failures to form a communicator, or to use it, after which a team gives up.
inline constexpr uint32_t kNcclFailuresMax = 3;

// What a rank has of an earlier epoch.
enum class NcclState : uint8_t {
  kNone,     // Nothing that can be used.
  kIdle,     // Every operation has ended.
  kRevoked,  // An operation was ended in the middle; it can be shrunk only.
};

// Sent as it lies in memory.
struct NcclStatement {
  uint64_t form = 0;  // Names one forming of a communicator; 0: none.
  int32_t form_rank = 0;
  int32_t form_size = 0;
  int32_t version = 0;  // 0: this rank cannot use NCCL, for `problem`.
  uint32_t failures = 0;
  std::array<unsigned char, 16> device{};
  NcclState state = NcclState::kNone;
  bool can_shrink = false;
  bool can_grow = false;
  bool sharing = false;  // Several ranks may use one device.
  std::array<char, 164> problem{};
};

struct NcclPlan {
  enum class Way : uint8_t {
    kHost,    // Not at all, for `reason`.
    kInit,    // A new one, from an id of position 0.
    kKeep,    // As it is.
    kShrink,  // Without `excluded`.
    kGrow,    // To the size of the team, from an id of position 0; perhaps after a shrink.
  };
  Way way = Way::kHost;
  std::vector<int> excluded;  // Ranks of the old communicator. With kGrow: to be shrunk away first.
  bool abort = false;         // Operations may be outstanding in it.
  int survivors = 0;          // The first so many positions have the old communicator.
  std::string reason;
};

// `statements` in order of the team's positions. `afresh`: an attempt to edit the old communicator
// has failed in this epoch.
[[nodiscard]] NcclPlan PlanNccl(std::span<const NcclStatement> statements, bool afresh);

}  // namespace troupe::groups
