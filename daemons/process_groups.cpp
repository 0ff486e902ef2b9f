#include "daemons/process_groups.h"

#include <utility>

#include "runtime/wire.h"

namespace troupe::daemons {

using groups::CollectiveGroup;

namespace {

constexpr Duration kExplainLimit = seconds(1);

}  // namespace

struct ProcessGroups::Routes {
  mutable std::mutex mu;
  std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;

  std::shared_ptr<CollectiveGroup> Find(const std::string& name) const {
    std::lock_guard lock(mu);
    const auto it = groups.find(name);
    return it == groups.end() ? nullptr : it->second;
  }
};

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
    if (const auto group = routes->Find(name); group) group->OnCommand(*command);
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
  {
    std::lock_guard lock(routes_->mu);
    groups.swap(routes_->groups);
  }
  for (auto& [name, group] : groups) group->Close();
}

std::shared_ptr<CollectiveGroup> ProcessGroups::Find(const std::string& name) const {
  return routes_->Find(name);
}

Result<actors::CollectiveStatus> ProcessGroups::Ask(const std::string& kind,
                                                    const std::string& name, const Wanted& wanted,
                                                    Duration limit) const {
  actors::CollectiveRequest request;
  request.kind = kind;
  request.spec.name = name;
  request.spec.size = wanted.size;
  request.spec.elastic = wanted.elastic;
  request.spec.min_size = wanted.min_size;
  request.actor = actor_;
  request.incarnation = incarnation_;
  request.rank = wanted.rank;
  return actors::AskCollective(system_, std::move(request), limit);
}

Result<std::shared_ptr<CollectiveGroup>> ProcessGroups::Enter(const std::string& name,
                                                              const Wanted& wanted,
                                                              Duration limit) {
  std::lock_guard one(entering_);
  const auto before = Find(name);
  if (before && !before->told_over() && !before->put_aside()) return before;
  {
    std::lock_guard lock(routes_->mu);
    routes_->groups.erase(name);
    if (routes_->groups.size() >= kProcessGroupsMax) {
      return Error{
          ErrorCode::kResourceExhausted,
          "an actor is in at most " + std::to_string(kProcessGroupsMax) + " collective groups"};
    }
  }
  const Result<actors::CollectiveStatus> joined = Ask("join", name, wanted, limit);
  if (!joined.ok()) return joined.error();
  Result<std::unique_ptr<groups::Communicator>> communicator = worker_->MakeCommunicator();
  if (!communicator.ok()) return communicator.error();
  groups::CollectiveGroupOptions options;
  options.name = name;
  options.elastic = joined->spec.elastic;
  // Its callers need not learn that it was put aside; only what it has missed meanwhile.
  if (before && before->put_aside()) options.past = before->past();
  if (options.past.life != joined->life) options.past = {};
  options.past.life = joined->life;
  options.member.id = {actor_, joined->number};
  options.member.host = worker_->host();
  options.explain = [this, name] { return Missing(name); };
  auto group = std::make_shared<CollectiveGroup>(
      std::move(options), &worker_->loop(), std::move(*communicator),
      [worker = worker_, full = actors::kCollectivePrefix + name](const groups::Report& report) {
        (void)worker->SendToHead(wire::Encode(
            kFrameGroupReport, GroupFrame{full, wire::Encode(kFrameGroupReport, report)}));
      });
  std::lock_guard lock(routes_->mu);
  routes_->groups[name] = group;
  return group;
}

Status ProcessGroups::Leave(const std::string& name, Duration limit) {
  std::lock_guard one(entering_);
  std::shared_ptr<CollectiveGroup> group;
  {
    std::lock_guard lock(routes_->mu);
    const auto it = routes_->groups.find(name);
    if (it == routes_->groups.end()) return Status::Ok();
    group = std::move(it->second);
    routes_->groups.erase(it);
  }
  group->Close();
  const Result<actors::CollectiveStatus> left = Ask("leave", name, {}, limit);
  return left.ok() ? Status::Ok() : Status(left.error());
}

// For an error: whom the group waits for.
std::string ProcessGroups::Missing(const std::string& name) const {
  const Result<actors::CollectiveStatus> status = Ask("status", name, {}, kExplainLimit);
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
