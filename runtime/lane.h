// Lane: runs functions that may block, one after another, on another thread than the caller's.
//
// Thread: Post from any thread.
#pragma once

#include <functional>

#include "runtime/result.h"

namespace troupe {

class Lane {
 public:
  virtual ~Lane() = default;
  // Refused functions are never run.
  virtual Status Post(std::function<void()> fn) = 0;
};

}  // namespace troupe
