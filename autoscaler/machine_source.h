// The seam to whoever makes, lists and ends machines: a program of the user's, a batch system, a
// cloud. What is asked is answered later, or at once; MachineProvider makes nodes of them.
//
// Thread: one; no call waits.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

// Of machines, and of nodes on hosts: of which cluster they are, of which `troupe up`, and which
// node they make.
inline constexpr const char* kClusterTag = "troupe-cluster";
inline constexpr const char* kLifeTag = "troupe-life";
inline constexpr const char* kNodeTag = "troupe-node";
// Empty: there is none of that name.
[[nodiscard]] inline std::string TagOf(const std::map<std::string, std::string>& tags,
                                       const char* name) {
  const auto found = tags.find(name);
  return found == tags.end() ? "" : found->second;
}

struct MachineOrder {
  std::string request_id;  // The same twice makes nothing new.
  std::string offer;       // Of the source; a pool of the cluster file.
  int count = 1;
  std::string user_data;  // A shell script that the machine runs when it has booted.
  std::map<std::string, std::string> tags;
};

struct Machine {
  std::string id;
  std::string offer;
  std::string request_id;
  std::string state;  // "pending", "running" or "stopping".
  std::string detail;
  std::string ended;  // Why it ends, of one that is "stopping"; empty: not known.
  std::map<std::string, std::string> tags;
  std::optional<double> preempted_in_s;  // It is taken back then.
};

class MachineSource {
 public:
  using Answer = std::function<void(Result<std::vector<Machine>>)>;

  virtual ~MachineSource() = default;
  // The machines that were made, their ids at least: `count` at most. kResourceExhausted: there is
  // no capacity now. kInvalidArgument, kNotFound, kPermissionDenied: trying again is useless.
  // kDeadlineExceeded, kCorrupt: they may have been made all the same.
  virtual void Create(const MachineOrder& order, Answer done) = 0;
  // All that were made, with their tags, until they are gone; perhaps others'.
  virtual void List(Answer done) = 0;
  // Those that have ended, or never were, count as ended.
  virtual void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) = 0;
  // What a machine that is there has printed since it booted, its end at least, on one line; empty:
  // nothing is known.
  virtual void Printed(const std::string& id, const std::function<void(const std::string&)>& done) {
    done("");
  }
  // Nobody wants what was ordered any more: it need not be made if nothing was yet. The order is
  // answered all the same.
  virtual void Withdraw(const std::string& request_id) {}
  // Of offers whose price was told since the last call: dollars for a machine and hour.
  virtual std::map<std::string, double> TakePrices() { return {}; }
  // Moves on what is under way; true if that has changed anything.
  virtual bool Step(Time now) { return false; }
};

}  // namespace troupe
