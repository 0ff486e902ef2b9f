#include "autoscaler/ec2/ec2_api.h"

#include <algorithm>
#include <utility>

#include "autoscaler/cloud_text.h"

namespace troupe::ec2 {
namespace {

// What it does on the way out has a limit of its own.
constexpr Duration kTidyLimit = seconds(20);

// Of what makes machines. One whose answer was lost may have made some.
Error TellCreate(const Ec2Answer& answer, const Ec2Question& question) {
  Error error = answer.Tell(question);
  const bool lost = (answer.failed && answer.failed->code == ErrorCode::kPeerGone) ||
                    (answer.refused && answer.refused->failure == Ec2Failure::kServer);
  if (lost) error.code = ErrorCode::kDeadlineExceeded;
  return error;
}

// Of a template: whatever became of it, it has made no machine.
Error TellTemplate(const Ec2Answer& answer, bool spot) {
  Error error = answer.Tell({"CreateLaunchTemplate", "", "", spot});
  if (error.code == ErrorCode::kDeadlineExceeded || error.code == ErrorCode::kCorrupt ||
      error.code == ErrorCode::kPeerGone)
    error.code = ErrorCode::kUnavailable;
  return error;
}

bool IsCancelled(const Ec2Answer& answer) {
  return answer.failed && answer.failed->code == ErrorCode::kCancelled;
}

}  // namespace

Result<std::vector<Ec2Override>> Ec2Api::Overrides(const Ec2Offer& offer) {
  std::map<std::string, std::string> zone_of;
  if (!options_->subnets.empty() && !offer.zones.empty()) {
    const Ec2Answer answer =
        caller_.Call(DescribeSubnetsRequest(options_->subnets), caller_.Patience());
    if (!answer.ok()) return answer.Tell({"DescribeSubnets", "", "", false});
    for (const XmlElement& item : answer.xml.Child("subnetSet").children)
      zone_of[item.TextOf("subnetId")] = item.TextOf("availabilityZone");
  }
  return OverridesOf(*options_, offer, zone_of);
}

Result<std::vector<Machine>> Ec2Api::Create(const MachineOrder& order) {
  const auto offer = options_->offers.find(order.offer);
  if (offer == options_->offers.end()) return InvalidArgument("no pool " + order.offer);
  if (const size_t bytes = UserDataOf(order.user_data).size(); bytes > kEc2UserDataMax)
    return InvalidArgument("the boot script has " + std::to_string(bytes) +
                           " bytes, EC2 takes 16384: shorten nodes.setup or training.env");
  const Result<std::vector<Ec2Override>> overrides = Overrides(offer->second);
  if (!overrides.ok()) return overrides.error();
  Result<std::vector<Machine>> made = options_->launch_template.empty()
                                          ? CreateByFleet(offer->second, order, *overrides)
                                          : CreateOneByOne(offer->second, order, *overrides);
  if (!made.ok()) return made;
  for (Machine& machine : *made) {
    machine.offer = order.offer;
    machine.request_id = order.request_id;
    machine.tags = order.tags;
    machine.state = "pending";
  }
  return made;
}

Result<std::vector<Machine>> Ec2Api::CreateByFleet(const Ec2Offer& offer, const MachineOrder& order,
                                                   const std::vector<Ec2Override>& overrides) {
  const Ec2Patience patience = caller_.Patience(kEc2ThrottlePatience);
  const Ec2Answer made = caller_.Call(CreateTemplateRequest(*options_, offer, order), patience);
  const bool exists = made.refused && made.refused->failure == Ec2Failure::kExists;
  const Error untold = TellTemplate(made, offer.spot);
  if (made.refused && !exists) return untold;
  Result<std::vector<Machine>> machines =
      made.failed ? untold : AskFleets(offer, order, overrides, patience);
  if (IsCancelled(made) || (!machines.ok() && machines.error().code == ErrorCode::kCancelled))
    return machines;  // It is left to the next autoscaler.
  // Also one whose making was not answered for. What is not deleted now is deleted by Sweep.
  const Time now = caller_.Now();
  (void)caller_.Call(DeleteTemplateRequest(TemplateNameOf(order.request_id)),
                     {now + kTidyLimit, now + kTidyLimit});
  return machines;
}

Result<std::vector<Machine>> Ec2Api::AskFleets(const Ec2Offer& offer, const MachineOrder& order,
                                               const std::vector<Ec2Override>& overrides,
                                               const Ec2Patience& patience) {
  for (int attempt = 0;; ++attempt) {
    const Ec2Answer answer =
        caller_.Call(CreateFleetRequest(*options_, offer, order, overrides, attempt), patience);
    if (!answer.ok()) return TellCreate(answer, {"CreateFleet", "", "", offer.spot});
    Ec2Fleet fleet = FleetOf(answer.xml, offer.spot);
    if (!fleet.made.empty()) {
      if (fleet.made.size() > static_cast<size_t>(order.count))
        return Error{ErrorCode::kCorrupt, "CreateFleet: EC2 has made more than was asked for"};
      if (!fleet.refusals.empty())
        fleet.made.front().detail += ", after " + JoinRefusals(fleet.refusals).message;
      return std::move(fleet.made);
    }
    // The same token would have the same answer.
    const bool again = std::ranges::any_of(fleet.refusals, [](const Ec2Fleet::Refusal& refusal) {
      return refusal.error.failure == Ec2Failure::kThrottled ||
             refusal.error.failure == Ec2Failure::kServer;
    });
    const Duration pause = Ec2Pause(attempt + 2, caller_.seams().random());
    if (!again || attempt + 1 >= kEc2FleetsMax || caller_.Now() + pause >= patience.until)
      return JoinRefusals(fleet.refusals);
    if (!caller_.seams().pause(pause)) return Error{ErrorCode::kCancelled, "cancelled"};
  }
}

Result<std::vector<Machine>> Ec2Api::CreateOneByOne(const Ec2Offer& offer,
                                                    const MachineOrder& order,
                                                    const std::vector<Ec2Override>& overrides) {
  std::vector<Ec2Fleet::Refusal> refusals;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const Ec2Override& wanted = overrides[i];
    const Ec2Answer answer =
        caller_.Call(RunInstancesRequest(*options_, offer, order, wanted, static_cast<int>(i)),
                     caller_.Patience(kEc2ThrottlePatience));
    const Ec2Question question{"RunInstances", wanted.instance_type,
                               wanted.zone.empty() ? wanted.subnet : wanted.zone, offer.spot};
    if (answer.ok()) {
      std::vector<Machine> made = MadeOf(answer.xml);
      if (made.empty())
        return Error{ErrorCode::kCorrupt, "RunInstances: its answer names no instance"};
      if (!refusals.empty()) made.front().detail += ", after " + JoinRefusals(refusals).message;
      return made;
    }
    // Another kind may be had where this one is not; whatever else is wrong is so for all.
    const bool next = answer.refused && answer.refused->failure == Ec2Failure::kCapacity;
    if (!next) return TellCreate(answer, question);
    refusals.push_back({*answer.refused, question});
  }
  return JoinRefusals(refusals);
}

Result<std::vector<Ec2Instance>> Ec2Api::List() {
  std::vector<Ec2Instance> all;
  std::string next;
  const Ec2Patience patience = caller_.Patience();
  for (size_t page = 0; page < kEc2PagesMax; ++page) {
    const Ec2Answer answer =
        caller_.Call(DescribeInstancesRequest(options_->cluster, next), patience);
    if (!answer.ok()) return answer.Tell({"DescribeInstances", "", "", false});
    std::vector<Ec2Instance> some = InstancesOf(answer.xml);
    std::ranges::move(some, std::back_inserter(all));
    const std::string& after = answer.xml.TextOf("nextToken");
    if (after.empty()) return all;
    if (after == next) break;
    next = after;
  }
  return Error{ErrorCode::kCorrupt, "DescribeInstances: its pages do not end"};
}

Result<std::map<std::string, double>> Ec2Api::Prices(int64_t now_s) {
  std::set<std::string> types;
  for (const auto& [name, offer] : options_->offers) {
    if (offer.spot) types.insert(offer.instance_types.begin(), offer.instance_types.end());
  }
  if (types.empty()) return std::map<std::string, double>{};
  std::vector<Ec2SpotPrice> all;
  std::string next;
  const Ec2Patience patience = caller_.Patience();
  for (size_t page = 0; page < kEc2PagesMax; ++page) {
    const Ec2Answer answer = caller_.Call(SpotPricesRequest(types, now_s, next), patience);
    if (!answer.ok()) return answer.Tell({"DescribeSpotPriceHistory", "", "", false});
    std::ranges::move(SpotPricesOf(answer.xml), std::back_inserter(all));
    const std::string& after = answer.xml.TextOf("nextToken");
    if (after.empty()) return OfferPrices(*options_, all);
    if (after == next) break;
    next = after;
  }
  return Error{ErrorCode::kCorrupt, "DescribeSpotPriceHistory: its pages do not end"};
}

std::map<std::string, Ec2End> Ec2Api::Terminate(const std::vector<std::string>& ids,
                                                const std::set<std::string>& young) {
  std::map<std::string, Ec2End> ended;
  const Ec2Patience patience = caller_.Patience();
  for (size_t from = 0; from < ids.size(); from += kEc2TerminateMax) {
    const size_t to = std::min(ids.size(), from + kEc2TerminateMax);
    TerminateSome(
        {ids.begin() + static_cast<ptrdiff_t>(from), ids.begin() + static_cast<ptrdiff_t>(to)},
        young, patience, ended);
  }
  return ended;
}

// EC2 ends all of a request or none: those that it does not know are left out of the next one, and
// if it refuses for another reason the halves are asked for, so that one does not hold up others.
// NOLINTNEXTLINE(misc-no-recursion): halves.
void Ec2Api::TerminateSome(std::vector<std::string> ids, const std::set<std::string>& young,
                           const Ec2Patience& patience, std::map<std::string, Ec2End>& ended) {
  while (!ids.empty()) {
    const Ec2Answer answer = caller_.Call(TerminateRequest(ids), patience);
    if (answer.ok()) {
      for (const std::string& id : ids) ended[id] = {};
      return;
    }
    const bool missing = answer.refused && answer.refused->failure == Ec2Failure::kMissing;
    std::vector<std::string> gone;
    if (missing) {
      for (const std::string& id : InstancesIn(answer.refused->message)) {
        if (std::ranges::find(ids, id) != ids.end()) gone.push_back(id);
      }
      if (gone.empty() && ids.size() == 1) gone = ids;
    }
    for (const std::string& id : gone) {
      if (young.contains(id)) {
        ended[id].status =
            Error{ErrorCode::kUnavailable, "EC2 does not know " + id + " yet; it is asked again"};
      } else {
        ended[id].gone = true;
      }
      std::erase(ids, id);
    }
    if (!gone.empty()) continue;
    const bool halves = answer.refused && answer.refused->failure != Ec2Failure::kThrottled &&
                        answer.refused->failure != Ec2Failure::kServer && ids.size() > 1;
    if (!halves) {
      const Error error = answer.Tell({"TerminateInstances", "", "", false});
      for (const std::string& id : ids) ended[id].status = error;
      return;
    }
    const auto middle = ids.begin() + static_cast<ptrdiff_t>(ids.size() / 2);
    TerminateSome({ids.begin(), middle}, young, patience, ended);
    TerminateSome({middle, ids.end()}, young, patience, ended);
    return;
  }
}

std::string Ec2Api::Printed(const std::string& id) {
  const Time until = caller_.Now() + kEc2WordsLimit;
  const Ec2Answer answer = caller_.Call(ConsoleRequest(id), {until, until});
  if (!answer.ok()) return "";
  const Result<std::string> printed = DecodeBase64(answer.xml.TextOf("output"));
  return printed.ok() ? LastOf(*printed, kEc2WordsMax) : "";
}

Result<int> Ec2Api::Sweep() {
  int deleted = 0;
  std::string next;
  const Ec2Patience patience = caller_.Patience();
  // An order that is under way, perhaps of another autoscaler, takes no longer.
  const auto old_s = static_cast<int64_t>(
      ToSeconds(std::max(options_->limit, kEc2ThrottlePatience) + options_->limit + kTidyLimit));
  for (size_t page = 0; page < kEc2PagesMax; ++page) {
    const Ec2Answer answer =
        caller_.Call(DescribeTemplatesRequest(options_->cluster, next), patience);
    if (!answer.ok()) return answer.Tell({"DescribeLaunchTemplates", "", "", false});
    for (const Ec2Template& left : TemplatesOf(answer.xml)) {
      if (left.made_s == 0 || answer.wall_s - left.made_s < old_s) continue;
      const Ec2Answer gone = caller_.Call(DeleteTemplateRequest(left.name), patience);
      if (gone.ok()) ++deleted;
      if (IsCancelled(gone)) return deleted;
    }
    next = answer.xml.TextOf("nextToken");
    if (next.empty()) break;
  }
  return deleted;
}

}  // namespace troupe::ec2
