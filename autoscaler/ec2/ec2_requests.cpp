#include "autoscaler/ec2/ec2_requests.h"

#include <algorithm>
#include <utility>

#include "autoscaler/cloud_text.h"

namespace troupe::ec2 {
namespace {

constexpr const char* kVersion = "2016-11-15";
constexpr const char* kPageSize = "500";
constexpr size_t kClientTokenMax = 64;
constexpr size_t kTagValueMax = 256;

AwsParameters Begin(const char* action) { return {{"Action", action}, {"Version", kVersion}}; }

std::string At(const std::string& prefix, size_t number) {
  return prefix + "." + std::to_string(number);
}

// Letters, digits and dashes of it; a part and a hash if it is long, or has others.
std::string WordOf(const std::string& text, size_t most) {
  std::string word;
  for (const char c : text) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    word += plain ? c : '-';
  }
  if (word == text && word.size() <= most) return word;
  const std::string hash = "-" + HexHash(text);
  return word.substr(0, most - hash.size()) + hash;
}

std::map<std::string, std::string> TagsOf(const Ec2Options& options, const MachineOrder& order) {
  std::map<std::string, std::string> tags = options.tags;
  for (const auto& [name, value] : order.tags) tags[name] = value;
  tags["troupe-request"] = order.request_id;
  tags["troupe-pool"] = order.offer;
  const auto node = order.tags.find("troupe-node");
  if (node != order.tags.end()) tags.emplace("Name", options.cluster + "/" + node->second);
  return tags;
}

// "TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=..." below `prefix`.
void AddTags(AwsParameters& to, const std::string& prefix, size_t number, const char* resource,
             const std::map<std::string, std::string>& tags) {
  const std::string spec = At(prefix + "TagSpecification", number);
  to.emplace_back(spec + ".ResourceType", resource);
  size_t tag = 0;
  for (const auto& [name, value] : tags) {
    const std::string entry = At(spec + ".Tag", ++tag);
    to.emplace_back(entry + ".Key", name);
    to.emplace_back(entry + ".Value", value.substr(0, kTagValueMax));
  }
}

void AddIfGiven(AwsParameters& to, const std::string& name, const std::string& value) {
  if (!value.empty()) to.emplace_back(name, value);
}

// What a machine is like wherever it is made.
void AddMachine(AwsParameters& to, const std::string& prefix, const Ec2Options& options,
                const Ec2Offer& offer, const MachineOrder& order) {
  AddIfGiven(to, prefix + "ImageId", offer.image.empty() ? options.image : offer.image);
  AddIfGiven(to, prefix + "KeyName", options.key_name);
  size_t ids = 0;
  size_t names = 0;
  for (const std::string& group : options.security_groups) {
    const bool id = group.starts_with("sg-");
    to.emplace_back(
        id ? At(prefix + "SecurityGroupId", ++ids) : At(prefix + "SecurityGroup", ++names), group);
  }
  AddIfGiven(to,
             prefix + (options.instance_profile.starts_with("arn:") ? "IamInstanceProfile.Arn"
                                                                    : "IamInstanceProfile.Name"),
             options.instance_profile);
  to.emplace_back(prefix + "InstanceInitiatedShutdownBehavior", "terminate");
  to.emplace_back(prefix + "MetadataOptions.HttpTokens", "required");
  // So that containers on it hear of notices, too.
  to.emplace_back(prefix + "MetadataOptions.HttpPutResponseHopLimit", "2");
  to.emplace_back(prefix + "UserData", EncodeBase64(UserDataOf(order.user_data)));
  const auto tags = TagsOf(options, order);
  AddTags(to, prefix, 1, "instance", tags);
  AddTags(to, prefix, 2, "volume", tags);
}

void AddFilter(AwsParameters& to, const std::string& cluster, const std::string& next) {
  to.emplace_back("Filter.1.Name", std::string("tag:") + kClusterTag);
  to.emplace_back("Filter.1.Value.1", cluster);
  AddIfGiven(to, "NextToken", next);
}

std::string StateOf(const std::string& state) {
  return state == "pending" || state == "running" ? state : "stopping";
}

// "Server.SpotInstanceTermination: Spot instance termination": the code stands in the message, too.
std::string ReasonOf(const XmlElement& instance) {
  const XmlElement& reason = instance.Child("stateReason");
  const std::string& code = reason.TextOf("code");
  const std::string& message = reason.TextOf("message");
  const bool twice = !code.empty() && message.starts_with(code);
  return Printable(twice || code.empty() ? message
                   : message.empty()     ? code
                                         : code + ": " + message,
                   200);
}

Ec2Instance InstanceOf(const XmlElement& item) {
  Ec2Instance instance;
  Machine& machine = instance.machine;
  machine.id = Printable(item.TextOf("instanceId"), 64);
  const std::string& state = item.Child("instanceState").TextOf("name");
  machine.state = StateOf(state);
  instance.ended = state == "terminated";
  for (const XmlElement& tag : item.Child("tagSet").children)
    machine.tags[tag.TextOf("key")] = tag.TextOf("value");
  const auto take = [&](const char* name) {
    const auto found = machine.tags.find(name);
    return found == machine.tags.end() ? "" : found->second;
  };
  machine.request_id = take("troupe-request");
  machine.offer = take("troupe-pool");
  std::string detail = item.TextOf("instanceType");
  const std::string& zone = item.Child("placement").TextOf("availabilityZone");
  if (!zone.empty()) detail += " in " + zone;
  if (item.TextOf("instanceLifecycle") == "spot") detail += ", spot";
  if (const std::string& address = item.TextOf("privateIpAddress"); !address.empty())
    detail += ", " + address;
  if (machine.state == "stopping") machine.ended = ReasonOf(item);
  if (!machine.ended.empty()) detail += ", " + machine.ended;
  machine.detail = Printable(detail, 300);
  return instance;
}

}  // namespace

Result<std::vector<Ec2Override>> OverridesOf(const Ec2Options& options, const Ec2Offer& offer,
                                             const std::map<std::string, std::string>& zone_of) {
  std::vector<Ec2Override> places;
  for (const std::string& subnet : options.subnets) {
    const auto zone = zone_of.find(subnet);
    const bool wanted =
        offer.zones.empty() || (zone != zone_of.end() &&
                                std::ranges::find(offer.zones, zone->second) != offer.zones.end());
    if (wanted) places.push_back({"", subnet, ""});
  }
  if (!options.subnets.empty() && places.empty()) {
    std::string zones;
    for (const std::string& zone : offer.zones) zones += (zones.empty() ? "" : ", ") + zone;
    return InvalidArgument("none of ec2.subnets is in " + zones +
                           ", which the pool names as its zone or zones");
  }
  if (options.subnets.empty()) {
    for (const std::string& zone : offer.zones) places.push_back({"", "", zone});
  }
  if (places.empty()) places.emplace_back();
  std::vector<std::string> types = offer.instance_types;
  if (types.empty()) types.emplace_back();
  std::vector<Ec2Override> overrides;
  for (const std::string& type : types) {
    for (const Ec2Override& place : places) overrides.push_back({type, place.subnet, place.zone});
  }
  if (overrides.size() > kEc2OverridesMax)
    return InvalidArgument(std::to_string(overrides.size()) +
                           " combinations of pools[].instance_types with zones or ec2.subnets are "
                           "over EC2's limit of 300");
  return overrides;
}

std::string UserDataOf(const std::string& boot_script) {
  // Only cloud-init runs it from there: elsewhere, as in a test, nothing is switched off.
  return "#!/bin/sh\n(\n" + boot_script +
         ")\n"
         "case \"$0\" in /var/lib/cloud/*) shutdown -h now ;; esac\n";
}

std::string ClientTokenOf(const std::string& request_id, int attempt) {
  const std::string end = attempt == 0 ? "" : "-" + std::to_string(attempt);
  return WordOf(request_id, kClientTokenMax - end.size()) + end;
}

std::string TemplateNameOf(const std::string& request_id) {
  return "troupe-" + WordOf(request_id, 100);
}

AwsParameters CreateTemplateRequest(const Ec2Options& options, const Ec2Offer& offer,
                                    const MachineOrder& order) {
  AwsParameters request = Begin("CreateLaunchTemplate");
  request.emplace_back("ClientToken", ClientTokenOf(order.request_id, 0));
  request.emplace_back("LaunchTemplateName", TemplateNameOf(order.request_id));
  AddMachine(request, "LaunchTemplateData.", options, offer, order);
  AddTags(request, "", 1, "launch-template", TagsOf(options, order));
  return request;
}

AwsParameters DeleteTemplateRequest(const std::string& name) {
  AwsParameters request = Begin("DeleteLaunchTemplate");
  request.emplace_back("LaunchTemplateName", name);
  return request;
}

AwsParameters DescribeTemplatesRequest(const std::string& cluster, const std::string& next) {
  AwsParameters request = Begin("DescribeLaunchTemplates");
  request.emplace_back("MaxResults", "200");
  AddFilter(request, cluster, next);
  return request;
}

AwsParameters CreateFleetRequest(const Ec2Options& options, const Ec2Offer& offer,
                                 const MachineOrder& order,
                                 const std::vector<Ec2Override>& overrides, int attempt) {
  AwsParameters request = Begin("CreateFleet");
  request.emplace_back("Type", "instant");
  request.emplace_back("ClientToken", ClientTokenOf(order.request_id, attempt));
  const std::string config = "LaunchTemplateConfigs.1.";
  request.emplace_back(config + "LaunchTemplateSpecification.LaunchTemplateName",
                       TemplateNameOf(order.request_id));
  request.emplace_back(config + "LaunchTemplateSpecification.Version", "1");
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string entry = At(config + "Overrides", i + 1) + ".";
    AddIfGiven(request, entry + "InstanceType", overrides[i].instance_type);
    AddIfGiven(request, entry + "SubnetId", overrides[i].subnet);
    AddIfGiven(request, entry + "AvailabilityZone", overrides[i].zone);
    if (offer.spot) AddIfGiven(request, entry + "MaxPrice", offer.max_price);
    request.emplace_back(entry + "Priority", std::to_string(i));
  }
  const std::string count = std::to_string(order.count);
  request.emplace_back("TargetCapacitySpecification.TotalTargetCapacity", count);
  request.emplace_back("TargetCapacitySpecification.DefaultTargetCapacityType",
                       offer.spot ? "spot" : "on-demand");
  if (offer.spot) {
    request.emplace_back("SpotOptions.AllocationStrategy", options.strategy);
    request.emplace_back("SpotOptions.InstanceInterruptionBehavior", "terminate");
  } else {
    request.emplace_back(
        "OnDemandOptions.AllocationStrategy",
        options.strategy.ends_with("prioritized") ? "prioritized" : "lowest-price");
  }
  AddTags(request, "", 1, "fleet", TagsOf(options, order));
  return request;
}

AwsParameters RunInstancesRequest(const Ec2Options& options, const Ec2Offer& offer,
                                  const MachineOrder& order, const Ec2Override& wanted,
                                  int attempt) {
  AwsParameters request = Begin("RunInstances");
  request.emplace_back("ClientToken", ClientTokenOf(order.request_id, attempt));
  request.emplace_back("MinCount", "1");
  request.emplace_back("MaxCount", std::to_string(order.count));
  const size_t colon = options.launch_template.find(':');
  const std::string name = options.launch_template.substr(0, colon);
  request.emplace_back(name.starts_with("lt-") ? "LaunchTemplate.LaunchTemplateId"
                                               : "LaunchTemplate.LaunchTemplateName",
                       name);
  if (colon != std::string::npos)
    request.emplace_back("LaunchTemplate.Version", options.launch_template.substr(colon + 1));
  AddIfGiven(request, "InstanceType", wanted.instance_type);
  AddIfGiven(request, "SubnetId", wanted.subnet);
  AddIfGiven(request, "Placement.AvailabilityZone", wanted.zone);
  if (offer.spot) {
    request.emplace_back("InstanceMarketOptions.MarketType", "spot");
    request.emplace_back("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time");
    request.emplace_back("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior",
                         "terminate");
    AddIfGiven(request, "InstanceMarketOptions.SpotOptions.MaxPrice", offer.max_price);
  }
  AddMachine(request, "", options, offer, order);
  return request;
}

AwsParameters DescribeInstancesRequest(const std::string& cluster, const std::string& next) {
  AwsParameters request = Begin("DescribeInstances");
  request.emplace_back("MaxResults", kPageSize);
  AddFilter(request, cluster, next);
  return request;
}

AwsParameters DescribeSubnetsRequest(const std::vector<std::string>& subnets) {
  AwsParameters request = Begin("DescribeSubnets");
  for (size_t i = 0; i < subnets.size(); ++i)
    request.emplace_back(At("SubnetId", i + 1), subnets[i]);
  return request;
}

AwsParameters ConsoleRequest(const std::string& id) {
  AwsParameters request = Begin("GetConsoleOutput");
  request.emplace_back("InstanceId", id);
  return request;
}

AwsParameters TerminateRequest(const std::vector<std::string>& ids) {
  AwsParameters request = Begin("TerminateInstances");
  for (size_t i = 0; i < ids.size(); ++i) request.emplace_back(At("InstanceId", i + 1), ids[i]);
  return request;
}

std::vector<Ec2Instance> InstancesOf(const XmlElement& answer) {
  std::vector<Ec2Instance> instances;
  for (const XmlElement& reservation : answer.Child("reservationSet").children) {
    for (const XmlElement& item : reservation.Child("instancesSet").children) {
      Ec2Instance instance = InstanceOf(item);
      if (!instance.machine.id.empty()) instances.push_back(std::move(instance));
    }
  }
  return instances;
}

std::vector<Machine> MadeOf(const XmlElement& answer) {
  std::vector<Machine> made;
  for (const XmlElement& item : answer.Child("instancesSet").children) {
    Machine machine = InstanceOf(item).machine;
    if (!machine.id.empty()) made.push_back(std::move(machine));
  }
  return made;
}

Ec2Fleet FleetOf(const XmlElement& answer, bool spot) {
  Ec2Fleet fleet;
  for (const XmlElement& set : answer.Child("fleetInstanceSet").children) {
    for (const XmlElement& id : set.Child("instanceIds").children) {
      Machine machine;
      machine.id = Printable(id.text, 64);
      machine.state = "pending";
      machine.detail = Printable(set.TextOf("instanceType"), 64);
      if (!machine.id.empty()) fleet.made.push_back(std::move(machine));
    }
  }
  for (const XmlElement& item : answer.Child("errorSet").children) {
    Ec2Fleet::Refusal refusal;
    refusal.error.code = Printable(item.TextOf("errorCode"), 80);
    refusal.error.message = Printable(item.TextOf("errorMessage"), 300);
    refusal.error.failure = FailureOf(refusal.error.code);
    const XmlElement& wanted = item.Child("launchTemplateAndOverrides").Child("overrides");
    refusal.question = {"CreateFleet", Printable(wanted.TextOf("instanceType"), 40),
                        Printable(wanted.TextOf("availabilityZone"), 40), spot};
    if (refusal.question.zone.empty())
      refusal.question.zone = Printable(wanted.TextOf("subnetId"), 40);
    fleet.refusals.push_back(std::move(refusal));
  }
  return fleet;
}

Error JoinRefusals(const std::vector<Ec2Fleet::Refusal>& refusals) {
  if (refusals.empty())
    return {ErrorCode::kResourceExhausted, "no capacity: EC2 has made nothing, and says not why"};
  constexpr size_t kToldMax = 4;
  // If one kind may be had later, all of them are asked for later.
  std::optional<Error> told;
  std::vector<std::string> said;
  for (const Ec2Fleet::Refusal& refusal : refusals) {
    Error error = TellEc2Error(refusal.error, refusal.question);
    const bool later = refusal.error.failure != Ec2Failure::kRefused;
    if (std::ranges::find(said, error.message) == said.end()) said.push_back(error.message);
    const bool better = !told || (later && told->code != ErrorCode::kResourceExhausted);
    if (better) told = std::move(error);
  }
  std::string all;
  for (size_t i = 0; i < std::min(said.size(), kToldMax); ++i)
    all += (i == 0 ? "" : "; ") + said[i];
  if (said.size() > kToldMax) all += "; and " + std::to_string(said.size() - kToldMax) + " more";
  return {told->code, all};
}

std::vector<Ec2Template> TemplatesOf(const XmlElement& answer) {
  std::vector<Ec2Template> templates;
  for (const XmlElement& item : answer.Child("launchTemplates").children) {
    const std::string& name = item.TextOf("launchTemplateName");
    // Others may carry the cluster's tag, too.
    if (name.starts_with("troupe-"))
      templates.push_back({name, ParseCloudTime(item.TextOf("createTime")).value_or(0)});
  }
  return templates;
}

}  // namespace troupe::ec2
