#include "scheduler/placement_strategy.h"

#include <array>
#include <string>
#include <utility>

namespace troupe {
namespace {

constexpr std::array<std::pair<PlacementStrategy, std::string_view>, 5> kStrategies = {
    {{PlacementStrategy::kHybrid, "hybrid"},
     {PlacementStrategy::kPack, "pack"},
     {PlacementStrategy::kSpread, "spread"},
     {PlacementStrategy::kStrictPack, "strict_pack"},
     {PlacementStrategy::kStrictSpread, "strict_spread"}}};

}  // namespace

std::string_view PlacementStrategyName(PlacementStrategy strategy) {
  for (const auto& [value, name] : kStrategies) {
    if (value == strategy) return name;
  }
  return "unknown";
}

Result<PlacementStrategy> ParsePlacementStrategy(std::string_view name) {
  std::string known;
  for (const auto& [value, word] : kStrategies) {
    if (word == name) return value;
    known.append(known.empty() ? "" : ", ").append(word);
  }
  return Error{ErrorCode::kInvalidArgument,
               "unknown placement strategy \"" + std::string(name) + "\"; use one of " + known};
}

}  // namespace troupe
