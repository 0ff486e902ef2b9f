#include "autoscaler/machine_inventory.h"

namespace troupe {

void MachineInventory::Made(Time now, const std::vector<Machine>& machines) {
  for (const Machine& machine : machines) {
    Known& known = known_[machine.id];
    if (known.machine.id.empty()) known.machine = machine;
    known.made_at = now;
    known.seen_at = now;
  }
}

void MachineInventory::Ending(const std::string& id) {
  const auto found = known_.find(id);
  if (found != known_.end()) found->second.ending = true;
}

std::vector<Machine> MachineInventory::Take(Time now, const std::vector<ListedMachine>& listed,
                                            const std::function<bool(const Machine&)>& unseen) {
  std::vector<Machine> there;
  std::set<std::string> seen;
  for (const ListedMachine& instance : listed) {
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
    entry.listed = true;
    if (entry.ending) entry.machine.state = "stopping";
    there.push_back(entry.machine);
  }
  for (auto it = known_.begin(); it != known_.end();) {
    Known& known = it->second;
    const bool hidden = unseen && unseen(known.machine);
    if (hidden) known.seen_at = now;
    const Duration lag = known.listed ? lost_after_ : kCloudListLag;
    const bool gone = (known.ending && !hidden) || now >= known.seen_at + lag;
    if (!seen.contains(it->first) && gone) {
      it = known_.erase(it);
      continue;
    }
    if (!seen.contains(it->first)) there.push_back(known.machine);
    ++it;
  }
  return there;
}

std::set<std::string> MachineInventory::Young(Time now, const std::vector<std::string>& ids) const {
  std::set<std::string> young;
  for (const std::string& id : ids) {
    const auto found = known_.find(id);
    if (found != known_.end() && now < found->second.made_at + kCloudListLag) young.insert(id);
  }
  return young;
}

}  // namespace troupe
