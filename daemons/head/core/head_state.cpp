// What HeadCore tells of the cluster as a whole: to drivers, to the command line, to an
// autoscaler; and the order to take it all down.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemons/head/core/head_core.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using Json = nlohmann::json;

constexpr size_t kListMax = 10'000;          // Of actors, or of waiting leases, in one answer.
constexpr Duration kDownLimit = seconds(3);  // For the nodes to go,
constexpr Duration kDownBeat = milliseconds(200);   // which are told so often.
constexpr Duration kDownGrace = milliseconds(100);  // For the last words to leave.

// Texts of users may hold any bytes.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Devices(const std::vector<DeviceShare>& devices) {
  Json list = Json::array();
  for (const DeviceShare& device : devices)
    list.push_back({{"device", device.index}, {"share", device.share}});
  return list;
}

Json ActorJson(const actors::PlacedActor& actor, Time now) {
  const actors::ActorLife& life = actor.life;
  return {{"id", actor.spec.actor},
          {"name", actor.spec.name},
          {"type", actor.spec.type},
          {"state", actors::ActorStateName(life.state)},
          {"incarnation", life.incarnation},
          {"restarts", life.restarts},
          {"max_restarts", actor.spec.max_restarts},
          {"node", life.node},
          {"process", life.process},
          {"owner", actor.spec.owner},
          {"detached", actor.spec.detached},
          {"resources", actor.spec.wish.resources},
          {"since_s", ToSeconds(now - actor.since)},
          {"reason", life.reason.empty() ? "" : life.reason.front().message}};
}

// Null: there is none. `left`: until the node has drained, or may have to.
Json NoticeJson(const NodeNotice& notice, const NodeRecord& node, Duration left) {
  if (!notice || !node.up()) return nullptr;
  Json json{{"kind", notice.kind}, {"source", notice.source}, {"reason", notice.reason}};
  if (notice.left_ms != NodeNotice::kNoDeadline)
    json["left_s"] = ToSeconds(std::max(left, Duration::zero()));
  return json;
}

Json GroupJson(const sched::GroupStatus& group) {
  Json bundles = Json::array();
  for (const sched::BundleStatus& bundle : group.bundles) {
    bundles.push_back({{"number", bundle.place.number},
                       {"node", bundle.place.node},
                       {"devices", Devices(bundle.place.devices)},
                       {"resources", bundle.total.ToMap()},
                       {"used", bundle.used.ToMap()},
                       {"leases", bundle.leases}});
  }
  return {{"id", group.id},
          {"state", sched::GroupStateName(group.state)},
          {"priority", group.priority},
          {"reason", group.reason},
          {"bundles", bundles}};
}

Json CollectiveJson(const actors::CollectiveStatus& group) {
  Json seats = Json::array();
  for (const actors::CollectiveStatus::Seat& seat : group.seats)
    seats.push_back({{"actor", seat.actor}, {"number", seat.number}, {"state", seat.state}});
  return {{"name", group.spec.name},   {"elastic", group.spec.elastic},
          {"size", group.spec.size},   {"min_size", group.spec.min_size},
          {"owner", group.spec.owner}, {"phase", group.phase},
          {"epoch", group.epoch},      {"reason", group.reason},
          {"members", seats}};
}

Json ActorGroupJson(const ActorGroupStatus& group) {
  Json members = Json::array();
  for (const ActorGroupStatus::Member& m : group.members) {
    members.push_back({{"number", m.number},
                       {"actor", m.actor},
                       {"incarnation", m.incarnation},
                       {"state", GroupMemberStateName(m.state)},
                       {"reason", m.reason}});
  }
  return {{"id", group.id},       {"name", group.name},
          {"type", group.type},   {"min_size", group.min_size},
          {"size", group.size},   {"max_size", group.max_size},
          {"ended", group.ended}, {"reason", group.reason},
          {"members", members}};
}

}  // namespace

void HeadCore::OnQuery(const std::string& from, const Query& query) {
  if (query.verb == QueryVerb::kRun) {
    const auto it = runs_.find(query.about);
    if (it == runs_.end()) return Reply(from, query.request, NoRun(query.about));
    return Reply(from, query.request, Status::Ok(), StatusJson(StatusOf(it->second)));
  }
  if (query.verb == QueryVerb::kPing) {
    if (offered_.empty() && options_.embedded) {
      return Reply(from, query.request,
                   Error{ErrorCode::kUnavailable, "the node has not joined yet"});
    }
    return Reply(from, query.request, Status::Ok());
  }
  if (query.verb == QueryVerb::kState) return Reply(from, query.request, Status::Ok(), StateJson());
  if (query.verb == QueryVerb::kLog) return OnLogQuery(from, query);
  if (query.verb == QueryVerb::kDown) {
    Reply(from, query.request, Status::Ok());
    return TakeDown();
  }
  std::map<std::string, ResourceSet> used;
  for (const sched::NodeStatus& node : scheduler_.Nodes()) used[node.id] = node.used;
  std::vector<NodeStatus> nodes;
  for (const auto& [id, record] : nodes_.nodes()) {
    NodeStatus& node = nodes.emplace_back();
    node = {id, record.host, 0, record.up(), record.total, used[id]};
    node.draining = record.up() && record.draining;
    node.reason = record.reason;
    node.drain_left =
        record.drain_deadline == Time::Never() ? Duration::max() : record.drain_deadline - Now();
    if (const auto link = node_links_.find(id); link != node_links_.end() && record.up()) {
      node.notice = link->second.notice;
      node.warning = link->second.warning;
    }
  }
  std::vector<RunStatus> runs;
  for (const auto& [name, run] : runs_) runs.push_back(StatusOf(run));
  Reply(from, query.request, Status::Ok(), ClusterJson(nodes, runs));
}

void HeadCore::OnAdmit(const std::string& from, const AdmitGuest& guest) {
  if (const Status admitted = join_tokens_.Admit(guest); !admitted.ok())
    return Reply(from, guest.request, admitted);
  ReplyWhenKept(from, guest.request, JoinPlaceJson({options_.head_key, options_.join_at}));
}

void HeadCore::OnLogQuery(const std::string& from, const Query& query) {
  const auto refuse = [&](const std::string& why) {
    Reply(from, query.request, Error{ErrorCode::kNotFound, why});
  };
  if (!query.node.empty())
    return logs_.OnQuery(from, query.request, query.node, query.about, query.lines);
  const actors::PlacedActor* actor = actors_.directory().Find(query.about);
  if (actor == nullptr) actor = actors_.directory().Named(query.about);
  // One that is dead has left its name; the last of those that had it is meant.
  for (const auto& [id, dead] : actors_.directory().actors()) {
    const bool later = actor == nullptr || (actor->dead() && actor->since < dead.since);
    if (!query.about.empty() && dead.spec.name == query.about && later) actor = &dead;
  }
  if (actor == nullptr) return refuse("no actor " + query.about + "; `troupe actors` lists them");
  const actors::ActorLife& life = actor->life;
  if (life.process.empty()) {
    return refuse(actor->spec.actor + " has no process now: it is " +
                  actors::ActorStateName(life.state));
  }
  logs_.OnQuery(from, query.request, life.node, "worker-" + life.process, query.lines);
}

std::string HeadCore::StateJson() {
  Json state{{"nodes", Json::array()},
             {"actors", Json::array()},
             {"groups", Json::array()},
             {"placement_groups", Json::array()},
             {"processes", Json::array()},
             {"waiting", Json::array()},
             {"collective_groups", Json::array()},
             {"actor_groups", Json::array()}};
  std::map<std::string, sched::NodeStatus> offered;
  for (sched::NodeStatus& node : scheduler_.Nodes()) offered[node.id] = std::move(node);
  for (const auto& [id, record] : nodes_.nodes()) {
    const sched::NodeStatus& has = offered[id];
    const auto known = node_links_.find(id);
    const Node link = known == node_links_.end() ? Node{} : known->second;
    state["nodes"].push_back(
        {{"id", id},
         {"host", record.host},
         {"state", record.draining && record.up() ? "draining" : NodeStateName(record.state)},
         {"reason", record.reason},
         {"notice", NoticeJson(link.notice, record, record.drain_deadline - Now())},
         {"warning", NoticeJson(link.warning, record, link.warning_at - Now())},
         {"resources", record.total.ToMap()},
         {"used", has.used.ToMap()},
         {"devices_free", has.devices_free},
         {"labels", record.labels},
         {"leases", has.leases}});
  }
  std::vector<const actors::PlacedActor*> actors;
  for (const auto& [id, actor] : actors_.directory().actors()) actors.push_back(&actor);
  std::ranges::sort(actors, {}, [](const actors::PlacedActor* a) { return a->spec.actor; });
  state["actors_total"] = actors.size();
  if (actors.size() > kListMax) actors.resize(kListMax);
  for (const actors::PlacedActor* actor : actors) {
    Json json = ActorJson(*actor, Now());
    const HeadProcess* process = processes_.Find(actor->life.process);
    json["pid"] = process == nullptr ? 0 : process->pid;
    state["actors"].push_back(std::move(json));
  }
  for (const auto& [name, run] : runs_)
    state["groups"].push_back(Json::parse(troupe::daemons::StatusJson(StatusOf(run))));
  for (const sched::GroupStatus& group : scheduler_.Groups())
    state["placement_groups"].push_back(GroupJson(group));
  for (const actors::CollectiveStatus& group : collective_groups_.List())
    state["collective_groups"].push_back(CollectiveJson(group));
  for (const ActorGroupStatus& group : actor_groups_.List())
    state["actor_groups"].push_back(ActorGroupJson(group));
  for (const sched::LeaseStatus& lease : scheduler_.Leases()) {
    if (lease.state != sched::LeaseState::kPending || state["waiting"].size() >= kListMax) continue;
    state["waiting"].push_back({{"id", lease.id},
                                {"resources", lease.resources.ToMap()},
                                {"priority", lease.priority},
                                {"reason", lease.reason},
                                {"impossible", lease.impossible}});
  }
  for (const auto& [name, process] : usage_.processes()) {
    if (state["processes"].size() >= kListMax) break;
    state["processes"].push_back({{"process", name},
                                  {"what", WhatIs(name)},
                                  {"node", process.node},
                                  {"pid", process.pid},
                                  {"cores", process.cores},
                                  {"rss_bytes", process.rss_bytes}});
  }
  return Dump(state);
}

// For people: "actor Counter 1f3a", "run walk w0#1".
std::string HeadCore::WhatIs(const std::string& name) {
  const HeadProcess* process = processes_.Find(name);
  if (process == nullptr) return "?";
  if (const auto [run, worker] = Owner(name); worker != nullptr)
    return "run " + run->spec.name + " " + worker->member().ToString();
  const actors::PlacedActor* actor = actors_.ActorOf(*process);
  if (actor == nullptr) return "?";
  return "actor " + actor->spec.type + " " +
         (actor->spec.name.empty() ? actor->spec.actor : actor->spec.name);
}

// Nodes end their workers and themselves; so do we, when all have, or have been told for long.
void HeadCore::TakeDown() {
  if (std::exchange(going_down_, true)) return;
  queue_.Put(step::GoingDown{});
  queue_.Note("the cluster is taken down");
  PressDown(Now() + kDownLimit);
}

void HeadCore::PressDown(Time until) {
  const std::string leave = wire::Encode(kFrameNodeLeave, NodeLeave{"the cluster is taken down"});
  bool any = false;
  for (const auto& [id, record] : nodes_.nodes()) {
    if (!record.up()) continue;
    any = true;
    SendToNode(id, leave);
  }
  const bool over = !any || Now() >= until;
  if (over) return queue_.PutAt(Now() + kDownGrace, step::Down{});
  queue_.PutAt(Now() + kDownBeat, step::PressDown{until});
}

}  // namespace troupe::daemons
