// Settings and counters of a TCP socket that another library opened.
//
// Thread: any; the descriptor must stay open during the call.
#pragma once

#include <cstdint>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

// Ends the connection (ETIMEDOUT) when data that was sent stays unacknowledged for `limit`, or an
// idle peer does not answer probes for about as long. Without it a cut route is noticed after the
// kernel's retransmissions are used up, a quarter of an hour later.
Status LimitTcpSilence(int fd, Duration limit);

// Bytes that the peer has acknowledged plus bytes received; 0 if the kernel does not tell.
[[nodiscard]] uint64_t TcpBytesMoved(int fd);

}  // namespace troupe
