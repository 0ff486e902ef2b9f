#include "autoscaler/gce/gce_api.h"

#include <algorithm>
#include <utility>

#include "autoscaler/cloud_text.h"
#include "autoscaler/gce_spec.h"
#include "autoscaler/internal/read_json.h"

namespace troupe::gce {
namespace {

GceQuestion AboutBulk(const GceOffer& offer, const std::string& pool) {
  std::string types;
  for (const std::string& type : offer.machine_types) types += (types.empty() ? "" : ", ") + type;
  std::string zones;
  for (const std::string& zone : offer.zones) zones += (zones.empty() ? "" : ", ") + zone;
  return {
      "pool " + pool + ": bulkInsert of " + (types.empty() ? "a template" : types) + " in " + zones,
      "compute.instances.create"};
}

}  // namespace

std::vector<std::string> GceZones::Of(const std::string& region) {
  const std::lock_guard lock(mu_);
  const auto found = zones_.find(region);
  return found == zones_.end() ? std::vector<std::string>{} : found->second;
}

void GceZones::Are(const std::string& region, const std::vector<std::string>& zones) {
  const std::lock_guard lock(mu_);
  zones_[region] = zones;
}

Result<std::vector<Machine>> GceApi::Create(const MachineOrder& order) {
  const auto found = options_->offers.find(order.offer);
  if (found == options_->offers.end())
    return Error{ErrorCode::kNotFound, "there is no pool " + order.offer};
  const GceOffer& offer = found->second;
  const Result<std::vector<std::string>> zones = Zones(offer);
  if (!zones.ok()) return zones.error().WithContext("pool " + order.offer);
  Result<std::string> body = BulkBodyOf(*options_, offer, order, *zones);
  if (!body.ok()) return body.error();
  const GceQuestion question = AboutBulk(offer, order.offer);
  const GceAnswer answer = caller_.Call(
      {question, "POST", BulkPathOf(offer),
       FormBody({{"requestId", RequestUuidOf(order.request_id)}}), std::move(body).value()},
      caller_.Until());
  if (!answer.ok() && !answer.Is(GceFailure::kExists)) return answer.Tell(question);
  GceOperation operation;
  if (answer.ok()) {
    const Result<GceOperation> begun = ReadOperation(answer.body);
    if (!begun.ok()) return begun.error().WithContext(question.action);
    const Result<GceOperation> done = Wait(*begun, question);
    if (!done.ok()) return done.error();
    operation = *done;
  }
  return Find(order, offer, operation);
}

// All zones of its region, where it has several.
Result<std::vector<std::string>> GceApi::Zones(const GceOffer& offer) {
  if (offer.zones.size() < 2) return std::vector<std::string>{};
  const std::string region = GceRegionOf(offer.zones.front());
  std::vector<std::string> zones = zones_->Of(region);
  if (!zones.empty()) return zones;
  const GceQuestion question{"region " + region, "compute.regions.get"};
  const GceAnswer answer = caller_.Call({question, "GET", "regions/" + region}, caller_.Until());
  if (!answer.ok()) return answer.Tell(question);
  zones = ZonesIn(answer.body);
  if (zones.empty()) return Error{ErrorCode::kCorrupt, question.action + " has no zones"};
  zones_->Are(region, zones);
  return zones;
}

// Google answers when it is done, or after a while.
Result<GceOperation> GceApi::Wait(GceOperation operation, const GceQuestion& question) {
  const Time until = caller_.Now() + kGceOperationLimit;
  while (!operation.done) {
    if (caller_.Now() >= until)
      return Error{ErrorCode::kDeadlineExceeded,
                   question.action + ": its operation has not ended yet"};
    const Time asked = caller_.Now();
    const GceAnswer answer = caller_.Call({{question.action, "compute.zoneOperations.get"},
                                           "POST",
                                           operation.path + "/wait",
                                           "",
                                           "",
                                           kGceWaitMost},
                                          until);
    // What was asked for may be made all the same.
    if (!answer.ok()) {
      const Error why = answer.Tell(question);
      return why.code == ErrorCode::kCancelled ? why : Error{ErrorCode::kCorrupt, why.message};
    }
    const Result<GceOperation> now = ReadOperation(answer.body);
    if (!now.ok()) return now.error().WithContext(question.action);
    operation = *now;
    if (operation.done || caller_.Now() >= asked + kGceWaitMin) continue;
    if (!seams_.pause(kGceWaitMin)) return Error{ErrorCode::kCancelled, "cancelled"};
  }
  return operation;
}

// Which of its names were made, and where: one in the only place that has made some, else each
// where a list has it.
Result<std::vector<Machine>> GceApi::Find(const MachineOrder& order, const GceOffer& offer,
                                          const GceOperation& operation) {
  std::set<std::string> zones;
  int64_t count = 0;
  for (const auto& [zone, made] : operation.made) {
    if (made > 0) zones.insert(zone);
    count += std::max<int64_t>(made, 0);
  }
  if (count == 0 && !operation.error.code.empty())
    return TellGceError(operation.error, AboutBulk(offer, order.offer));
  if (offer.zones.size() == 1 && operation.error.code.empty()) zones = {offer.zones.front()};
  std::vector<Machine> machines;
  const bool all = zones.size() == 1 && (count == 0 || count >= order.count);
  for (int i = 0; all && i < order.count; ++i) {
    Machine machine;
    machine.id = MachineIdOf(*zones.begin(), InstanceNameOf(order, i));
    machine.offer = order.offer;
    machine.request_id = order.request_id;
    machine.state = "pending";
    machine.tags = order.tags;
    machines.push_back(std::move(machine));
  }
  if (all) return machines;
  const Result<GceListed> listed = List();
  if (!listed.ok()) return Error{ErrorCode::kCorrupt, listed.error().message};
  for (const ListedMachine& one : listed->machines) {
    if (one.machine.request_id == order.request_id) machines.push_back(one.machine);
  }
  if (machines.empty())
    return Error{ErrorCode::kCorrupt,
                 "what was made for pool " + order.offer + " is not listed yet"};
  return machines;
}

Result<GceListed> GceApi::List() {
  const GceQuestion question{"list of instances", "compute.instances.list"};
  const Time until = caller_.Until();
  GceListed all;
  std::string next;
  for (size_t page = 0; page < kGcePagesMax; ++page) {
    std::vector<std::pair<std::string, std::string>> query = {
        {"filter", std::string("labels.") + kClusterTag + "=" + GceLabelOf(options_->cluster)},
        {"maxResults", "500"},
        {"returnPartialSuccess", "true"}};
    if (!next.empty()) query.emplace_back("pageToken", next);
    const GceAnswer answer =
        caller_.Call({question, "GET", "aggregated/instances", FormBody(query)}, until);
    if (!answer.ok()) return answer.Tell(question);
    GcePage some = ReadPage(answer.body);
    std::ranges::move(some.machines, std::back_inserter(all.machines));
    all.unreachable.merge(some.unreachable);
    all.stopped.merge(some.stopped);
    if (some.next.empty()) return all;
    if (some.next == next) break;
    next = some.next;
  }
  return Error{ErrorCode::kCorrupt, "list of instances: its pages do not end"};
}

GceEnd GceApi::Terminate(const std::string& id) {
  GceEnd end;
  const auto parts = PartsOf(id);
  if (!parts) {  // Nobody can have made it.
    end.gone = true;
    return end;
  }
  const GceQuestion question{"delete of " + id, "compute.instances.delete"};
  const GceAnswer answer =
      caller_.Call({question, "DELETE", "zones/" + parts->first + "/instances/" + parts->second},
                   caller_.Until());
  end.gone = answer.Is(GceFailure::kMissing);
  if (!answer.ok() && !end.gone) end.status = answer.Tell(question);
  return end;
}

std::string GceApi::ReasonOf(const std::string& id) {
  const auto parts = PartsOf(id);
  if (!parts) return "";
  const std::string filter =
      "targetLink eq .*/zones/" + parts->first + "/instances/" + parts->second;
  const GceAnswer answer = caller_.Call({{"list of operations", "compute.zoneOperations.list"},
                                         "GET",
                                         "zones/" + parts->first + "/operations",
                                         FormBody({{"filter", filter}})},
                                        caller_.Now() + kGceWordsLimit);
  return answer.ok() ? ReasonIn(answer.body) : "";
}

std::string GceApi::Printed(const std::string& id) {
  const auto parts = PartsOf(id);
  if (!parts) return "";
  const GceAnswer answer =
      caller_.Call({{"serial port", "compute.instances.getSerialPortOutput"},
                    "GET",
                    "zones/" + parts->first + "/instances/" + parts->second + "/serialPort"},
                   caller_.Now() + kGceWordsLimit);
  if (!answer.ok()) return "";
  return LastOf(TextAt(ParseJson(answer.body), "contents"), kGceWordsMax);
}

}  // namespace troupe::gce
