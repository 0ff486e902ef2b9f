#include "autoscaler/ec2/ec2_inventory.h"

namespace troupe::ec2 {

void Ec2Inventory::Made(Time now, const std::vector<Machine>& machines) {
  for (const Machine& machine : machines) {
    Known& known = known_[machine.id];
    if (known.machine.id.empty()) known.machine = machine;
    known.made_at = now;
    known.seen_at = now;
  }
}

void Ec2Inventory::Ending(const std::string& id) {
  const auto found = known_.find(id);
  if (found != known_.end()) found->second.ending = true;
}

std::vector<Machine> Ec2Inventory::Take(Time now, const std::vector<Ec2Instance>& listed) {
  std::vector<Machine> there;
  std::set<std::string> seen;
  for (const Ec2Instance& instance : listed) {
    const std::string& id = instance.machine.id;
    if (!seen.insert(id).second) continue;  // A page may come twice.
    const auto known = known_.find(id);
    if (instance.ended) {
      if (known == known_.end()) continue;
      known_.erase(known);
      there.push_back(instance.machine);
      continue;
    }
    Known& entry = known == known_.end() ? known_[id] : known->second;
    entry.machine = instance.machine;
    entry.seen_at = now;
    if (entry.ending) entry.machine.state = "stopping";
    there.push_back(entry.machine);
  }
  std::erase_if(known_, [&](const auto& entry) {
    const Known& known = entry.second;
    if (seen.contains(entry.first)) return false;
    if (known.ending || now >= known.seen_at + kEc2ListLag) return true;
    there.push_back(known.machine);
    return false;
  });
  return there;
}

std::set<std::string> Ec2Inventory::Young(Time now, const std::vector<std::string>& ids) const {
  std::set<std::string> young;
  for (const std::string& id : ids) {
    const auto found = known_.find(id);
    if (found != known_.end() && now < found->second.made_at + kEc2ListLag) young.insert(id);
  }
  return young;
}

}  // namespace troupe::ec2
