// HeadTask: what the parts of the head have to deal with. Each says what is to be done, or what has
// happened, and to whom.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "collective_groups/membership/coordinators.h"
#include "daemons/head/core/head_group_tasks.h"
#include "daemons/protocol/messages.h"
#include "runtime/clock.h"
#include "scheduler/scheduler_events.h"

namespace troupe::daemons {
namespace step {

// ---- what comes from outside ----

struct Frame {
  std::string from;
  std::string frame;
};
// Of a guest, which is known by its key (runtime/transport.h).
struct GuestFrame {
  std::string from;
  std::string key;
  std::string frame;
};
struct Tick {};
// What the process asked for with LoadState; empty: nothing was saved.
struct StateLoaded {
  std::string process;
  std::string state;
};
// A coordinator has this to tell.
struct CoordinatorSays {
  std::string group;
  groups::GroupNotice notice;
};
// The store has lost all records.
struct WriteAll {};

// ---- tasks of parts for one another ----

struct SendToNode {
  std::string node;
  std::string frame;
};
struct Schedule {
  SchedulerEvent event;
};
struct WakeScheduler {
  Time at{};
};
// What a request for a placement group has asked of the scheduler is decided.
struct GroupTried {};
struct AnswerGroup {
  std::string to;
  uint64_t request = 0;
  std::string group;  // Empty: it is gone, as was asked.
};
// Those who wait for it hear that it has its place.
struct AnswerWaiters {
  std::string group;
};
struct ActorChanged {
  std::string actor;
};
struct OwnerEnded {
  std::string owner;
};
struct StartActors {
  std::vector<actors::ActorSpec> actors;
  size_t at_least = 0;  // With room for so many at once; 0: for each as it comes.
  std::string strategy = {};
};
struct EndActor {
  std::string actor;
  std::string reason;
  bool overdue = false;  // It was asked to leave long ago.
};
// No life of it begins for now, or one may again.
struct HoldActor {
  std::string actor;
  bool held = true;
};
// It is told to finish what it does, and to leave.
struct DismissActor {
  std::string actor;
  std::string reason;
};
struct Launch {
  std::string process;
  StartWorker start;
};
struct EndProcess {
  std::string process;
  std::string reason;
};
struct WakeActors {
  Time at{};
};
// Processes that wait for something else to be over may be started now.
struct OrderHeld {};
// A process that was not begun has never been: nobody has died.
struct OrderLost {
  std::string actor;
  uint64_t incarnation = 0;
};
// A node is gone, and the scheduler knows it.
struct NodeLost {
  std::string node;
  std::string how;  // For people, of its processes.
};
// It may be known by now of all that ran before a restart.
struct EndRecovery {};
struct PressDown {
  Time until{};
};

}  // namespace step

using HeadTask =
    std::variant<step::Frame, step::GuestFrame, step::Tick, step::StateLoaded,
                 step::CoordinatorSays, step::WriteAll, step::SendToNode, step::Schedule,
                 step::WakeScheduler, step::GroupTried, step::AnswerGroup, step::AnswerWaiters,
                 step::ActorChanged, step::OwnerEnded, step::StartActors, step::EndActor,
                 step::HoldActor, step::DismissActor, step::Launch, step::EndProcess,
                 step::WakeActors, step::OrderHeld, step::OrderLost, step::NodeLost,
                 step::EndRecovery, step::PressDown, step::SetGroupMembers, step::DrainFromGroup,
                 step::DismissFromGroup, step::ReadmitToGroup, step::DrainWorker, step::DeathTold,
                 step::KeepSpare, step::OpenRun, step::EndProcessesOfRun>;

}  // namespace troupe::daemons
