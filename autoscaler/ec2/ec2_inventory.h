// The instances that there are, of lists that lag behind: one that was made is there before it is
// listed, one that is missing from a list is there until EC2 has not shown it for a while, and one
// that has ended is shown as ending once more, with EC2's reason, and no longer.
//
// Pure.
// Thread: one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/ec2/ec2_requests.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"

namespace troupe::ec2 {

inline constexpr Duration kEc2ListLag = seconds(60);

class Ec2Inventory {
 public:
  void Made(Time now, const std::vector<Machine>& machines);
  // EC2 ends it.
  void Ending(const std::string& id);
  // EC2 does not know it any more.
  void Gone(const std::string& id) { known_.erase(id); }
  // What there is, by what was listed now. A list that was asked for before something was made may
  // lack it.
  std::vector<Machine> Take(Time now, const std::vector<Ec2Instance>& listed);
  // Of these, those that EC2 may not know everywhere yet.
  [[nodiscard]] std::set<std::string> Young(Time now, const std::vector<std::string>& ids) const;

 private:
  struct Known {
    Machine machine;
    Time made_at;  // As we have heard; the earliest time for one that was listed.
    Time seen_at;  // Last, or made.
    bool ending = false;
  };
  std::map<std::string, Known> known_;
};

}  // namespace troupe::ec2
