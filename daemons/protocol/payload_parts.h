// How large payloads of workers come to the head: in parts, of which few are on the way at once.
// Thread: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::daemons {

inline constexpr size_t kInlinePayloadBytes = 256 << 10;  // Larger ones come in parts.
inline constexpr size_t kPartBytes = 256 << 10;
inline constexpr size_t kUploadWindowBytes = 1 << 20;  // Sent, and not yet taken.
inline constexpr uint64_t kUploadBytesMax = uint64_t{64} << 30;

}  // namespace troupe::daemons
