// Options as JSON objects, as C gives them.
//
// An unknown key, a value of another kind or out of range is kInvalidArgument, which names the key;
// NULL and "" are an empty object. Keys and their meaning: capi/README.md.
// Thread: any.
#pragma once

#include <troupe/troupe.h>
#include "actors/api/options.h"

namespace troupe::capi {

[[nodiscard]] Result<InitOptions> ParseInitOptions(const char* json);
[[nodiscard]] Result<ActorOptions> ParseActorOptions(const char* json);

}  // namespace troupe::capi
