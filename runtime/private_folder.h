// Folders that hold sockets, passwords and shared pages: nobody else may put theirs in their place.
//
// Thread: any. Errors: kPermissionDenied if another user (root apart) owns the folder or may write
// to it, kUnavailable if it cannot be used at all; both say what to do.
#pragma once

#include <string>

#include "runtime/result.h"

namespace troupe {

// `what` is for people, such as "run directory". A folder that is not there is no error.
Status CheckPrivateFolder(const std::string& path, const std::string& what);
// Makes it if it is not there, for this user alone.
Status MakePrivateFolder(const std::string& path, const std::string& what);

}  // namespace troupe
