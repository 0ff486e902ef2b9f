// The instances that there are, of lists that lag behind: one that was made is there before it is
// listed, one that is missing from a list is there until its cloud has not shown it for a
// while, and one that has ended is shown as ending once more, with the reason, and no longer.
//
// Pure.
// Thread: one.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/machine_source.h"
#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kCloudListLag = seconds(60);

struct ListedMachine {
  Machine machine;
  bool ended = false;  // It is listed all the same.
};

class MachineInventory {
 public:
  // `lost_after`: one that was listed before and is missing has gone by then. One that was made and
  // has not been listed yet has kCloudListLag for that.
  explicit MachineInventory(Duration lost_after = kCloudListLag) : lost_after_(lost_after) {}

  void Made(Time now, const std::vector<Machine>& machines);
  // Its cloud ends it.
  void Ending(const std::string& id);
  // Its cloud does not know it any more.
  void Gone(const std::string& id) { known_.erase(id); }
  // What there is, by what was listed now. A list that was asked for before something was made may
  // lack it. `unseen`: of whom this list says nothing.
  std::vector<Machine> Take(Time now, const std::vector<ListedMachine>& listed,
                            const std::function<bool(const Machine&)>& unseen = nullptr);
  // Of these, those that their cloud may not know everywhere yet.
  [[nodiscard]] std::set<std::string> Young(Time now, const std::vector<std::string>& ids) const;

 private:
  struct Known {
    Machine machine;
    Time made_at;  // As we have heard; the earliest time for one that was listed.
    Time seen_at;  // Last, or made.
    bool ending = false;
    bool listed = false;
  };
  const Duration lost_after_;
  std::map<std::string, Known> known_;
};

}  // namespace troupe
