// TROUPE_ASSERT: guards our own invariants, stays on in release, prints where and why, and aborts.
// Never use it on what a peer, a file or a user supplies: that is an Error.
#pragma once

#include <string_view>

namespace troupe {
[[noreturn]] void AssertFailed(const char* expression, const char* file, int line,
                               std::string_view message);
}  // namespace troupe

#define TROUPE_ASSERT(condition, message)                                \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::troupe::AssertFailed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
