#include "runtime/assert.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

void AssertFailed(const char* expression, const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s: %.*s\n", file, line, expression,
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe
