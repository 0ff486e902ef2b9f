// A private directory (0700) that is removed with its owner.
// Thread: any.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/assert.h"

namespace troupe::tests {

class TempDir {
 public:
  TempDir() { TROUPE_ASSERT(::mkdtemp(path_.data()) != nullptr, "mkdtemp"); }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/troupe-test-XXXXXX";
};

}  // namespace troupe::tests
