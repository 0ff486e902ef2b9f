// LoadPlugin: a plugin as the program that hosts its actors sees it.
//
// A plugin is loaded with all its symbols resolved and none of them given to others, and is never
// unloaded: its threads and its static objects live as long as the process.
// Thread: any.
#pragma once

#include <string>

#include <troupe/plugin_abi.h>
#include "runtime/result.h"

namespace troupe::daemons {

// What the plugin at `path` exports, checked to be of this release's kind. kNotFound: there is no
// such file; kInvalidArgument: it is no shared object, or no plugin; kUnavailable: something that
// it needs is missing; kMismatch: it was built with another release. The message says what to do.
[[nodiscard]] Result<const troupe_plugin_info*> LoadPlugin(const std::string& path);

}  // namespace troupe::daemons
