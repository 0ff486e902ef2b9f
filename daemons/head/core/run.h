// Run: one training run on the head, as data. HeadCore moves it.
// Thread: the head's loop.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/membership/coordinator.h"
#include "daemons/head/core/event_log.h"
#include "daemons/head/core/run_record.h"
#include "daemons/protocol/messages.h"
#include "daemons/protocol/run_events.h"
#include "scheduler/resources.h"
#include "scheduler/scheduler_status.h"

namespace troupe::daemons {

inline constexpr Duration kSpareDelay = milliseconds(20);  // From active on, if all have joined.
inline constexpr Duration kJoinTime = seconds(10);
inline constexpr Duration kAskSparesAgain = seconds(5);
inline constexpr Duration kReformQuiet = milliseconds(50);  // At most, from a death to active.
inline constexpr Duration kReformSettle = milliseconds(5);  // From active on: the first collective.
// What fails a run, but never while members of it train: workers in a row that died before they
// were ready, and lives in a row of one worker that crashed before it had settled.
inline constexpr int kStartFailuresMax = 3;
inline constexpr int kCrashesMax = 5;
inline constexpr Duration kSettledTime = seconds(2);  // As a member: it has proven itself.
// From its second death in a row on the next life of a worker waits, twice as long each time.
inline constexpr uint64_t kRestartDelayMs = 250;
inline constexpr uint64_t kRestartDelayMaxMs = 30'000;
inline constexpr size_t kKeptResultBytes = 64 << 10;
inline constexpr size_t kKeptErrorBytes = 1 << 20;  // Of a pickled exception.
inline constexpr Duration kSeeResults = seconds(30);
inline constexpr Duration kLeaveTime = seconds(3);  // For processes of runs that are over.

struct Run {
  RunSpec spec;
  RunRecord record;
  ResourceSet need;  // Per worker.
  RunState state = RunState::kPending;
  std::string reason;
  Time submitted{};
  Time driver_heard{};
  Time ended = Time::Never();
  bool confirming = false;  // After a head restart: it is not known of all whether they live.
  bool opened = false;      // The group exists.
  Time joined_by{};         // A new worker is given until then before there is to be a spare.
  std::string spares_on;    // The node that was asked to keep some,
  Time ask_spares_at{};     // and when it is to be asked again.
  Time quiet_until{};       // No process is started before: a group is being re-formed.
  int deaths_untold = 0;    // Of which its group has not heard yet.
  int start_failures = 0;
  std::map<uint32_t, int> crashes;  // In a row, by a fault of its own and not settled, by index.
  // Deaths whose cause is not known yet, by process.
  struct Death {
    RunWorker worker;
    WorkerStatus status;
    std::string event;  // "died" or "drained".
    bool was_starting = false;
    Time tell_by{};
  };
  std::map<std::string, Death> deaths;
  std::string last_death;  // For people: who, why, and what it printed.
  struct Payload {
    std::string bytes;
    std::shared_ptr<const SpoolFile> file;  // A large one is here.
  };
  std::map<std::string, Payload> results;  // By member.
  groups::View view;                       // Last active.
  // Worker-seconds in which members stood still for an epoch that was not planned, and those of
  // steps that were computed again: so many as there were, at the pace of the epoch before.
  double stood_s = 0;
  double redone_s = 0;
  uint64_t steps_replayed = 0;  // As its members have told: see Recovered.
  uint64_t steps_recomputed = 0;
  uint64_t samples_returned = 0;
  uint64_t samples = 0;  // See Progress; 0: none was told.
  uint64_t samples_per_epoch = 0;
  double step_s = 0;  // That pace; 0: not known.
  Time epoch_at{};
  uint64_t epoch_steps = 0;  // Committed when it began.
  int old_size = 0;
  bool planned = false;
  bool epoch_pending = false;  // Activated, its pause not known yet.
  bool epoch_settled = false;  // It is known.
  struct Told {
    groups::View view;
    int old_size = 0;
    Duration pause{};
    bool planned = false;
    // Its members as they were then, by name: some may be given up before it is told.
    std::map<std::string, WorkerStatus> members;
  };
  std::vector<Told> epochs;  // To be told when it is known where their members run.
  // Told by members of an epoch that comes before it, and is not told yet; with its number.
  struct Noted {
    groups::Epoch epoch = 0;
    RunEvent event;
    std::shared_ptr<const SpoolFile> file;
  };
  std::vector<Noted> noted;
  Duration took{};
  Time told_by = Time::Never();        // Large results are told, and to be seen by then.
  std::vector<RunEvent> final_events;  // As of EndedRecord.
  bool end_kept = false;               // It has an EndedRecord in the store.
  bool released = false;               // It is over, and its processes are told so.
  std::optional<RunEvent> last_event;  // "done", held back until the workers' output is in.
  Time last_event_by = Time::Never();
  EventLog events;
  bool report_dropped = false;  // Since there was room the last time; it was told.

  [[nodiscard]] bool done() const {
    return state == RunState::kSucceeded || state == RunState::kFailed ||
           state == RunState::kCancelled;
  }
};

}  // namespace troupe::daemons
