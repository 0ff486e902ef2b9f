// Agreement: do all ranks of a team mean the same operation?
#pragma once

#include <cstdint>
#include <string>

#include "collective_groups/collectives/team.h"
#include "collective_groups/links/channel.h"

namespace troupe::groups {

// Every rank tells every other one the signature and the text of what it is about to do.
// kMismatch, with the same message on every rank that names both sides, if they differ.
Status CompareDescriptions(Channel& channel, const Team& team, uint64_t key, uint64_t signature,
                           const std::string& text);

// The message: groups of ranks with equal texts, such as `ranks 0-2: A; rank 3: B`.
[[nodiscard]] std::string DescribeSides(const std::vector<int>& ranks,
                                        const std::vector<std::string>& texts);

}  // namespace troupe::groups
