// Adapter of nlohmann::json: the only file that includes it.
#include "daemons/protocol/run_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using Json = nlohmann::json;

constexpr double kDrainMost_s = 1e8;  // Beyond, it is no deadline.

Json Base(const char* kind, const std::string& run, Time at) {
  return Json{{"kind", kind}, {"run", run}, {"time_s", static_cast<double>(at.ns) / 1e9}};
}

// Output of programs is bytes; JSON is UTF-8. Bytes that are not valid are replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json WorkerJson(const WorkerStatus& w) {
  return Json{{"id", w.id},     {"rank", w.rank},   {"pid", w.pid},         {"host", w.host},
              {"node", w.node}, {"state", w.state}, {"version", w.version}, {"process", w.process}};
}

void AddWorker(Json& json, const WorkerStatus& w) {
  json["worker"] = w.id;
  json["rank"] = w.rank;
  json["host"] = w.host;
  json["pid"] = w.pid;
}

Json RunJson(const RunStatus& s) {
  Json workers = Json::array();
  for (const WorkerStatus& w : s.workers) workers.push_back(WorkerJson(w));
  return Json{{"run", s.id},
              {"name", s.name},
              {"state", s.state},
              {"reason", s.reason},
              {"epoch", s.epoch},
              {"target", s.target},
              {"min_workers", s.min_workers},
              {"max_workers", s.max_workers},
              {"workers", workers},
              {"detached", s.detached},
              {"attended", s.attended},
              {"age_s", s.age_s},
              {"epoch_reason", s.epoch_reason},
              {"stood_s", s.stood_s},
              {"redone_s", s.redone_s},
              {"steps_replayed", s.steps_replayed},
              {"steps_recomputed", s.steps_recomputed},
              {"samples_returned", s.samples_returned}};
}

}  // namespace

RunEvent WorkerEvent(const std::string& run, Time at, const WorkerStatus& worker,
                     const std::string& state, const std::string& detail,
                     const std::vector<std::string>& last_lines) {
  Json json = Base("worker", run, at);
  AddWorker(json, worker);
  json["state"] = state;
  json["detail"] = detail;
  if (!last_lines.empty()) json["last_lines"] = last_lines;
  if (worker.address.endpoint.empty()) return {"worker", Dump(json), ""};
  return {"worker", Dump(json), wire::Encode(kFrameWorkerHello, worker.address)};
}

RunEvent EpochEvent(const std::string& run, Time at, const groups::View& view, int old_size,
                    Duration pause, bool planned,
                    const std::map<std::string, WorkerStatus>& workers) {
  Json json = Base("epoch", run, at);
  json["epoch"] = view.epoch;
  json["reason"] = view.reason;
  json["old_size"] = old_size;
  json["size"] = view.members.size();
  json["planned"] = planned;
  json["pause_ms"] = ToMilliseconds(pause);
  Json members = Json::array();
  int rank = 0;
  for (const groups::ViewMember& m : view.members) {
    const auto it = workers.find(m.id.ToString());
    members.push_back({{"id", m.id.ToString()},
                       {"rank", rank++},
                       {"host", m.host},
                       {"pid", it == workers.end() ? 0 : it->second.pid},
                       {"version", m.version},
                       {"has_state", m.has_state}});
  }
  json["members"] = members;
  return {"epoch", Dump(json), ""};
}

std::optional<uint64_t> EpochOf(const RunEvent& event) {
  if (event.kind != "epoch") return std::nullopt;
  const Json json = Json::parse(event.json, nullptr, false);
  if (!json.is_object() || !json.contains("epoch") || !json["epoch"].is_number_unsigned())
    return std::nullopt;
  return json["epoch"].get<uint64_t>();
}

std::optional<std::string> ResultOf(const RunEvent& event) {
  if (event.kind != "result") return std::nullopt;
  const Json json = Json::parse(event.json, nullptr, false);
  if (!json.is_object() || !json.contains("worker") || !json["worker"].is_string())
    return std::nullopt;
  return json["worker"].get<std::string>();
}

RunEvent LogEvent(const std::string& run, Time at, const WorkerStatus& worker,
                  const WorkerOutput& output) {
  Json json = Base("log", run, at);
  AddWorker(json, worker);
  json["stream"] = output.is_stderr ? "stderr" : "stdout";
  Json& lines = json["lines"] = Json::array();
  if (output.dropped > 0) {
    std::string told = "[" + std::to_string(output.dropped) + " lines dropped: ";
    told += "printed faster than they could be sent";
    if (!output.file.empty()) told += "; look in " + output.file + " on " + worker.host;
    lines.push_back(told + "]");
  }
  for (const std::string& line : output.lines) lines.push_back(line);
  return {"log", Dump(json), ""};
}

RunEvent DroppedEvent(const std::string& run, Time at, uint64_t lines) {
  Json json = Base("log", run, at);
  AddWorker(json, WorkerStatus{});
  json["stream"] = "stderr";
  json["lines"] = {"[" + std::to_string(lines) + " lines dropped: this driver did not take them]"};
  return {"log", Dump(json), ""};
}

std::optional<Recovered> ReadRecovered(const WorkerNote& note) {
  if (note.kind != NoteKind::kRecovered) return std::nullopt;
  const Json json = Json::parse(note.payload, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto count = [&](const char* name) -> uint64_t {
    const auto it = json.find(name);
    return it != json.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
  };
  Recovered recovered{count("steps_replayed"), count("steps_recomputed"), count("samples_returned"),
                      ""};
  if (const auto it = json.find("message"); it != json.end() && it->is_string()) {
    recovered.message = it->get<std::string>();
  }
  return recovered;
}

RunEvent NoteEvent(const std::string& run, Time at, const WorkerStatus& worker,
                   const WorkerNote& note) {
  if (const std::optional<Recovered> recovered = ReadRecovered(note)) {
    Json json = Base("recovered", run, at);
    AddWorker(json, worker);
    json["steps_replayed"] = recovered->steps_replayed;
    json["steps_recomputed"] = recovered->steps_recomputed;
    json["samples_returned"] = recovered->samples_returned;
    json["message"] = recovered->message;
    return {"recovered", Dump(json), ""};
  }
  const bool told = note.kind == NoteKind::kWarning || note.kind == NoteKind::kResumed;
  const char* const kind = note.kind == NoteKind::kWarning   ? "warning"
                           : note.kind == NoteKind::kResumed ? "resumed"
                           : note.kind == NoteKind::kState   ? "state"
                                                             : "report";
  Json json = Base(kind, run, at);
  AddWorker(json, worker);
  json["epoch"] = note.epoch;
  if (note.kind == NoteKind::kState) json["bytes"] = note.bytes;
  if (told) json["message"] = note.payload;
  if (told) return {kind, Dump(json), ""};
  return {json["kind"], Dump(json), note.payload};
}

RunEvent ResultEvent(const std::string& run, Time at, const WorkerStatus& worker, int rank,
                     const std::string& payload) {
  Json json = Base("result", run, at);
  AddWorker(json, worker);
  json["rank"] = rank;
  return {"result", Dump(json), payload};
}

RunEvent ParkedEvent(const std::string& run, Time at, const std::string& reason) {
  Json json = Base("parked", run, at);
  json["reason"] = reason;
  return {"parked", Dump(json), ""};
}

RunEvent StalledEvent(const std::string& run, Time at, const groups::GroupStalled& stalled,
                      const std::map<std::string, WorkerStatus>& workers) {
  Json json = Base("stalled", run, at);
  json["epoch"] = stalled.view.epoch;
  json["operation"] = stalled.operation;
  json["seconds"] = ToSeconds(stalled.lasted);
  json["removed"] = stalled.removed;
  json["message"] = stalled.reason;
  json["waiting"] = stalled.waiting;
  Json missing = Json::array();
  for (const int rank : stalled.missing) {
    const groups::ViewMember& m = stalled.view.members[static_cast<size_t>(rank)];
    const auto it = workers.find(m.id.ToString());
    missing.push_back({{"id", m.id.ToString()},
                       {"rank", rank},
                       {"host", m.host},
                       {"pid", it == workers.end() ? 0 : it->second.pid}});
  }
  json["missing"] = missing;
  return {"stalled", Dump(json), ""};
}

RunEvent UnreachableEvent(const std::string& run, Time at, const groups::GroupUnreachable& left) {
  Json json = Base("unreachable", run, at);
  json["member"] = left.id.ToString();
  Json peers = Json::array();
  for (const groups::MemberId& id : left.peers) peers.push_back(id.ToString());
  json["peers"] = peers;
  json["retry_s"] = ToSeconds(left.retry_in);
  json["message"] = left.reason;
  return {"unreachable", Dump(json), ""};
}

RunEvent DoneEvent(const std::string& run, Time at, const std::string& state,
                   const std::string& reason, const WorkerStatus& worker,
                   const std::string& payload) {
  Json json = Base("done", run, at);
  AddWorker(json, worker);
  json["state"] = state;
  json["reason"] = reason;
  return {"done", Dump(json), payload};
}

std::string StatusJson(const RunStatus& status) { return Dump(RunJson(status)); }

std::string ClusterJson(const std::vector<NodeStatus>& nodes, const std::vector<RunStatus>& runs) {
  Json json{{"nodes", Json::array()}, {"runs", Json::array()}};
  for (const NodeStatus& n : nodes) {
    json["nodes"].push_back({{"id", n.id},
                             {"host", n.host},
                             {"pid", n.pid},
                             {"alive", n.alive},
                             {"resources", n.total.ToMap()},
                             {"used", n.used.ToMap()},
                             {"draining", n.draining},
                             {"reason", n.reason},
                             {"drain_left_s", ToSeconds(n.drain_left)},
                             {"notice", {n.notice.source, n.notice.kind}},
                             {"warning", {n.warning.source, n.warning.kind, n.warning.reason}}});
  }
  for (const RunStatus& s : runs) json["runs"].push_back(RunJson(s));
  return Dump(json);
}

namespace {

void CountWorker(const std::map<std::string, ClusterState::Node*>& nodes, const Json& worker,
                 const std::string& phase) {
  const std::string how = worker.at("state");
  const bool over = phase == "succeeded" || phase == "failed" || phase == "cancelled" ||
                    how == "finished" || how == "drained" || how == "dead";
  if (over) return;
  const auto node = nodes.find(worker.value("node", ""));
  if (node == nodes.end()) return;
  ++node->second->workers;
  if (phase == "running" && worker.at("rank") >= 0) ++node->second->members;
}

}  // namespace

Result<ClusterState> ParseClusterState(const std::string& json) {
  try {
    const Json root = Json::parse(json);
    ClusterState state;
    for (const Json& node : root.at("nodes")) {
      bool idle = true;
      for (const auto& [name, amount] : node.at("used").items())
        idle = idle && amount.get<double>() <= 0;
      ClusterState::Node& known = state.nodes.emplace_back();
      known = {node.at("id"), node.at("alive"), idle, node.at("draining"), node.at("reason")};
      const double left_s = node.at("drain_left_s").get<double>();
      if (left_s < kDrainMost_s) known.drain_left = Duration(static_cast<int64_t>(left_s * 1e9));
      known.source = node.at("notice").at(0);
      known.kind = node.at("notice").at(1);
      known.warning_source = node.at("warning").at(0);
      known.warning_kind = node.at("warning").at(1);
      known.warning = node.at("warning").at(2);
    }
    std::map<std::string, ClusterState::Node*> by_id;
    for (ClusterState::Node& node : state.nodes) by_id[node.id] = &node;
    for (const Json& run : root.at("runs")) {
      const std::string phase = run.at("state");
      const auto members =
          std::ranges::count_if(run.at("workers"), [](const Json& w) { return w.at("rank") >= 0; });
      state.running =
          state.running || (phase == "running" && members >= run.at("target").get<int>());
      std::string reason = run.at("reason");
      if (reason.empty()) reason = run.value("epoch_reason", "");
      uint64_t steps = 0;
      for (const Json& worker : run.at("workers")) {
        steps = std::max(steps, worker.value("version", uint64_t{0}));
        CountWorker(by_id, worker, phase);
      }
      state.runs.push_back({run.at("name"), phase, std::move(reason), run.at("epoch"),
                            static_cast<int>(members), run.at("target"), run.at("run"), steps,
                            run.value("stood_s", 0.0), run.value("redone_s", 0.0)});
      if (phase != "succeeded" && phase != "failed" && phase != "cancelled")
        state.wanted_workers += run.at("target").get<int>();
    }
    return state;
  } catch (const Json::exception& error) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string("not a description of a cluster: ") + error.what()};
  }
}

}  // namespace troupe::daemons
