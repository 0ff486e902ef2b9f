// How long tests wait for what must happen.
// Thread: any.
#pragma once

#include "runtime/clock.h"

namespace troupe::tests {

inline constexpr Duration kSoon = seconds(20);  // Of real time: a busy machine may take a while.

}  // namespace troupe::tests
