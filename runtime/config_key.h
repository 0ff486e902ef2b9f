// ConfigKey: what the reader of a configuration file asks of one key, and what the file says.
//
// Thread: plain values.
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct ConfigKey {
  std::string path;     // "pools[1].market".
  std::string pattern;  // "pools[].market"; "training.env.*" where keys are the user's own.
  std::string type;     // "a duration such as 500ms, 30s, 5m or 2h".
  bool required = false;
  std::string fallback;  // As a file would give it.
  std::string min;       // As a file would give it; empty: unlimited. Also `max`.
  std::string max;
  std::vector<std::string> choices;  // Empty: any value of the type.
  std::string given;                 // What the file gives, on one line.
  int line = 0;                      // Of what the file gives; 0: nothing.
};

}  // namespace troupe
