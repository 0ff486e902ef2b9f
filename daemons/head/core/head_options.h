// HeadOptions: what whoever starts a head decides.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/clock.h"
#include "runtime/process.h"
#include "runtime/process_place.h"

namespace troupe::daemons {

inline constexpr Duration kWorkerStartLimit = seconds(60);  // From start to hello.
inline constexpr uint64_t kDrainMsMax = 1'000'000'000'000;  // In nanoseconds it fits a Duration.

struct HeadOptions {
  bool embedded = false;  // Only this machine: what does not fit now never will.
  // From so much silence of its driver on another one may take a run. What a driver has that has
  // never said how long it may be silent ends then.
  Duration driver_lease = seconds(15);
  // How long a detached run can be asked for after its end, if no newer ones need the room.
  Duration detached_kept = seconds(24 * 3600);
  Duration confirm_grace = seconds(5);  // After a restart, for workers to be heard.
  Duration node_suspect = seconds(2);
  Duration node_dead = seconds(6);
  // While nobody at all is heard it may be the head that is cut off, and nobody is given up.
  [[nodiscard]] Duration spared() const { return 5 * node_dead; }
  // How long the store keeps what a head that is gone has left; a running one refreshes it.
  Duration key_ttl = seconds(24 * 3600);
  // For hosts that join with a token; empty: none may.
  std::string join_keys;                           // The text of the cluster's key file.
  std::string head_key;                            // The head's public one.
  std::string join_at;                             // Where it listens, HOST:PORT.
  bool metrics = false;                            // Whether anybody asks for them.
  std::function<std::string()> new_id = RandomId;  // Hexadecimal digits, 16 at least.
  // Whether the process that a driver has said it is has ended, as far as can be seen from here.
  std::function<bool(const std::string& place)> surely_ended = SurelyEnded;
};

}  // namespace troupe::daemons
