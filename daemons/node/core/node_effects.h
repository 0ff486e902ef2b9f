// What NodeCore wants to be done; NodeService does it, and the simulation.
//
// Thread: value types. Limits: none of their own.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "daemons/protocol/messages.h"

namespace troupe::daemons {

struct TellHead {
  std::string frame;
};
struct StartProcess {  // Answered by OnStarted or OnNotStarted.
  StartWorker order;
  uint32_t slot = 0;
  bool again = false;  // Its first process had ended ahead of it.
};
struct SignalProcess {
  std::string process;
  int signal = 0;
};
struct GiveUpSpares {};
struct BeginIncarnation {  // One after `newest`; answered by OnIncarnation.
  uint64_t newest = 0;
};
struct EndNode {  // Another has its name, or its cluster is gone.
  std::string reason;
};
struct Warn {
  std::string text;
};
using NodeEffect = std::variant<TellHead, StartProcess, SignalProcess, GiveUpSpares,
                                BeginIncarnation, EndNode, Warn>;

}  // namespace troupe::daemons
