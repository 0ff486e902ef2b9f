#include "autoscaler/gce/gce_requests.h"

#include <algorithm>
#include <array>
#include <utility>

#include "autoscaler/cloud_text.h"
#include "autoscaler/gce/gce_jwt.h"
#include "autoscaler/gce_spec.h"
#include "autoscaler/internal/read_json.h"

namespace troupe::gce {
namespace {

constexpr const char* kRequestTag = "troupe-request";
constexpr const char* kOfferTag = "troupe-offer";
constexpr size_t kNameMax = 63;

// "us-central1-a" of ".../zones/us-central1-a", or of itself.
std::string LastStep(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A name becomes a path of the project.
std::string PathOf(const std::string& before, const std::string& name) {
  return name.find('/') == std::string::npos ? before + name : name;
}

LooseJson LabelsOf(const GceOptions& options, const MachineOrder& order) {
  LooseJson labels = LooseJson::object();
  for (const auto& [name, value] : options.labels) labels[name] = value;
  for (const auto& [name, value] : order.tags) labels[name] = GceLabelOf(value);
  labels[kRequestTag] = GceLabelOf(order.request_id);
  labels[kOfferTag] = GceLabelOf(order.offer);
  return labels;
}

LooseJson DiskOf(const GceOptions& options, const GceOffer& offer) {
  LooseJson start = LooseJson::object();
  const std::string image = offer.image.empty() ? options.image : offer.image;
  if (!image.empty()) start["sourceImage"] = PathOf("global/images/", image);
  if (options.disk_gb > 0) start["diskSizeGb"] = std::to_string(options.disk_gb);
  if (!options.disk_type.empty()) start["diskType"] = options.disk_type;
  return {{"boot", true}, {"autoDelete", true}, {"initializeParams", start}};
}

LooseJson NetworkOf(const GceOptions& options, const std::string& region) {
  LooseJson network = LooseJson::object();
  if (!options.network.empty()) network["network"] = PathOf("global/networks/", options.network);
  if (!options.subnetwork.empty())
    network["subnetwork"] = PathOf("regions/" + region + "/subnetworks/", options.subnetwork);
  if (options.network.empty() && options.subnetwork.empty())
    network["network"] = "global/networks/default";
  if (options.external_ip)
    network["accessConfigs"] = {{{"type", "ONE_TO_ONE_NAT"}, {"name", "External NAT"}}};
  return network;
}

LooseJson PropertiesOf(const GceOptions& options, const GceOffer& offer, const MachineOrder& order,
                       const std::string& script) {
  const bool templated = !options.instance_template.empty();
  LooseJson properties = {{"labels", LabelsOf(options, order)},
                          {"metadata",
                           {{"items",
                             {{{"key", "startup-script"}, {"value", script}},
                              {{"key", "shutdown-script"}, {"value", ShutdownScript()}}}}}}};
  if (offer.spot) {
    properties["scheduling"] = {{"provisioningModel", "SPOT"},
                                {"instanceTerminationAction", "DELETE"},
                                {"automaticRestart", false},
                                {"onHostMaintenance", "TERMINATE"}};
  } else if (!templated) {
    // A node that was restarted would find no place in its cluster.
    properties["scheduling"] = {{"provisioningModel", "STANDARD"}, {"automaticRestart", false}};
    if (offer.gpu) properties["scheduling"]["onHostMaintenance"] = "TERMINATE";
  }
  if (!offer.machine_types.empty()) properties["machineType"] = offer.machine_types.front();
  const bool image = !options.image.empty() || !offer.image.empty();
  if (!templated || image) properties["disks"] = LooseJson::array({DiskOf(options, offer)});
  if (!templated || !options.network.empty() || !options.subnetwork.empty())
    properties["networkInterfaces"] =
        LooseJson::array({NetworkOf(options, GceRegionOf(offer.zones.front()))});
  if (!options.service_account.empty())
    properties["serviceAccounts"] = {{{"email", options.service_account}, {"scopes", {kGceScope}}}};
  return properties;
}

std::string StateOf(const std::string& status) {
  if (status == "PROVISIONING" || status == "STAGING" || status == "PENDING") return "pending";
  return status == "RUNNING" || status == "REPAIRING" ? "running" : "stopping";
}

bool IsStopped(const std::string& status) {
  return status == "TERMINATED" || status == "STOPPED" || status == "SUSPENDED";
}

ListedMachine InstanceOf(const LooseJson& item) {
  ListedMachine listed;
  Machine& machine = listed.machine;
  const std::string zone = LastStep(TextAt(item, "zone"));
  machine.id = MachineIdOf(zone, TextAt(item, "name"));
  const std::string status = TextAt(item, "status");
  machine.state = StateOf(status);
  machine.detail = LastStep(TextAt(item, "machineType")) + " in " + zone;
  for (const auto& [name, value] : WordsAt(item, "labels")) {
    if (name == kRequestTag) {
      machine.request_id = TextOfGceLabel(value);
    } else if (name == kOfferTag) {
      machine.offer = TextOfGceLabel(value);
    } else {
      machine.tags[name] = name.starts_with("troupe-") ? TextOfGceLabel(value) : value;
    }
  }
  return listed;
}

}  // namespace

std::string RequestUuidOf(const std::string& text) {
  std::string digits = HexHash(text) + HexHash("b" + text);
  digits[12] = '4';
  digits[16] = '8';
  for (const size_t at : {20U, 16U, 12U, 8U}) digits.insert(at, "-");
  return digits;
}

std::string InstanceNameOf(const MachineOrder& order, int number) {
  std::string name;
  for (const char c : TagOf(order.tags, kNodeTag)) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool good = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    name += good ? lower : '-';
  }
  if (name.empty() || name.front() < 'a') name = "n" + name;
  const std::string end =
      "-" + HexHash(order.request_id) + (number == 0 ? "" : "-" + std::to_string(number));
  return name.substr(0, kNameMax - end.size()) + end;
}

std::string StartupScriptOf(const std::string& boot_script) {
  // Only Google's agent runs it from there: elsewhere, as in a test, nothing is switched off.
  return "#!/bin/sh\n(\n" + boot_script +
         ")\n"
         "case \"$0\" in */metadata-scripts*/*) shutdown -h now ;; esac\n";
}

// Google's agent runs it before anything else is ended, also when a Spot VM is taken back, and the
// machine waits for it.
std::string ShutdownScript() {
  return "#!/bin/sh\n"
         "pkill -TERM -x troupe-node\n"
         "left=" +
         std::to_string(static_cast<int>(ToSeconds(kGceDrains)) + 1) +
         "\n"
         "while [ $left -gt 0 ] && pgrep -x troupe-node > /dev/null; do\n"
         "  sleep 1\n"
         "  left=$((left - 1))\n"
         "done\n";
}

std::string BulkPathOf(const GceOffer& offer) {
  const std::string& first = offer.zones.front();
  return (offer.zones.size() == 1 ? "zones/" + first : "regions/" + GceRegionOf(first)) +
         "/instances/bulkInsert";
}

Result<std::string> BulkBodyOf(const GceOptions& options, const GceOffer& offer,
                               const MachineOrder& order, const std::vector<std::string>& all) {
  const std::string script = StartupScriptOf(order.user_data);
  if (script.size() > kGceScriptMax)
    return Error{ErrorCode::kInvalidArgument,
                 "the boot script has " + std::to_string(script.size()) +
                     " bytes, Compute Engine takes 262144: shorten nodes.setup or training.env"};
  LooseJson names = LooseJson::object();
  for (int i = 0; i < order.count; ++i) names[InstanceNameOf(order, i)] = LooseJson::object();
  LooseJson body = {{"count", std::to_string(order.count)},
                    {"minCount", "1"},
                    {"perInstanceProperties", names},
                    {"instanceProperties", PropertiesOf(options, offer, order, script)}};
  if (!options.instance_template.empty())
    body["sourceInstanceTemplate"] = PathOf("global/instanceTemplates/", options.instance_template);
  if (offer.zones.size() > 1) {
    LooseJson& policy = body["locationPolicy"];
    policy["targetShape"] = options.target_shape.empty() ? "ANY" : options.target_shape;
    for (const std::string& zone : offer.zones)
      policy["locations"]["zones/" + zone] = {{"preference", "ALLOW"}};
    for (const std::string& zone : all) {
      if (std::ranges::find(offer.zones, zone) == offer.zones.end())
        policy["locations"]["zones/" + zone] = {{"preference", "DENY"}};
    }
  }
  if (offer.machine_types.size() > 1) {
    LooseJson& selections = body["instanceFlexibilityPolicy"]["instanceSelections"];
    int rank = 0;
    for (const std::string& type : offer.machine_types) {
      selections["choice-" + std::to_string(rank)] = {{"machineTypes", {type}}, {"rank", rank}};
      ++rank;
    }
    body["instanceProperties"].erase("machineType");
  }
  // What users say may be no UTF-8.
  return body.dump(-1, ' ', false, LooseJson::error_handler_t::replace);
}

std::vector<std::string> ZonesIn(const std::string& body) {
  std::vector<std::string> zones;
  const LooseJson json = ParseJson(body);
  for (const LooseJson& zone : ListAt(json, "zones")) {
    if (zone.is_string()) zones.push_back(LastStep(zone.get<std::string>()));
  }
  return zones;
}

Result<GceOperation> ReadOperation(const std::string& body) {
  const LooseJson json = ParseJson(body);
  GceOperation operation;
  const std::string name = TextAt(json, "name");
  if (name.empty() || name.find('/') != std::string::npos)
    return Error{ErrorCode::kCorrupt, "the answer is no operation"};
  const std::string zone = LastStep(TextAt(json, "zone"));
  const std::string region = LastStep(TextAt(json, "region"));
  operation.path = !zone.empty()     ? "zones/" + zone
                   : !region.empty() ? "regions/" + region
                                     : "global";
  operation.path += "/operations/" + name;
  operation.done = TextAt(json, "status") == "DONE";
  operation.error = ReadOperationError(body);
  const LooseJson& places =
      At(At(json, "instancesBulkInsertOperationMetadata"), "perLocationStatus");
  if (!places.is_object()) return operation;
  for (const auto& [place, told] : places.items())
    operation.made[LastStep(place)] =
        NumberAt(told, "createdVmCount") - NumberAt(told, "deletedVmCount");
  return operation;
}

GcePage ReadPage(const std::string& body) {
  GcePage page;
  const LooseJson json = ParseJson(body);
  page.next = TextAt(json, "nextPageToken");
  for (const LooseJson& place : ListAt(json, "unreachables")) {
    if (place.is_string()) page.unreachable.insert(LastStep(place.get<std::string>()));
  }
  const LooseJson& items = At(json, "items");
  if (!items.is_object()) return page;
  for (const auto& [place, told] : items.items()) {
    if (TextAt(At(told, "warning"), "code") == "UNREACHABLE")
      page.unreachable.insert(LastStep(place));
    for (const LooseJson& item : ListAt(told, "instances")) {
      ListedMachine listed = InstanceOf(item);
      if (!PartsOf(listed.machine.id)) continue;
      if (IsStopped(TextAt(item, "status"))) page.stopped.insert(listed.machine.id);
      page.machines.push_back(std::move(listed));
    }
  }
  return page;
}

std::string MachineIdOf(const std::string& zone, const std::string& name) {
  return zone + "/" + name;
}

std::optional<std::pair<std::string, std::string>> PartsOf(const std::string& id) {
  const size_t slash = id.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == id.size()) return std::nullopt;
  const bool plain = std::ranges::all_of(id, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '/';
  });
  if (!plain || id.find('/', slash + 1) != std::string::npos) return std::nullopt;
  return std::pair(id.substr(0, slash), id.substr(slash + 1));
}

std::string ReasonIn(const std::string& body) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kReasons = {
      {{"compute.instances.preempted", "preempted by Compute Engine"},
       {"compute.instances.hostError", "its host has failed"},
       {"compute.instances.terminateOnHostMaintenance", "ended for maintenance of its host"},
       {"compute.instances.guestTerminate", "it has switched itself off"},
       {"stop", "stopped by "},
       {"delete", "deleted by "}}};
  const LooseJson json = ParseJson(body);
  std::string reason;
  std::string latest;
  for (const LooseJson& item : ListAt(json, "items")) {
    const std::string type = TextAt(item, "operationType");
    const auto* known =
        std::ranges::find(kReasons, type, &std::pair<std::string_view, std::string_view>::first);
    const std::string at = TextAt(item, "insertTime");
    if (known == kReasons.end() || at < latest) continue;
    latest = at;
    reason = known->second;
    if (reason.ends_with(' ')) reason += Printable(TextAt(item, "user"), 80);
  }
  return reason;
}

}  // namespace troupe::gce
