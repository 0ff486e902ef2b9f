// What the directory wants done by who has it, in this order.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace troupe::actors {

struct WantPlace {
  std::string actor;
  uint64_t incarnation = 0;
};
struct DropPlace {  // It wants, or has, none any more.
  std::string actor;
  uint64_t incarnation = 0;
};
struct EndProcess {
  std::string process;
  std::string reason;
};
struct AskToLeave {  // Its process, when nothing is left to do there.
  std::string actor;
};
struct KeepActor {  // Its life has changed; `spec`: it is new.
  std::string actor;
  bool spec = false;
};
struct ForgetActor {  // Also what it had saved.
  std::string actor;
};
struct TellActor {  // To those who follow it.
  std::string actor;
};
using DirectoryAction =
    std::variant<WantPlace, DropPlace, EndProcess, AskToLeave, KeepActor, ForgetActor, TellActor>;
using DirectoryActions = std::vector<DirectoryAction>;

}  // namespace troupe::actors
