// Which process this is, so that another one on its machine can look whether it still runs.
//
// A place names boot, pid namespace, pid and start, so that a pid which is another's by now, or was
// given on another machine, is never taken for it.
// Thread: any.
#pragma once

#include <string>

namespace troupe {

// Of this process. Empty where the kernel does not tell.
[[nodiscard]] std::string ProcessPlace();
// Whether that process has ended. False also if it cannot be seen from here: on another machine, in
// another container.
[[nodiscard]] bool SurelyEnded(const std::string& place);

}  // namespace troupe
