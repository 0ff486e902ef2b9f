// The seam to whatever supplies nodes (local processes, a cloud, a batch system), and the seam to
// whoever announces that nodes will be taken away.
//
// Conformance, the same for every provider: Launch with a token that was used before makes nothing
// new and returns the same node; Terminate of an unknown or ended node succeeds, and is tried again
// until the node has ended; List shows a launched node at once and until it is gone.
// Thread: one. No call waits for the supplier: TakeFailures tells what has failed since.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

struct ProviderNode {
  std::string id;
  std::string token;
  std::string pool;
  bool terminating = false;
  std::string detail;      // Process id, address, instance type; for people.
  bool asked_for = false;  // It may never be made; until then its launch is under way.
};

// What has failed after the call that began it.
struct ProviderFailure {
  enum class Kind {
    kLaunch,     // The node was not made, and is listed no longer.
    kTerminate,  // It is tried again.
    kEnded,      // The node has ended by itself; the error has its last words.
    kWords,      // No failure: the error has what WantWords has asked for.
  };
  Kind kind = Kind::kLaunch;
  std::string token;
  std::string pool;
  std::string node;
  Error error;
};

class NodeProvider {
 public:
  virtual ~NodeProvider() = default;
  // The id of the new node, which may still be asked for. kResourceExhausted: the pool has no
  // capacity now. kInvalidArgument, kNotFound, kPermissionDenied: trying again without a change is
  // useless. Anything else may be tried again.
  virtual Result<std::string> Launch(const std::string& token, const std::string& pool) = 0;
  // Starts the end of a node; List shows when it is over.
  virtual Status Terminate(const std::string& id) = 0;
  // The node never came up, and is ended for that: what its machine has printed is to be told, and
  // its end waits for that a little.
  virtual void WantWords(const std::string& id) {}
  // As of what was heard last; an error if that is one.
  virtual Result<std::vector<ProviderNode>> List() = 0;
  // Those that came since the last call.
  virtual std::vector<ProviderFailure> TakeFailures() { return {}; }
  // Whether there is room since the last call where there was none: a pool that could not supply
  // need not be left alone any longer.
  virtual bool TakeNewRoom() { return false; }
  // Of pools whose price was told since the last call: dollars for a node and hour.
  virtual std::map<std::string, double> TakePrices() { return {}; }
  // Moves on what is under way; true if that has changed anything.
  virtual bool Step(Time now) { return false; }
};

// Whether another attempt at the same launch can help.
[[nodiscard]] constexpr bool LaunchIsRetriable(ErrorCode code) {
  return code != ErrorCode::kInvalidArgument && code != ErrorCode::kNotFound &&
         code != ErrorCode::kPermissionDenied;
}

struct Notice {
  std::string node;
  Time deadline;       // The node is gone then.
  std::string source;  // "schedule", "imds", "SIGTERM"; for people.
};

class NoticeSource {
 public:
  virtual ~NoticeSource() = default;
  // Notices that came since the last call.
  virtual std::vector<Notice> Poll(Time now) = 0;
  // The training runs, for the first time: a scripted market may count from there.
  virtual void TrainingRuns(Time now) {}
};

}  // namespace troupe
