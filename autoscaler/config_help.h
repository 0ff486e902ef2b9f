// What a cluster file may say, for those who write one: explained beside what theirs says, and as a
// JSON schema for editors.
//
// Both come from what the reader of cluster files asks for (ConfigDocument::keys), so that neither
// can differ from it; only the sentences about each key stand here.
// Thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/config_key.h"
#include "runtime/result.h"

namespace troupe {

// One sentence without a full stop; empty for a key that nobody has described.
// `pattern`: "pools[].market".
[[nodiscard]] std::string_view HelpOfConfigKey(std::string_view pattern);
[[nodiscard]] size_t DescribedConfigKeys();  // How many.
// All keys that a cluster file can have, each once, described or not.
[[nodiscard]] std::vector<ConfigKey> ClusterConfigKeys();
// What the file says and means, in a sentence or two; an error has every problem of the file.
[[nodiscard]] Result<std::string> CheckClusterFile(const std::string& path);
// A line per key: its value, where that comes from, what it means. The file must be right.
[[nodiscard]] Result<std::string> ExplainClusterFile(const std::string& path);
// JSON schema, draft 2020-12.
[[nodiscard]] std::string ClusterConfigSchema();

}  // namespace troupe
