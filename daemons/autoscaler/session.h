// Session: a process between a command and whoever started it, which outlives the command by as
// long as it takes to end everything that the command has started and left behind.
//
// Whatever becomes an orphan below it is handed to it by the kernel (it is a child subreaper), also
// if it made a session or process group of its own, so nothing escapes by detaching.
// Thread: main.
// Limits: kSessionGrace for the command after SIGTERM, kSessionKillLimit for the rest.
#pragma once

#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/process.h"

namespace troupe::daemons {

inline constexpr Duration kSessionGrace = seconds(4);
inline constexpr Duration kSessionKillLimit = seconds(5);
inline constexpr const char* kSessionFlag = "--session";

// How to start `command` in a session: this very program, with the flag in front.
[[nodiscard]] SpawnOptions InSession(SpawnOptions command);
// The main of that process. PrepareSignals was called. Ends as the command did: with its exit code,
// or by its signal; at SIGTERM, SIGINT or the end of its parent it ends the command first.
int RunSession(std::vector<std::string> command);

}  // namespace troupe::daemons
