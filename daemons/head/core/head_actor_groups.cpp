#include "daemons/head/core/head_actor_groups.h"

#include <algorithm>
#include <utility>

#include "actors/core/error_chain.h"
#include "daemons/head/core/read_record.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::ActorGroupRequest;
using actors::ActorGroupVerb;

namespace {

constexpr double kLongestDrain_s = 7 * 86'400.0;

}  // namespace

// ---- the store ----

void HeadActorGroups::Restore(const std::map<std::string, std::string>& records) {
  ActorGroupActions actions;
  std::vector<std::string> names;
  for (const auto& [key, value] : records) {
    auto record = ReadRecord<ActorGroupRecord>(*queue_, actors::kActorGroupRecord, key, value);
    if (!record) continue;
    const std::string group = record->spec.group;
    groups_.Restore(queue_->now(), std::move(*record), actions);
    names.push_back(group);
  }
  Do(actions);
  for (const std::string& group : names) {
    // The head before had no time to start them; or they have ended, and it had none to note it:
    // then they live once more. A worker of a run is followed by another, since its peers must not
    // take a new life of it for an old one.
    StartMembers missing{group, {}, 0};
    ActorGroupActions again;
    for (const actors::ActorSpec& spec : groups_.SpecsOf(group)) {
      if (directory_->Find(spec.actor) != nullptr) continue;
      if (IsRunActor(spec.actor)) {
        groups_.Missing(queue_->now(), spec.actor, again);
      } else {
        missing.actors.push_back(spec);
      }
    }
    if (!missing.actors.empty()) again.emplace_back(std::move(missing));
    Do(again);
    // Of those that are about to be started nothing is known yet, which is no death.
    for (const actors::ActorSpec& spec : groups_.SpecsOf(group)) {
      if (directory_->Find(spec.actor) != nullptr || TROUPE_MUTATED("the unrecorded are dead"))
        OnActor(spec.actor);
    }
    Tell(group);
  }
}

void HeadActorGroups::Keep(const std::string& group) {
  const std::optional<ActorGroupRecord> record = groups_.RecordOf(group);
  queue_->Put(
      step::Keep{kActorGroupRecords + group,
                 record ? wire::Encode(actors::kActorGroupRecord, *record) : std::string()});
}

void HeadActorGroups::RefreshKeys() {
  for (const std::string& group : groups_.groups())
    if (groups_.RecordOf(group)) Keep(group);
}

// ---- what the core wants done ----

void HeadActorGroups::Do(const ActorGroupActions& actions) {
  for (const ActorGroupAction& action : actions) DoOne(action);
}

std::string HeadActorGroups::NameOf(const std::string& group) const {
  const Result<ActorGroupStatus> status = groups_.StatusOf(group, UINT64_MAX);
  return status.ok() ? status->name : "";
}

void HeadActorGroups::DoOne(const ActorGroupAction& action) {
  // The collective group of a run is its own.
  if (const auto* keep = std::get_if<KeepGroup>(&action)) {
    Keep(keep->group);
    if (IsRunActor(keep->group)) return;
    if (std::optional<GroupMembership> m = groups_.MembershipOf(keep->group))
      queue_->Put(step::SetGroupMembers{m->name, m->min_size, m->max_size, std::move(m->actors)});
  } else if (const auto* forget = std::get_if<ForgetGroup>(&action)) {
    Keep(forget->group);
    if (!IsRunActor(forget->group)) queue_->Put(step::SetGroupMembers{NameOf(forget->group)});
  } else if (const auto* start = std::get_if<StartMembers>(&action)) {
    queue_->Put(step::StartActors{start->actors, start->at_least, start->strategy});
  } else if (const auto* end = std::get_if<EndMember>(&action)) {
    queue_->Put(step::EndActor{end->actor, end->reason, end->overdue});
  } else if (const auto* hold = std::get_if<HoldMember>(&action)) {
    queue_->Put(step::HoldActor{hold->actor, hold->held});
  } else if (const auto* drain = std::get_if<DrainMember>(&action)) {
    if (IsRunActor(drain->group))
      return queue_->Put(step::DrainWorker{drain->actor, drain->reason});
    queue_->Put(step::DrainFromGroup{NameOf(drain->group), drain->actor, drain->reason});
    queue_->Put(step::DismissActor{drain->actor, drain->reason});
  } else if (const auto* dismiss = std::get_if<DismissMembers>(&action)) {
    queue_->Put(step::DismissFromGroup{NameOf(dismiss->group), dismiss->actors, dismiss->reason});
  } else if (const auto* readmit = std::get_if<ReadmitMembers>(&action)) {
    queue_->Put(step::ReadmitToGroup{NameOf(readmit->group)});
  } else if (const auto* tell = std::get_if<TellGroup>(&action)) {
    Tell(tell->group);
  }
}

// ---- requests ----

Status HeadActorGroups::Handle(const ActorGroupRequest& request, std::string& group) {
  if (IsRunActor(group) || request.spec.of_run) {
    return Error{ErrorCode::kInvalidArgument,
                 "the workers of a training run are no group of yours; resize, drain and cancel "
                 "the run"};
  }
  ActorGroupActions actions;
  Status status;
  switch (request.verb) {
    case ActorGroupVerb::kCreate: {
      const std::string& name = request.spec.name.empty() ? group : request.spec.name;
      const bool repeated = !groups_.Find(group).empty();
      if (!repeated && collectives_->Has(name)) {
        return Error{ErrorCode::kAlreadyExists, "there is a collective group \"" + name +
                                                    "\" already, and a group of actors has one "
                                                    "of its own name"};
      }
      // What no node could ever offer in these words is told now, not by members that end.
      if (const auto lease = LeaseFor(request.spec.member, 1); !lease.ok()) return lease.error();
      status = groups_.Create(queue_->now(), request.spec, actions);
      break;
    }
    case ActorGroupVerb::kFind:
      group = groups_.Find(request.spec.name);
      if (!group.empty()) break;
      return Error{ErrorCode::kNotFound, "there is no group of actors named \"" +
                                             request.spec.name + "\"; `troupe groups` lists them"};
    case ActorGroupVerb::kResize:
      status = groups_.Resize(queue_->now(), group, request.size, "the group has become smaller",
                              kDrainLimit, actions);
      break;
    case ActorGroupVerb::kDrain: {
      const double limit_s = std::clamp(request.limit_s, 0.0, kLongestDrain_s);
      status = groups_.Drain(queue_->now(), group, request.member, request.reason,
                             milliseconds(static_cast<int64_t>(limit_s * 1e3)), actions);
      break;
    }
    case ActorGroupVerb::kEnd:
      groups_.End(queue_->now(), group, request.reason, actions);
      break;
    case ActorGroupVerb::kRun:
      groups_.RunBegins(group, actions);
      break;
    case ActorGroupVerb::kReturned:
      groups_.Returned(queue_->now(), group, request.member);
      break;
    case ActorGroupVerb::kStatus:
    case ActorGroupVerb::kWatch:
      break;
  }
  Do(actions);
  return status;
}

void HeadActorGroups::OnRequest(const std::string& from, const ActorGroupRequest& request) {
  actors::ActorAnswer answer{request.request, {}, {}, {}, {}, {}};
  std::string group = request.spec.group;
  const Status status = Handle(request, group);
  if (status.ok()) {
    Result<ActorGroupStatus> now_is = groups_.StatusOf(group, request.since);
    const bool waits = request.verb == ActorGroupVerb::kWatch && now_is.ok() &&
                       now_is->sequence <= request.since && !now_is->ended;
    if (waits) {
      std::map<Watcher, Waiting>& all = watchers_[group];
      const auto [it, fresh] = all.try_emplace({from, request.request});
      if (fresh && watching_ >= kGroupWatchersMax) {
        all.erase(it);
        return;  // It asks again.
      }
      watching_ += fresh ? 1 : 0;
      it->second = {request.since, queue_->now()};
      return;
    }
    if (now_is.ok()) answer.actors = std::move(*now_is);
    if (!now_is.ok()) answer.error = actors::ToChain(now_is.error());
  } else {
    answer.error = actors::ToChain(status.error());
  }
  queue_->PutWhenKept(from + "#" + std::to_string(request.request),
                      step::Send{from, wire::Encode(actors::kFrameActorAnswer, answer)});
}

void HeadActorGroups::Tell(const std::string& group) {
  const auto it = watchers_.find(group);
  if (it == watchers_.end()) return;
  const std::map<Watcher, Waiting> all = std::move(it->second);
  watchers_.erase(it);
  watching_ -= all.size();
  for (const auto& [watcher, waiting] : all) {
    actors::ActorAnswer answer{watcher.second, {}, {}, {}, {}, {}};
    Result<ActorGroupStatus> status = groups_.StatusOf(group, waiting.since);
    if (status.ok()) answer.actors = std::move(*status);
    if (!status.ok()) answer.error = actors::ToChain(status.error());
    queue_->Put(step::Send{watcher.first, wire::Encode(actors::kFrameActorAnswer, answer)});
  }
}

// ---- what happens ----

void HeadActorGroups::OnActor(const std::string& actor) {
  if (!groups_.MemberOf(actor)) return;
  ActorGroupActions actions;
  groups_.OnActor(queue_->now(), directory_->Where(actor), actions);
  Do(actions);
}

void HeadActorGroups::OwnerGone(const std::string& owner) {
  ActorGroupActions actions;
  groups_.OwnerGone(queue_->now(), owner, actions);
  Do(actions);
}

bool HeadActorGroups::OnNodeDrain(const std::string& actor, const std::string& reason,
                                  Duration limit) {
  const auto member = groups_.MemberOf(actor);
  if (!member) return false;
  // Who trains leaves at a boundary, and goes with its node at the latest.
  const Duration within = IsRunActor(actor) ? kNoDrainLimit : limit;
  ActorGroupActions actions;
  (void)groups_.Drain(queue_->now(), member->first, member->second, reason, within, actions);
  Do(actions);
  return true;
}

void HeadActorGroups::OnTick() {
  ActorGroupActions actions;
  const Time now = queue_->now();
  groups_.Tick(now, actions);
  Do(actions);
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    watching_ -= std::erase_if(
        it->second, [&](const auto& w) { return now > w.second.heard + kGroupWatcherKept; });
    it = it->second.empty() ? watchers_.erase(it) : std::next(it);
  }
}

std::vector<ActorGroupStatus> HeadActorGroups::List() const {
  std::vector<ActorGroupStatus> all;
  for (const std::string& group : groups_.groups()) {
    Result<ActorGroupStatus> status = groups_.StatusOf(group, UINT64_MAX);
    if (status.ok() && !IsRunActor(group)) all.push_back(std::move(*status));
  }
  return all;
}

}  // namespace troupe::daemons
