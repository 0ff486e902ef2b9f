// ErrorChain: an error and what it is due to, as it travels between processes.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/error.h"

namespace troupe::actors {

inline constexpr size_t kErrorChainMax = 16;  // Older causes are left out.

// An error and its causes, the newest first.
struct ErrorLink {
  uint8_t code = 0;  // ErrorCode.
  std::string message;
  std::string type;
  std::string actor;
  std::string node;
  std::string traceback;
  template <class A>
  void Fields(A& a) {
    a(code, message, type, actor, node, traceback);
  }
};
using ErrorChain = std::vector<ErrorLink>;
[[nodiscard]] ErrorChain ToChain(const Error& error);
// Of a chain that is longer than ToChain makes them, the newest; an unknown code is kInternal.
[[nodiscard]] Error FromChain(const ErrorChain& chain);

}  // namespace troupe::actors
