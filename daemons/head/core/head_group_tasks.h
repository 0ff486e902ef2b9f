// Those tasks of the head that are about collective groups and runs. The others: head_tasks.h.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::daemons::step {

// ---- tasks: collective groups of actors, and who is in them ----

struct SetGroupMembers {  // None: it is over.
  std::string group;
  uint32_t min_size = 0;
  uint32_t max_size = 0;
  std::vector<std::string> actors = {};
};
struct DrainFromGroup {
  std::string group;
  std::string actor;
  std::string reason;
};
struct DismissFromGroup {
  std::string group;
  std::vector<std::string> actors;
  std::string reason;
};
struct ReadmitToGroup {
  std::string group;
};

// ---- tasks: runs ----

struct OfRun {
  std::string run;
};
struct DrainWorker {
  std::string actor;
  std::string reason;
};
struct DeathTold : OfRun {};  // Its group has heard of it.
struct KeepSpare : OfRun {};
struct OpenRun : OfRun {};
struct EndProcessesOfRun : OfRun {};

}  // namespace troupe::daemons::step
