// How a node gets the keys of the cluster that it joins with a token (daemons/protocol/join.h).
//
// Thread: the caller's; blocks up to the limit. A head that is not there yet is waited for.
#pragma once

#include <string>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

struct JoinOptions {
  std::string endpoint;  // Of the head, tcp://HOST:PORT.
  std::string token;
  std::string node;      // Its name.
  std::string key_file;  // Made, for its owner alone; kept if it is of the same cluster.
  Duration limit = seconds(60);
};

// kPermissionDenied: the head refuses the token. kUnavailable: no head has answered.
// kInvalidArgument: it is no token.
[[nodiscard]] Status JoinCluster(const JoinOptions& options);

}  // namespace troupe::daemons
