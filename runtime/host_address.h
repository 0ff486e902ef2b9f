// Addresses of this host, as others see it.
//
// Thread: any; names are looked up, which may take as long as the resolver waits.
#pragma once

#include <string>
#include <string_view>

#include "runtime/result.h"

namespace troupe {

struct HostPort {
  std::string host;
  int port = 0;
};
// Of "HOST:PORT". kInvalidArgument with what was expected.
[[nodiscard]] Result<HostPort> ParseHostPort(std::string_view text);

// The address of this host that whoever reaches `host` can reach too; of "0.0.0.0" the one of the
// way out. Nothing is sent. kUnavailable: there is no way there.
[[nodiscard]] Result<std::string> AddressTowards(const std::string& host);

// Whether a listener could be bound there now. kAlreadyExists: the port is in use; kUnavailable.
[[nodiscard]] Status CanListen(const HostPort& at);

}  // namespace troupe
