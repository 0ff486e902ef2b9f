#include "daemons/protocol/run_events.h"

#include <nlohmann/json.hpp>

#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using Json = nlohmann::json;

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
              {"samples_returned", s.samples_returned},
              {"samples", s.samples},
              {"samples_per_epoch", s.samples_per_epoch}};
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

namespace {

// Null if the note is of another kind, or no object.
Json ObjectOf(const WorkerNote& note, NoteKind kind) {
  if (note.kind != kind) return Json();
  Json json = Json::parse(note.payload, nullptr, false);
  return json.is_object() ? json : Json();
}

uint64_t CountIn(const Json& json, const char* name) {
  const auto it = json.find(name);
  return it != json.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

}  // namespace

std::optional<Recovered> ReadRecovered(const WorkerNote& note) {
  const Json json = ObjectOf(note, NoteKind::kRecovered);
  if (!json.is_object()) return std::nullopt;
  Recovered recovered{CountIn(json, "steps_replayed"), CountIn(json, "steps_recomputed"),
                      CountIn(json, "samples_returned"), ""};
  if (const auto it = json.find("message"); it != json.end() && it->is_string()) {
    recovered.message = it->get<std::string>();
  }
  return recovered;
}

std::optional<Progress> ReadProgress(const WorkerNote& note) {
  const Json json = ObjectOf(note, NoteKind::kProgress);
  if (!json.is_object()) return std::nullopt;
  return Progress{CountIn(json, "samples"), CountIn(json, "samples_per_epoch")};
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

}  // namespace troupe::daemons
