// Actor types that are described in C, as the runtime hosts them.
//
// Thread: callbacks run on their actor's thread.
#pragma once

#include <string>

#include <troupe/c.h>
#include "actors/host/type_table.h"

// What the callbacks of C are handed; complete only here.
struct troupe_reply {
  std::string value;
  bool has_value = false;
  std::string type;
  std::string message;
};
struct troupe_context {
  troupe::CallContext* call = nullptr;
  troupe_runtime* runtime = nullptr;  // Once it has been asked for.
};

namespace troupe::capi {

// kInvalidArgument: a type lacks something; it is named.
[[nodiscard]] Result<actors::TypeTable> TypesOf(const troupe_actor_type* types, size_t count);

// Of a runtime that a context was asked for.
void ReleaseRuntime(troupe_runtime* runtime);

}  // namespace troupe::capi
