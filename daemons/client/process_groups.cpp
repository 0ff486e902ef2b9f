#include "daemons/client/process_groups.h"

#include <algorithm>
#include <utility>

#include "runtime/wire.h"

namespace troupe::daemons {

using groups::CollectiveGroup;

namespace {

constexpr Duration kExplainLimit = seconds(1);
constexpr Duration kRejoinLimit = seconds(30);

}  // namespace

struct ProcessGroups::Routes {
  mutable std::mutex mu;
  std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;
  std::map<std::string, Training> training;

  std::shared_ptr<CollectiveGroup> Find(const std::string& name) const {
    std::lock_guard lock(mu);
    const auto it = groups.find(name);
    return it == groups.end() ? nullptr : it->second;
  }
  Training FindTraining(const std::string& name) const {
    std::lock_guard lock(mu);
    const auto it = training.find(name);
    return it == training.end() ? Training{} : it->second;
  }
};

namespace {

groups::GroupAgent::SendReportFn ReportsOf(WorkerClient* worker, const std::string& name) {
  return [worker, full = actors::kCollectivePrefix + name](const groups::Report& report) {
    (void)worker->SendToHead(
        wire::Encode(kFrameGroupReport, GroupFrame{full, wire::Encode(kFrameGroupReport, report)}));
  };
}

}  // namespace

ProcessGroups::ProcessGroups(WorkerClient* worker, std::shared_ptr<actors::ActorSystem> system,
                             std::string actor, uint64_t incarnation)
    : worker_(worker),
      system_(std::move(system)),
      actor_(std::move(actor)),
      incarnation_(incarnation),
      routes_(std::make_shared<Routes>()) {
  worker_->SetGroups([routes = routes_](const GroupFrame& frame) {
    Result<groups::Command> command = wire::Decode<groups::Command>(kFrameGroupCommand, frame.body);
    if (!command.ok()) return;
    const std::string name = frame.group.substr(std::string_view(actors::kCollectivePrefix).size());
    if (const auto group = routes->Find(name); group) return group->OnCommand(*command);
    if (const auto trained = routes->FindTraining(name); trained.agent)
      trained.agent->OnCommand(*command);
  });
}

ProcessGroups::~ProcessGroups() { Stop(); }

namespace {

std::mutex here_mu;
std::weak_ptr<ProcessGroups>& HereSlot() {
  static std::weak_ptr<ProcessGroups> slot;
  return slot;
}

}  // namespace

std::shared_ptr<ProcessGroups> ProcessGroups::Here() {
  std::lock_guard lock(here_mu);
  return HereSlot().lock();
}

void ProcessGroups::SetHere(const std::shared_ptr<ProcessGroups>& groups) {
  std::lock_guard lock(here_mu);
  HereSlot() = groups;
}

void ProcessGroups::Stop() {
  worker_->SetGroups(nullptr);
  std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;
  std::map<std::string, Training> training;
  {
    std::lock_guard lock(routes_->mu);
    groups.swap(routes_->groups);
    training.swap(routes_->training);
  }
  for (auto& [name, group] : groups) group->Close();
  for (auto& [name, trained] : training) trained.agent->Stop();
}

std::shared_ptr<CollectiveGroup> ProcessGroups::Find(const std::string& name) const {
  return routes_->Find(name);
}

actors::CollectiveRequest ProcessGroups::About(actors::CollectiveVerb verb, const std::string& name,
                                               const Wanted& wanted) const {
  actors::CollectiveRequest request;
  request.verb = verb;
  request.spec.name = name;
  request.spec.size = wanted.size;
  request.spec.elastic = wanted.elastic;
  request.spec.min_size = wanted.min_size;
  request.actor = actor_;
  request.incarnation = incarnation_;
  request.rank = wanted.rank;
  return request;
}

Result<actors::CollectiveStatus> ProcessGroups::Ask(actors::CollectiveVerb verb,
                                                    const std::string& name, const Wanted& wanted,
                                                    Duration limit) const {
  return actors::AskCollective(system_, About(verb, name, wanted), limit);
}

Status ProcessGroups::CheckRoom() const {
  std::lock_guard lock(routes_->mu);
  if (routes_->groups.size() + routes_->training.size() < kProcessGroupsMax) return Status::Ok();
  return Error{
      ErrorCode::kResourceExhausted,
      "an actor is in at most " + std::to_string(kProcessGroupsMax) + " collective groups"};
}

Result<std::shared_ptr<CollectiveGroup>> ProcessGroups::Enter(const std::string& name,
                                                              const Wanted& wanted,
                                                              Duration limit) {
  std::lock_guard one(entering_);
  const auto before = Find(name);
  if (before && !before->told_over() && !before->put_aside()) return before;
  if (routes_->FindTraining(name).agent) {
    return Error{ErrorCode::kInvalidArgument,
                 "this actor trains in collective group \"" + name +
                     "\"; shut its training down first, or use another group"};
  }
  {
    std::lock_guard lock(routes_->mu);
    routes_->groups.erase(name);
  }
  if (Status s = CheckRoom(); !s.ok()) return s.error();
  const Result<actors::CollectiveStatus> joined =
      Ask(actors::CollectiveVerb::kJoin, name, wanted, limit);
  if (!joined.ok()) return joined.error();
  Result<std::unique_ptr<groups::Communicator>> communicator = worker_->MakeCommunicator();
  if (!communicator.ok()) return communicator.error();
  groups::CollectiveGroupOptions options;
  options.name = name;
  options.elastic = joined->spec.elastic;
  // Its callers need not learn that it was evicted; only what it has missed meanwhile.
  if (before && before->put_aside()) options.past = before->past();
  if (options.past.life != joined->life) options.past = {};
  options.past.life = joined->life;
  options.member.id = {actor_, joined->number};
  options.member.host = worker_->host();
  options.explain = [this, name] { return Missing(name); };
  auto group = std::make_shared<CollectiveGroup>(
      std::move(options), &worker_->loop(), std::move(*communicator), ReportsOf(worker_, name));
  std::lock_guard lock(routes_->mu);
  routes_->groups[name] = group;
  return group;
}

Result<ProcessGroups::Training> ProcessGroups::Train(const std::string& name, Duration limit) {
  std::lock_guard one(entering_);
  if (Training there = routes_->FindTraining(name); there.agent) return there;
  if (Find(name)) {
    return Error{ErrorCode::kInvalidArgument,
                 "this actor calls collectives of group \"" + name +
                     "\" one by one; leave it before training in it, or train in another"};
  }
  if (Status s = CheckRoom(); !s.ok()) return s.error();
  actors::CollectiveRequest join = About(actors::CollectiveVerb::kJoin, name, {});
  join.spec.elastic = join.spec.trains = true;
  const Result<actors::CollectiveStatus> joined = actors::AskCollective(system_, join, limit);
  if (!joined.ok()) return joined.error();
  Result<std::unique_ptr<groups::Communicator>> communicator = worker_->MakeCommunicator();
  if (!communicator.ok()) return communicator.error();
  groups::MemberOptions member;
  member.id = {actor_, joined->number};
  member.host = worker_->host();
  Training training;
  training.max_size = joined->spec.size;
  training.running =
      joined->epoch > 0 && std::ranges::any_of(joined->seats, [this](const auto& seat) {
        return seat.number != 0 && seat.actor != actor_;
      });
  training.agent = std::make_shared<groups::GroupAgent>(
      std::move(member), &worker_->loop(), std::move(*communicator), ReportsOf(worker_, name),
      [system = system_, join, actor = actor_]() -> Result<groups::MemberId> {
        const auto again = actors::AskCollective(system, join, kRejoinLimit);
        if (!again.ok()) return again.error();
        return groups::MemberId{actor, again->number};
      });
  std::lock_guard lock(routes_->mu);
  routes_->training[name] = training;
  return training;
}

Status ProcessGroups::Leave(const std::string& name, Duration limit) {
  std::lock_guard one(entering_);
  std::shared_ptr<CollectiveGroup> group;
  Training training;
  {
    std::lock_guard lock(routes_->mu);
    if (const auto it = routes_->groups.find(name); it != routes_->groups.end()) {
      group = std::move(it->second);
      routes_->groups.erase(it);
    } else if (const auto it = routes_->training.find(name); it != routes_->training.end()) {
      training = std::move(it->second);
      routes_->training.erase(it);
    }
  }
  if (!group && !training.agent) return Status::Ok();
  if (group) group->Close();
  if (training.agent) training.agent->Stop();
  const Result<actors::CollectiveStatus> left =
      Ask(actors::CollectiveVerb::kLeave, name, {}, limit);
  return left.ok() ? Status::Ok() : Status(left.error());
}

// For an error: whom the group waits for.
std::string ProcessGroups::Missing(const std::string& name) const {
  const Result<actors::CollectiveStatus> status =
      Ask(actors::CollectiveVerb::kStatus, name, {}, kExplainLimit);
  if (!status.ok()) return status.error().message;
  std::string missing;
  for (size_t i = 0; i < status->seats.size(); ++i) {
    const actors::CollectiveStatus::Seat& seat = status->seats[i];
    if (seat.number != 0) continue;
    missing += (missing.empty() ? "" : "; ") + std::string("rank ") + std::to_string(i) + ": " +
               (seat.actor.empty() ? "no actor has taken it"
                                   : "actor " + seat.actor + " is " + seat.state);
  }
  return missing.empty() ? status->phase + ": " + status->reason : missing;
}

}  // namespace troupe::daemons
