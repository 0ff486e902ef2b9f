#include "autoscaler/cloud_world.h"

#include <cstdlib>
#include <ctime>
#include <fstream>

namespace troupe {

std::optional<std::string> EnvironmentVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): never set.
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> ReadCloudFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kCloudFileMax, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && !file.eof())
    return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

int64_t WallSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace troupe
