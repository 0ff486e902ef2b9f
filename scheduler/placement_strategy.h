// How the parts of a request are to lie beside each other, and the words for it.
//
// Thread: values.
#pragma once

#include <string_view>

#include "runtime/result.h"

namespace troupe {

enum class PlacementStrategy {
  kHybrid,        // Pack onto nodes up to half full, then spread over the least used.
  kPack,          // As few nodes as possible.
  kSpread,        // As many nodes as possible; several on one node if there are not enough.
  kStrictPack,    // All on one node, or none.
  kStrictSpread,  // Each on a node of its own, or none.
};

// "hybrid", "pack", "spread", "strict_pack", "strict_spread".
[[nodiscard]] std::string_view PlacementStrategyName(PlacementStrategy strategy);
[[nodiscard]] Result<PlacementStrategy> ParsePlacementStrategy(std::string_view name);

}  // namespace troupe
