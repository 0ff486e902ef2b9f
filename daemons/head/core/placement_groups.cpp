#include "daemons/head/core/placement_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "actors/core/error_chain.h"
#include "daemons/head/core/read_record.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"
#include "scheduler/devices.h"

namespace troupe::daemons {

using actors::GroupRequest;
using actors::PlacementGroupVerb;
using sched::BundleSpec;

namespace {

Error NoGroup(const std::string& id) {
  return Error{ErrorCode::kNotFound,
               "there is no placement group " + id + "; it was removed, or its creator has ended"};
}

std::string KeyOf(const std::string& from, uint64_t request) {
  return from + "#" + std::to_string(request);
}

}  // namespace

// ---- the store ----

void PlacementGroups::Restore(const std::map<std::string, std::string>& records) {
  for (const auto& [key, value] : records) {
    auto record = ReadRecord<GroupRecord>(*queue_, actors::kGroupRecord, key, value);
    if (!record) continue;
    const std::string id = record->spec.group;
    if (!record->spec.name.empty()) names_[record->spec.name] = id;
    claims_[id] = ClaimOf(*record);
    groups_[id] = std::move(*record);
    queue_->Put(step::Schedule{claims_[id]});
  }
}

sched::ClaimGroup PlacementGroups::ClaimOf(const GroupRecord& record) const {
  sched::ClaimGroup claim;
  claim.group = record.spec.group;
  claim.priority = record.spec.priority;
  if (const auto strategy = ParsePlacementStrategy(record.spec.strategy); strategy.ok())
    claim.strategy = *strategy;
  claim.resized = record.resized;
  claim.next_bundle = record.next_bundle;
  for (const GroupRecord::Bundle& bundle : record.bundles) {
    Result<BundleSpec> spec = Spec(bundle.wish);
    if (!spec.ok()) continue;
    const bool lost = TROUPE_MUTATED("PG-3 places are forgotten");
    claim.bundles.push_back({bundle.number, *spec, lost ? "" : bundle.node, bundle.devices});
  }
  return claim;
}

void PlacementGroups::Keep(const std::string& group) {
  const auto it = groups_.find(group);
  std::string record;
  if (it != groups_.end()) record = wire::Encode(actors::kGroupRecord, it->second);
  queue_->Put(step::Keep{kGroupRecords + group, std::move(record)});
}

void PlacementGroups::RefreshKeys() {
  for (const auto& [id, record] : groups_) Keep(id);
}

// ---- the scheduler's word ----

void PlacementGroups::OnNodeUp() {
  for (const auto& [id, claim] : claims_) queue_->Put(step::Schedule{claim});
}

bool PlacementGroups::Unconfirmed() const {
  return std::ranges::any_of(claims_, [&](const auto& entry) {
    const std::optional<sched::GroupStatus> status = scheduler_->FindGroup(entry.first);
    if (!status) return false;
    return std::ranges::any_of(entry.second.bundles, [&](const auto& claimed) {
      if (claimed.node.empty()) return false;
      return std::ranges::any_of(status->bundles, [&](const sched::BundleStatus& bundle) {
        return bundle.place.number == claimed.number && bundle.place.node.empty();
      });
    });
  });
}

void PlacementGroups::OnChange(const sched::GroupChange& change) {
  const auto it = groups_.find(change.group);
  if (it == groups_.end()) return;
  std::map<uint32_t, GroupRecord::Bundle*> bundles;
  for (GroupRecord::Bundle& bundle : it->second.bundles) bundles[bundle.number] = &bundle;
  bool changed = false;
  for (const sched::BundlePlace& place : change.bundles) {
    const auto found = bundles.find(place.number);
    // Where it was is worth keeping until it is known what has become of it.
    const bool recovering = place.node.empty() && claims_.contains(change.group);
    if (found == bundles.end() || recovering) continue;
    GroupRecord::Bundle& bundle = *found->second;
    std::vector<uint32_t> devices = IndicesOf(place.devices);
    changed = changed || bundle.node != place.node || bundle.devices != devices;
    bundle.node = place.node;
    bundle.devices = std::move(devices);
  }
  const std::string id = change.group;
  const bool placed = change.state == sched::GroupState::kPlaced;
  if (changed || placed) Keep(id);
  if (placed) queue_->PutWhenKept("", step::AnswerWaiters{id});
}

void PlacementGroups::OnRefused(const sched::Refused& refused) {
  if (!trials_.empty() && trials_.front().group == refused.what) {
    trials_.front().refused = refused.error;
    return;
  }
  if (!groups_.contains(refused.what)) return;
  // One of the store that cannot be any more.
  queue_->Warn("placement group ", refused.what, " is given up: ", refused.error.message);
  Remove(refused.what);
}

// The record is what it will be, so that what the scheduler tells of it finds it.
void PlacementGroups::Try(const std::string& from, uint64_t request,
                          std::optional<GroupRecord> before, const std::string& group,
                          SchedulerEvent event) {
  trials_.push_back({from, request, group, std::move(before), {}});
  queue_->Put(step::Schedule{std::move(event)});
  queue_->Put(step::GroupTried{});
}

void PlacementGroups::OnTried() {
  const Trial trial = std::move(trials_.front());
  trials_.pop_front();
  if (!trial.refused) {
    Keep(trial.group);
    return AnswerWhenKept(trial.from, trial.request, trial.group);
  }
  if (trial.before) {
    groups_[trial.group] = *trial.before;
  } else if (const auto it = groups_.find(trial.group); it != groups_.end()) {
    if (!it->second.spec.name.empty()) names_.erase(it->second.spec.name);
    groups_.erase(it);
  }
  Answer(trial.from, trial.request, trial.group, *trial.refused);
}

// ---- requests ----

Result<BundleSpec> PlacementGroups::Spec(const PlacementBundle& bundle) const {
  Result<ResourceSet> resources = ResourceSet::FromMap(bundle.resources);
  if (!resources.ok()) return resources.error();
  if (Status gpus = CheckGpuAmount(*resources); !gpus.ok()) return gpus.error();
  BundleSpec spec{*resources, {}};
  for (const std::string& text : bundle.labels) {
    Result<LabelSelector> one = LabelSelector::Parse(text);
    if (!one.ok()) return one.error();
    spec.labels = spec.labels.And(*one);
  }
  return spec;
}

Result<std::vector<BundleSpec>> PlacementGroups::Specs(
    const std::vector<PlacementBundle>& bundles) const {
  std::vector<BundleSpec> specs;
  for (size_t i = 0; i < bundles.size(); ++i) {
    Result<BundleSpec> spec = Spec(bundles[i]);
    if (!spec.ok()) return spec.error().WithContext("bundle " + std::to_string(i));
    specs.push_back(std::move(*spec));
  }
  return specs;
}

void PlacementGroups::Add(GroupRecord& record, const std::vector<PlacementBundle>& bundles) {
  for (const PlacementBundle& bundle : bundles)
    record.bundles.push_back({record.next_bundle++, bundle, "", {}});
}

Result<bool> PlacementGroups::Create(const std::string& from, const GroupRequest& request) {
  const std::string& id = request.spec.group;
  if (groups_.contains(id)) return false;  // Its answer was lost.
  if (!id.starts_with(actors::kGroupId)) {
    return Error{ErrorCode::kInvalidArgument,
                 "a placement group's id begins with " + std::string(actors::kGroupId)};
  }
  const std::string& name = request.spec.name;
  if (!name.empty() && names_.contains(name)) {
    return Error{ErrorCode::kAlreadyExists, "there is a placement group of the name \"" + name +
                                                "\"; choose another, or get that one"};
  }
  Result<PlacementStrategy> strategy = ParsePlacementStrategy(request.spec.strategy);
  if (!strategy.ok()) return strategy.error();
  Result<std::vector<BundleSpec>> specs = Specs(request.add);
  if (!specs.ok()) return specs.error();
  GroupRecord& record = groups_[id];
  record.spec = request.spec;
  record.requests.push_back(KeyOf(from, request.request));
  Add(record, request.add);
  if (!name.empty()) names_[name] = id;
  Try(from, request.request, std::nullopt, id,
      sched::CreateGroup{id, *specs, *strategy, request.spec.priority});
  return true;
}

Result<bool> PlacementGroups::Resize(const std::string& from, const GroupRequest& request) {
  const std::string key = KeyOf(from, request.request);
  const std::string& id = request.spec.group;
  const auto it = groups_.find(id);
  if (it == groups_.end()) return NoGroup(id);
  GroupRecord& record = it->second;
  const bool repeated = std::ranges::count(record.requests, key) > 0;  // Its answer was lost.
  if (repeated && !TROUPE_MUTATED("PG-1 a repeat is another")) return false;
  Result<std::vector<BundleSpec>> specs = Specs(request.add);
  if (!specs.ok()) return specs.error();
  std::set<uint32_t> there;
  for (const GroupRecord::Bundle& bundle : record.bundles) there.insert(bundle.number);
  for (const uint32_t number : request.remove) {
    if (!there.contains(number)) {
      return Error{ErrorCode::kNotFound,
                   "placement group " + id + " has no bundle " + std::to_string(number)};
    }
  }
  const std::set<uint32_t> removed(request.remove.begin(), request.remove.end());
  GroupRecord before = record;
  Add(record, request.add);
  std::erase_if(record.bundles,
                [&](const GroupRecord::Bundle& bundle) { return removed.contains(bundle.number); });
  record.requests.push_back(key);
  if (record.requests.size() > kGroupRequestsKept) record.requests.erase(record.requests.begin());
  ++record.resized;
  Try(from, request.request, std::move(before), id,
      sched::ResizeGroup{id, record.resized, *specs, request.remove});
  return true;
}

void PlacementGroups::Remove(const std::string& id) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  if (!it->second.spec.name.empty()) names_.erase(it->second.spec.name);
  groups_.erase(it);
  claims_.erase(id);
  queue_->Put(step::Schedule{sched::RemoveGroup{id}});
  Keep(id);
  AnswerWaiters(id, NoGroup(id));
}

void PlacementGroups::OnRequest(const std::string& from, const GroupRequest& request) {
  std::string id = request.spec.group;
  Status status = Status::Ok();
  if (request.verb == PlacementGroupVerb::kCreate || request.verb == PlacementGroupVerb::kResize) {
    const Result<bool> asked =
        request.verb == PlacementGroupVerb::kCreate ? Create(from, request) : Resize(from, request);
    if (asked.ok() && *asked) return;
    if (asked.ok()) return AnswerWhenKept(from, request.request, id);
    status = asked.error();
  } else if (request.verb == PlacementGroupVerb::kRemove) {
    Remove(id);
    return AnswerWhenKept(from, request.request, "");
  } else if (request.verb == PlacementGroupVerb::kFind) {
    const auto it = names_.find(request.spec.name);
    if (it == names_.end()) {
      status = Error{ErrorCode::kNotFound, "there is no placement group of the name \"" +
                                               request.spec.name + "\"; look at `troupe groups`"};
    } else {
      id = it->second;
    }
  } else if (request.verb == PlacementGroupVerb::kAwait && groups_.contains(id)) {
    if (!Placed(id)) {
      std::map<Waiter, Time>& waiters = waiters_[id];
      if (waiting_ < kGroupWaitersMax &&
          waiters.insert_or_assign({from, request.request}, queue_->now()).second)
        ++waiting_;
      return;
    }
  } else if (!groups_.contains(id)) {
    status = NoGroup(id);
  }
  Answer(from, request.request, id, status);
}

void PlacementGroups::AnswerWhenKept(const std::string& from, uint64_t request,
                                     const std::string& group) {
  step::AnswerGroup answer{from, request, group};
  if (TROUPE_MUTATED("PG-2 answers do not wait")) return queue_->Put(std::move(answer));
  queue_->PutWhenKept(KeyOf(from, request), std::move(answer));
}

void PlacementGroups::AnswerKept(const step::AnswerGroup& answer) {
  const bool gone = !answer.group.empty() && !groups_.contains(answer.group);
  Answer(answer.to, answer.request, answer.group,
         gone ? Status(NoGroup(answer.group)) : Status::Ok());
}

void PlacementGroups::Answer(const std::string& to, uint64_t request, const std::string& group,
                             const Status& status) {
  actors::ActorAnswer answer{request, {}, {}, {}, {}, {}};
  if (!status.ok()) answer.error = actors::ToChain(status.error());
  if (const auto it = groups_.find(group); status.ok() && it != groups_.end())
    answer.group = StatusOf(it->second);
  queue_->Put(step::Send{to, wire::Encode(actors::kFrameActorAnswer, answer)});
}

void PlacementGroups::AnswerWaiters(const std::string& group, const Status& status) {
  const auto it = waiters_.find(group);
  if (it == waiters_.end()) return;
  const std::map<Waiter, Time> waiters = std::move(it->second);
  waiters_.erase(it);
  waiting_ -= waiters.size();
  for (const auto& [waiter, heard] : waiters) Answer(waiter.first, waiter.second, group, status);
}

// The scheduler says it with reasons, for which it looks at everything: that is for people.
bool PlacementGroups::Placed(const std::string& group) const {
  const GroupRecord& record = groups_.at(group);
  if (claims_.contains(group)) return StatusOf(record).placed();  // The record is of before.
  return std::ranges::all_of(record.bundles, [](const auto& b) { return !b.node.empty(); });
}

PlacementGroupStatus PlacementGroups::StatusOf(const GroupRecord& record) const {
  PlacementGroupStatus status{record.spec.group, record.spec.name, "pending", "", {}};
  const std::optional<sched::GroupStatus> group = scheduler_->FindGroup(record.spec.group);
  if (group) {
    status.state = sched::GroupStateName(group->state);
    status.reason = group->reason;
  }
  std::map<uint32_t, const sched::BundlePlace*> places;
  if (group) {
    for (const sched::BundleStatus& bundle : group->bundles)
      places[bundle.place.number] = &bundle.place;
  }
  for (const GroupRecord::Bundle& bundle : record.bundles) {
    PlacementGroupStatus::Bundle one{bundle.number, "", {}, bundle.wish};
    if (const auto place = places.find(bundle.number); place != places.end()) {
      one.node = place->second->node;
      one.devices = IndicesOf(place->second->devices);
    }
    status.bundles.push_back(std::move(one));
  }
  return status;
}

// ---- owners, time ----

void PlacementGroups::OwnerGone(const std::string& owner) {
  std::vector<std::string> gone;
  for (const auto& [id, record] : groups_) {
    if (!record.spec.detached && record.spec.owner == owner) gone.push_back(id);
  }
  for (const std::string& id : gone) Remove(id);
}

void PlacementGroups::OnTick(bool final) {
  const Time now = queue_->now();
  std::vector<std::pair<std::string, std::string>> never;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    waiting_ -= std::erase_if(
        it->second, [&](const auto& waiter) { return now >= waiter.second + kGroupWaiterKept; });
    if (final) {
      const std::optional<sched::GroupStatus> status = scheduler_->FindGroup(it->first);
      if (status && status->impossible) never.emplace_back(it->first, status->reason);
    }
    it = it->second.empty() ? waiters_.erase(it) : std::next(it);
  }
  for (const auto& [id, reason] : never) {
    AnswerWaiters(id, Error{ErrorCode::kResourceExhausted,
                            "placement group " + id + " can never be placed here: " + reason});
  }
}

}  // namespace troupe::daemons
