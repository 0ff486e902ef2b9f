#include "autoscaler/exec_protocol.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace troupe {
namespace {

using Json = nlohmann::json;

// Why a reply is none, with the place; never leaves this file.
class BadReply : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

Json Parsed(std::string_view reply) {
  Json json = Json::parse(reply, nullptr, false);
  if (json.is_discarded()) throw BadReply("is not JSON");
  if (!json.is_object()) throw BadReply("is not an object");
  return json;
}

std::string Text(const Json& object, const std::string& key, const std::string& place,
                 bool required = false) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    if (required) throw BadReply("has no " + place + "." + key);
    return "";
  }
  if (!found->is_string()) throw BadReply("has a " + place + "." + key + " that is not a string");
  auto text = found->get<std::string>();
  if (required && text.empty()) throw BadReply("has an empty " + place + "." + key);
  if (text.size() > kExecIdBytesMax)
    throw BadReply("has a " + place + "." + key + " of over 256 bytes");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      throw BadReply("has a " + place + "." + key + " with control characters");
  }
  return text;
}

std::optional<double> Number(const Json& object, const std::string& key, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (!found->is_number() || !std::isfinite(found->get<double>()) || found->get<double>() < 0)
    throw BadReply("has a " + place + "." + key + " that is no number from 0 on");
  return found->get<double>();
}

const Json& List(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) throw BadReply("has no list \"" + key + "\"");
  if (found->size() > kExecNodesMax) throw BadReply("has more than 20000 " + key);
  for (const Json& item : *found) {
    if (!item.is_object()) throw BadReply("has something in \"" + key + "\" that is no object");
  }
  return *found;
}

Machine NodeOf(const Json& json, const std::string& place) {
  Machine node;
  node.id = Text(json, "id", place, true);
  node.offer = Text(json, "offer", place);
  node.request_id = Text(json, "request_id", place);
  node.state = Text(json, "state", place);
  node.detail = Text(json, "detail", place);
  node.preempted_in_s = Number(json, "preempted_in_s", place);
  if (const auto tags = json.find("tags"); tags != json.end() && !tags->is_null()) {
    if (!tags->is_object()) throw BadReply("has " + place + ".tags that are no object");
    for (const auto& [key, value] : tags->items()) node.tags[key] = Text(*tags, key, place);
  }
  const bool known = node.state.empty() || node.state == "pending" || node.state == "running" ||
                     node.state == "stopping";
  if (!known)
    throw BadReply("has a " + place +
                   ".state that is none of pending, running and stopping: " + node.state);
  return node;
}

template <class F>
auto Reading(F&& read) -> Result<decltype(read())> {
  try {
    return read();
  } catch (const BadReply& error) {
    return Error{ErrorCode::kCorrupt, std::string("its reply ") + error.what()};
  }
}

Json Base(std::string_view verb) { return {{"version", kExecProtocolVersion}, {"verb", verb}}; }

std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string ExecRequest(std::string_view verb) { return Dumped(Base(verb)); }

std::string ExecCreateRequest(const MachineOrder& create) {
  Json json = Base("create");
  json["request_id"] = create.request_id;
  json["offer"] = create.offer;
  json["count"] = create.count;
  json["user_data"] = create.user_data;
  json["tags"] = create.tags;
  return Dumped(json);
}

std::string ExecTerminateRequest(const std::vector<std::string>& ids) {
  Json json = Base("terminate");
  json["ids"] = ids;
  return Dumped(json);
}

Result<std::vector<Machine>> ParseExecNodes(std::string_view reply) {
  return Reading([&] {
    const Json json = Parsed(reply);
    std::vector<Machine> nodes;
    for (const Json& item : List(json, "nodes"))
      nodes.push_back(NodeOf(item, "nodes[" + std::to_string(nodes.size()) + "]"));
    return nodes;
  });
}

Result<std::vector<ExecOffer>> ParseExecOffers(std::string_view reply) {
  return Reading([&] {
    const Json json = Parsed(reply);
    std::vector<ExecOffer> offers;
    for (const Json& item : List(json, "offers")) {
      const std::string place = "offers[" + std::to_string(offers.size()) + "]";
      offers.push_back({Text(item, "name", place, true), Text(item, "market", place),
                        Text(item, "zone", place), Number(item, "price_per_hour", place)});
    }
    return offers;
  });
}

Result<std::map<std::string, double>> ParseExecPrices(std::string_view reply) {
  return Reading([&] {
    const Json json = Parsed(reply);
    const auto found = json.find("prices");
    if (found == json.end() || !found->is_object()) throw BadReply("has no object \"prices\"");
    std::map<std::string, double> prices;
    for (const auto& [offer, price] : found->items()) {
      const std::optional<double> number = Number(*found, offer, "prices");
      if (number) prices[offer] = *number;
    }
    return prices;
  });
}

Status ParseExecDone(std::string_view reply) {
  const auto read = Reading([&] {
    Parsed(reply);
    return true;
  });
  return read.ok() ? Status::Ok() : Status(read.error());
}

Status ExecStatus(std::string_view verb, int code, std::string_view log) {
  if (code == 0) return Status::Ok();
  while (!log.empty() && (log.back() == '\n' || log.back() == ' ')) log.remove_suffix(1);
  const std::string said = log.empty() ? "" : ": " + std::string(log);
  const std::string name(verb);
  switch (code) {
    case kExecNoCapacity:
      return Error{ErrorCode::kResourceExhausted, "no capacity" + said};
    case kExecThrottled:
      return Error{ErrorCode::kBackpressure, name + " was throttled" + said};
    case kExecBadConfig:
      return Error{ErrorCode::kInvalidArgument, name + " was refused for good" + said};
    default:
      return Error{ErrorCode::kUnavailable,
                   name + " ended with status " + std::to_string(code) + said};
  }
}

}  // namespace troupe
