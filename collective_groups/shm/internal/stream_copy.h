// Copying large results past the cache.
//
// An ordinary store first reads the line it writes to; for an output that is larger than the cache
// and is not read again soon that read is a third of all the traffic.
#pragma once

#include <cstddef>

namespace troupe::groups {

// From this many bytes on an output is taken to be larger than what the cache keeps.
inline constexpr size_t kStreamBytes = size_t{4} << 20;

// As memcpy.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace troupe::groups
