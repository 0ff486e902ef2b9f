#include <troupe/plugin.h>

#include <csignal>

#include "daemons/client/actor_process.h"

namespace troupe {

// Both come from the build (daemons/CMakeLists.txt).
const char* ReleaseName() { return TROUPE_RELEASE; }
const char* ProtocolDigest() { return TROUPE_PROTOCOL; }

namespace internal {

troupe_plugin_info PluginInfo(const std::string& describes, void (*host)(const char* path)) {
  return {TROUPE_PLUGIN_MAGIC, TROUPE_PLUGIN_ABI, ReleaseName(),
          ProtocolDigest(),    describes.c_str(), host};
}

void HostPlugin(const actors::TypeTable& types, const char* path) {
  std::signal(SIGPIPE, SIG_IGN);
  // What its actors spawn is of the same plugin.
  daemons::HostAssigned({types, {{actors::kPluginHost, actors::kPluginFlag, path}, {}}});
}

}  // namespace internal
}  // namespace troupe
