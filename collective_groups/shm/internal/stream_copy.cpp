#include "collective_groups/shm/internal/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace troupe::groups {

void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (bytes < head + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(target, source, head);
  target += head;
  source += head;
  const size_t lines = (bytes - head) / kLine;
  for (size_t i = 0; i < lines; ++i, target += kLine, source += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // Before anybody is told that the copy is there.
  std::memcpy(target, source, bytes - head - lines * kLine);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace troupe::groups
