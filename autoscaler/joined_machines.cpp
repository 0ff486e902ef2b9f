#include "autoscaler/joined_machines.h"

#include <algorithm>
#include <utility>

#include "runtime/log.h"

namespace troupe {

// One list of all.
struct JoinedMachines::Round {
  Answer done;
  bool old_will_do = true;
  size_t left = 0;
  std::vector<Machine> machines;
  std::set<std::string> ids;  // Of these: two sources may turn out to be the same region.
  Status failed = Status::Ok();
};

JoinedMachines::JoinedMachines(std::vector<Part> parts) {
  for (Part& part : parts) parts_.push_back({std::move(part), std::nullopt, {}, false, ""});
}

void JoinedMachines::Create(const MachineOrder& order, Answer done) {
  const auto found = std::ranges::find_if(
      parts_, [&](const Known& known) { return known.part.offers.contains(order.offer); });
  if (found == parts_.end())
    return done(Error{ErrorCode::kNotFound, "no region has the offer " + order.offer});
  Known& known = *found;
  known.part.source->Create(order, [this, &known, done](Result<std::vector<Machine>> made) {
    Made(known, made);
    done(std::move(made));
  });
}

void JoinedMachines::Made(Known& known, const Result<std::vector<Machine>>& made) {
  if (made.ok()) {
    for (const Machine& machine : *made) known.ids.insert(machine.id);
  } else if (made.error().code == ErrorCode::kDeadlineExceeded ||
             made.error().code == ErrorCode::kCorrupt) {
    known.lost = true;
  }
}

void JoinedMachines::ListAll(Answer done, bool old_will_do) {
  const auto round = std::make_shared<Round>();
  round->done = std::move(done);
  round->old_will_do = old_will_do;
  round->left = parts_.size();
  for (Known& known : parts_) {
    known.part.source->List([this, &known, round](const Result<std::vector<Machine>>& listed) {
      Listed(known, listed, *round);
    });
  }
}

void JoinedMachines::Listed(Known& known, const Result<std::vector<Machine>>& listed,
                            Round& round) {
  const std::string trouble = listed.ok() ? "" : listed.error().message;
  if (std::exchange(known.trouble, trouble) != trouble && !trouble.empty())
    LogWarning(known.part.name, " does not list its machines: ", trouble);
  if (listed.ok()) {
    known.last = *listed;
    known.lost = false;
    known.ids.clear();
    for (const Machine& machine : *listed) known.ids.insert(machine.id);
  }
  if (listed.ok() || (round.old_will_do && known.last && !known.lost)) {
    for (const Machine& machine : *known.last) {
      if (round.ids.insert(machine.id).second) round.machines.push_back(machine);
    }
  } else {
    round.failed = listed.error().WithContext(known.part.name);
  }
  if (--round.left > 0) return;
  if (!round.failed.ok()) return round.done(round.failed.error());
  round.done(std::move(round.machines));
}

void JoinedMachines::Terminate(const std::vector<std::string>& ids,
                               std::function<void(Status)> done) {
  std::vector<std::vector<std::string>> of_part(parts_.size());
  for (const std::string& id : ids) {
    const auto knows = [&](const Known& known) { return known.ids.contains(id); };
    const bool anywhere = std::ranges::none_of(parts_, knows);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (anywhere || knows(parts_[i])) of_part[i].push_back(id);
    }
  }
  struct Ends {
    size_t left = 1;
    Status status = Status::Ok();
  };
  const auto ends = std::make_shared<Ends>();
  const auto one = [ends, done = std::move(done)](const Status& status) {
    if (!status.ok()) ends->status = status;
    if (--ends->left == 0) done(ends->status);
  };
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (of_part[i].empty()) continue;
    ++ends->left;
    parts_[i].part.source->Terminate(of_part[i], one);
  }
  one(Status::Ok());
}

void JoinedMachines::Printed(const std::string& id,
                             const std::function<void(const std::string&)>& done) {
  for (Known& known : parts_) {
    if (known.ids.contains(id)) return known.part.source->Printed(id, done);
  }
  done("");
}

void JoinedMachines::Withdraw(const std::string& request_id) {
  for (Known& known : parts_) known.part.source->Withdraw(request_id);
}

std::map<std::string, double> JoinedMachines::TakePrices() {
  std::map<std::string, double> prices;
  for (Known& known : parts_) prices.merge(known.part.source->TakePrices());
  return prices;
}

bool JoinedMachines::Step(Time now) {
  bool changed = false;
  for (Known& known : parts_) changed = known.part.source->Step(now) || changed;
  return changed;
}

void JoinedMachines::Whole::Create(const MachineOrder& order, Answer done) {
  all_->Create(order, std::move(done));
}

void JoinedMachines::Whole::Terminate(const std::vector<std::string>& ids,
                                      std::function<void(Status)> done) {
  all_->Terminate(ids, std::move(done));
}

}  // namespace troupe
