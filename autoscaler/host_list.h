// Hosts that are there already, and how many nodes each may hold: what a host file, a cluster file
// or a discovery script says.
//
//   gpu1                     # one slot, or the default
//   gpu2:4                   # as Horovod's discovery scripts print it
//   user@gpu3 slots=2        # as MPI's host files have it
//   gpu4 slots=2 pool=large  # for nodes of this pool only
//
// Pure.
// Thread: plain values.
// Limits: kHostsMax hosts, kHostSlotsMax slots of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kHostsMax = 10'000;
inline constexpr int kHostSlotsMax = 1024;

struct HostSlots {
  std::string host;  // As SSH takes it; never begins with a dash.
  int slots = 1;
  std::string pool;  // Empty: of any.
};

// A host that comes twice has the slots of its last line. kInvalidArgument: "NAME:3: ...".
[[nodiscard]] Result<std::vector<HostSlots>> ParseHosts(std::string_view text, int default_slots,
                                                        const std::string& name);

}  // namespace troupe
