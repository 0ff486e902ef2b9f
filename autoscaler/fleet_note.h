// What an autoscaler did or saw, and why: a record for those who ask later.
//
// Thread: value types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

enum class FleetNoteKind : uint8_t {
  kStart,      // text: the cluster file and its provider.
  kDecision,   // text: what is wanted, what is there, and what stands in the way.
  kLaunch,     // text: why there, with the figures that decided.
  kUp,         // The node has joined.
  kNotice,     // text: what its provider, its cloud or an operator said.
  kDrain,      // text: why.
  kTerminate,  // text: why.
  kGone,       // The node is not listed any more.
  kFailure,    // text: what went wrong with a launch, a node, or the end of one.
  kGroup,      // text: the state of a run, its members and its epoch, and why that came.
  kAccount,    // text and figures: what the paid time went to.
  kPrice,      // text: what a node of a pool costs now.
  kTrouble,    // text: what cannot be asked now.
  kEnd,        // text: how the training has ended.
};
// "start", "decision", ...
[[nodiscard]] std::string_view FleetNoteKindName(FleetNoteKind kind);

struct FleetNote {
  FleetNoteKind kind = FleetNoteKind::kDecision;
  std::string node = {};  // Empty: it is about none.
  std::string pool = {};
  std::string group = {};  // The name of a run.
  std::string text = {};
  std::string figures = {};  // A JSON object.
};

}  // namespace troupe
