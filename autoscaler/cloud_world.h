// What whoever looks for credentials asks of this process and its host.
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe {

inline constexpr size_t kCloudFileMax = size_t{1} << 20;

[[nodiscard]] std::optional<std::string> EnvironmentVariable(const std::string& name);
// The first kCloudFileMax bytes of a file; nothing if it cannot be read.
[[nodiscard]] std::optional<std::string> ReadCloudFile(const std::string& path);
// Since 1970.
[[nodiscard]] int64_t WallSeconds();

}  // namespace troupe
