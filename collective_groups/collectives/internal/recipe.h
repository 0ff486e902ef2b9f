// Recipes: what a member that has run out of data needs to take part in the others' collectives.
//
// It gives the element that changes nothing: zero to a sum (and to an average, which is still
// divided by the size of the group), the largest value to a minimum, and so on; to an all-gather it
// gives zero bytes of its block's size, and what is broadcast it throws away.
// Thread: any.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "collective_groups/collectives/communicator.h"

namespace troupe::groups {

[[nodiscard]] std::string AllReduceRecipe(const ReduceArguments& arguments);
[[nodiscard]] std::string BroadcastRecipe(size_t bytes, int root);
[[nodiscard]] std::string AllGatherRecipe(std::span<const size_t> bytes_per_rank);
[[nodiscard]] std::string BarrierRecipe();
// Of the same with memory of devices; whoever takes part does so from host memory.
[[nodiscard]] std::string OnDeviceRecipe(const std::string& recipe);

// The only rank that has what the others get; nothing if the recipe is not that of a broadcast.
[[nodiscard]] std::optional<int> RootOf(const std::string& recipe);

// kCorrupt if the recipe is none, or that of a broadcast whose root is this rank.
Status TakePartIn(Communicator& communicator, const Operation& operation,
                  const std::string& recipe);

}  // namespace troupe::groups
