// HeadEffect: what the core of the head wants its shell to do.
// Thread: plain values.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "daemons/head/core/head_tasks.h"
#include "runtime/metrics.h"

namespace troupe::daemons {

namespace step {
struct AwaitKept;

struct Send {
  std::string to;  // Its name for the transport.
  std::string frame;
};
// Who has this key may connect as a guest, or no longer.
struct LetGuest {
  std::string key;
  bool in = true;
};
struct Log {
  bool warning = false;
  std::string text;
};
// The cluster is taken down from now on; the head ends with Down.
struct GoingDown {};
struct Down {};

// ---- metrics ----

struct Count {
  metrics::Id id;
  double by = 1;
  std::string label = {};
};
struct Gauge {
  metrics::Id id;
  double value = 0;
  std::string label = {};
};
// Those of users, all of them.
struct Publish {
  std::vector<metrics::Family> families;
};

// ---- the store ----

struct Keep {
  std::string key;
  std::string record;  // Empty: it is deleted.
};
struct DropRecords {
  std::string prefix;
};
// From now on it is noticed if the store loses them. `found`: those of a head before were there,
// and may have been lost since they were read.
struct MarkRecords {
  bool found = false;
};

// ---- what actors save ----

struct OfferState {
  std::string from;
  actors::OfferState offer;
};
struct SaveState {
  std::string from;
  actors::SaveActor save;
};
struct LoadState {
  std::string process;
  std::string actor;
};
// The process has it, or has ended.
struct EndLoad {
  std::string process;
};

// ---- coordinators ----

struct OpenEpochs {
  groups::CoordinatorOptions options;
};
struct CloseEpochs {
  std::string group;
};
struct RefreshEpochs {};
struct TellCoordinator {
  std::string group;
  groups::CoordinatorEvent event;
};

}  // namespace step

using HeadEffect =
    std::variant<step::Send, step::LetGuest, step::Log, step::GoingDown, step::Down, step::Count,
                 step::Gauge, step::Publish, step::Keep, step::DropRecords, step::MarkRecords,
                 step::AwaitKept, step::OfferState, step::SaveState, step::LoadState, step::EndLoad,
                 step::OpenEpochs, step::CloseEpochs, step::RefreshEpochs, step::TellCoordinator>;
using HeadStep = std::variant<HeadTask, HeadEffect>;

namespace step {
// The step is to be put when all records are kept that were put before; of those of one name that
// is not empty the first counts.
struct AwaitKept {
  std::string name;
  std::shared_ptr<const HeadStep> step;
};
}  // namespace step

}  // namespace troupe::daemons
