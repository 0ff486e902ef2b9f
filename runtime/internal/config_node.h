// What a configuration file was parsed into: for the sources of runtime/config.h.
//
// Thread: plain values.
#pragma once

#include <string>
#include <vector>

#include "runtime/config.h"

namespace troupe {

struct ConfigMap::Node {
  enum class Kind { kAbsent, kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kAbsent;
  bool quoted = false;
  int line = 1;  // 1-based, as people count.
  int column = 1;
  std::string scalar;
  std::vector<Node> list;
  std::vector<Entry> entries;
};

struct ConfigMap::Node::Entry {
  std::string key;
  int line = 1;
  int column = 1;
  Node value;
};

}  // namespace troupe
