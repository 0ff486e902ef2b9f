// DriverOptions: which cluster a driver comes to, or what the one is like that it brings along.
// Thread: plain values.
#pragma once

#include <map>
#include <string>

#include "runtime/clock.h"

namespace troupe::daemons {

struct DriverOptions {
  std::string address;       // Empty: embedded. Else "HOST:PORT" of a head, or "ipc://PATH".
  std::string key_file;      // For HOST:PORT; ipc needs none, file permissions guard it.
  bool with_node = true;     // Embedded: false leaves the nodes to the caller.
  std::string listen;        // Embedded: HOST:PORT where other hosts find its head; empty: nowhere.
  std::string bin_dir;       // Embedded: where the daemons are.
  std::string redis_server;  // Embedded: name or path; empty: redis-server from PATH.
  std::string log_dir;       // Embedded: keep daemon logs here.
  int metrics_port = 0;      // Embedded: the head serves metrics on this loopback port; 0: not.
  std::map<std::string, double> resources;  // Embedded: the node's; default: CPU and memory it has.
  Duration start_timeout = seconds(20);
  double silence_s = 3600;  // Its actors end when it is not heard for so long.
};

}  // namespace troupe::daemons
