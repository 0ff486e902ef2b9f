#include "autoscaler/ec2/ec2_errors.h"

#include <algorithm>
#include <array>

#include "autoscaler/cloud_text.h"
#include "autoscaler/ec2/aws_query.h"
#include "autoscaler/ec2/aws_xml.h"

namespace troupe::ec2 {
namespace {

constexpr size_t kMessageMax = 300;     // Of what is told.
constexpr size_t kNamesMax = 64 << 10;  // Of what is read: it may name a thousand instances.

struct Meaning {
  std::string_view code;  // Or how it begins, up to a star.
  Ec2Failure failure;
  std::string_view advice;
};

// The first that fits. Long because it is a list.
constexpr std::array kMeanings = {
    Meaning{"InsufficientFreeAddressesInSubnet", Ec2Failure::kCapacity,
            "give other ones in ec2.subnets"},
    Meaning{"SpotMaxPriceTooLow", Ec2Failure::kCapacity,
            "the spot price is over pools[].max_price"},
    Meaning{"Insufficient*", Ec2Failure::kCapacity, ""},
    Meaning{"UnfulfillableCapacity", Ec2Failure::kCapacity, ""},
    Meaning{"Unsupported", Ec2Failure::kCapacity, "see pools[].instance_types and pools[].zones"},
    Meaning{"MaxSpotInstanceCountExceeded", Ec2Failure::kCapacity, "quota"},
    Meaning{"VcpuLimitExceeded", Ec2Failure::kCapacity, "quota"},
    Meaning{"InstanceLimitExceeded", Ec2Failure::kCapacity, "quota"},
    Meaning{"SpotInstanceCountExceeded", Ec2Failure::kCapacity, "quota"},
    Meaning{"MaxFleetCountExceeded", Ec2Failure::kCapacity,
            "the quota of fleets is used up: ask for more under Service Quotas, Amazon EC2"},
    Meaning{"RequestLimitExceeded", Ec2Failure::kThrottled, ""},
    Meaning{"Throttl*", Ec2Failure::kThrottled, ""},
    Meaning{"RequestThrottled*", Ec2Failure::kThrottled, ""},
    Meaning{"TooManyRequests*", Ec2Failure::kThrottled, ""},
    Meaning{"EC2ThrottledException", Ec2Failure::kThrottled, ""},
    Meaning{"SlowDown", Ec2Failure::kThrottled, ""},
    Meaning{"BandwidthLimitExceeded", Ec2Failure::kThrottled, ""},
    Meaning{"Internal*", Ec2Failure::kServer, ""},
    Meaning{"ServiceUnavailable", Ec2Failure::kServer, ""},
    Meaning{"Unavailable", Ec2Failure::kServer, ""},
    Meaning{"RequestExpired", Ec2Failure::kStale, "is this host's clock right?"},
    Meaning{"ExpiredToken*", Ec2Failure::kStale, "the credentials have expired"},
    Meaning{"RequestTimeTooSkewed", Ec2Failure::kStale, "is this host's clock right?"},
    Meaning{"SignatureDoesNotMatch", Ec2Failure::kStale,
            "is the secret key right, and this host's clock?"},
    Meaning{"InvalidInstanceID.NotFound", Ec2Failure::kMissing, ""},
    Meaning{"InvalidInstanceID.Malformed", Ec2Failure::kMissing, ""},
    Meaning{"InvalidLaunchTemplateName.AlreadyExists*", Ec2Failure::kExists, ""},
    Meaning{"UnauthorizedOperation", Ec2Failure::kRefused, "permission"},
    Meaning{"AuthFailure.ServiceLinkedRoleCreationNotPermitted", Ec2Failure::kRefused,
            "the account has no role for spot instances yet; once: aws iam "
            "create-service-linked-role --aws-service-name spot.amazonaws.com"},
    Meaning{"AuthFailure*", Ec2Failure::kRefused, "are the credentials those of this region?"},
    Meaning{"InvalidClientTokenId", Ec2Failure::kRefused, "are the credentials right?"},
    Meaning{"UnrecognizedClient*", Ec2Failure::kRefused, "are the credentials right?"},
    Meaning{"MissingAuthenticationToken", Ec2Failure::kRefused, "are the credentials right?"},
    Meaning{"OptInRequired", Ec2Failure::kRefused, "the account has not signed up for it"},
    Meaning{"PendingVerification", Ec2Failure::kRefused, ""},
    Meaning{"Blocked", Ec2Failure::kRefused, ""},
    Meaning{"InvalidAMIID*", Ec2Failure::kRefused, "see ec2.image and ec2.region"},
    Meaning{"InvalidKeyPair*", Ec2Failure::kRefused, "see ec2.key_name and ec2.region"},
    Meaning{"InvalidGroup*", Ec2Failure::kRefused, "see ec2.security_groups"},
    Meaning{"InvalidSecurity*", Ec2Failure::kRefused, "see ec2.security_groups"},
    Meaning{"InvalidSubnet*", Ec2Failure::kRefused, "see ec2.subnets"},
    Meaning{"VPCIdNotSpecified", Ec2Failure::kRefused, "there is no default VPC: give ec2.subnets"},
    Meaning{"MissingInput", Ec2Failure::kRefused, ""},
    Meaning{"InvalidLaunchTemplate*", Ec2Failure::kRefused, "see ec2.launch_template"},
    Meaning{"InvalidIamInstanceProfile*", Ec2Failure::kRefused, "see ec2.instance_profile"},
    Meaning{"InvalidInstanceType*", Ec2Failure::kRefused, "see pools[].instance_types"},
    Meaning{"InvalidZone*", Ec2Failure::kRefused, "see pools[].zones and ec2.region"},
    Meaning{"InvalidAvailabilityZone*", Ec2Failure::kRefused, "see pools[].zones and ec2.region"},
    Meaning{"InvalidParameter*", Ec2Failure::kRefused, "key"},
    Meaning{"Invalid*", Ec2Failure::kRefused, "key"},
    Meaning{"Malformed*", Ec2Failure::kRefused, "key"},
    Meaning{"Missing*", Ec2Failure::kRefused, "key"},
    Meaning{"Unknown*", Ec2Failure::kRefused, "key"},
    Meaning{"Unsupported*", Ec2Failure::kRefused, "key"},
    Meaning{"IncompatibleTemplate*", Ec2Failure::kRefused, "key"},
    Meaning{"IdempotentParameterMismatch", Ec2Failure::kOther, ""},
};

const Meaning* MeaningOf(std::string_view code) {
  const auto* found = std::ranges::find_if(kMeanings, [&](const Meaning& meaning) {
    return meaning.code.ends_with('*')
               ? code.starts_with(meaning.code.substr(0, meaning.code.size() - 1))
               : code == meaning.code;
  });
  return found == kMeanings.end() ? nullptr : found;
}

// As Service Quotas names and numbers it, by the letters before the generation of a type.
std::string QuotaOf(const Ec2Question& question) {
  const std::string& type = question.instance_type;
  const std::string letters = type.substr(0, type.find_first_of("0123456789"));
  const bool spot = question.spot;
  std::string name;
  if (letters == "g" || letters == "vt" || letters == "gr") {
    name = spot ? "\"All G and VT Spot Instance Requests\" (L-3819A6DF)"
                : "\"Running On-Demand G and VT instances\" (L-DB2E81BA)";
  } else if (letters == "p" && (type.starts_with("p5") || type.starts_with("p6")) && spot) {
    name = "\"All P5 Spot Instance Requests\" (L-C4BD4855)";
  } else if (letters == "p") {
    name = spot ? "\"All P4, P3 and P2 Spot Instance Requests\" (L-7212CCBC)"
                : "\"Running On-Demand P instances\" (L-417A185B)";
  } else if (!letters.empty() &&
             std::string_view("acdhimrtz").find(letters[0]) != std::string_view::npos &&
             letters != "inf" && letters != "trn" && letters != "dl" && letters != "hpc") {
    name = spot ? "\"All Standard Spot Instance Requests\" (L-34B43A08)"
                : "\"Running On-Demand Standard instances\" (L-1216C47A)";
  } else {
    name = std::string("of ") + (spot ? "spot" : "on-demand") + " vCPUs for " +
           (type.empty() ? "these instance types" : type);
  }
  return "the quota " + name +
         " is used up: ask for more under Service Quotas, Amazon EC2, or lower pools[].max_workers";
}

// Which key of a cluster file EC2's words are about.
std::string_view KeyIn(std::string_view message) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kWords = {
      {{"nstance profile", "see ec2.instance_profile"},
       {"nstanceProfile", "see ec2.instance_profile"},
       {"nstance type", "see pools[].instance_types"},
       {"nstanceType", "see pools[].instance_types"},
       {"vailability zone", "see pools[].zones and ec2.region"},
       {"vailability Zone", "see pools[].zones and ec2.region"},
       {"vailabilityZone", "see pools[].zones and ec2.region"},
       {"ubnet", "see ec2.subnets"},
       {"ecurity group", "see ec2.security_groups"},
       {"ser data", "the boot script is too long: shorten nodes.setup or training.env"},
       {"serData", "the boot script is too long: shorten nodes.setup or training.env"},
       {"axPrice", "see pools[].max_price"},
       {"price", "see pools[].max_price"},
       {"ag", "see ec2.tags"}}};
  for (const auto& [word, key] : kWords) {
    if (message.find(word) != std::string_view::npos) return key;
  }
  return "see `ec2` in the cluster file";
}

bool IsAboutWhoAsks(std::string_view code) {
  constexpr std::array<std::string_view, 7> kBegins = {"Auth",
                                                       "Unauthorized",
                                                       "InvalidClientTokenId",
                                                       "UnrecognizedClient",
                                                       "MissingAuthentication",
                                                       "OptIn",
                                                       "Blocked"};
  return std::ranges::any_of(kBegins,
                             [&](std::string_view word) { return code.starts_with(word); });
}

std::string AdviceOf(const Ec2Error& error, const Ec2Question& question) {
  const Meaning* meaning = MeaningOf(error.code);
  if (meaning == nullptr) return "";
  if (meaning->advice == "quota") return QuotaOf(question);
  if (meaning->advice == "permission")
    return "allow ec2:" + question.action + " in the policy of who asks (docs/fleets.md)";
  if (meaning->advice == "key") return std::string(KeyIn(error.message));
  return std::string(meaning->advice);
}

}  // namespace

Ec2Failure FailureOf(std::string_view code) {
  const Meaning* meaning = MeaningOf(code);
  return meaning == nullptr ? Ec2Failure::kOther : meaning->failure;
}

Ec2Error ReadEc2Error(const HttpReply& reply) {
  Ec2Error error;
  if (const Result<XmlElement> xml = ParseXml(reply.body); xml.ok()) {
    const XmlElement& told = xml->Child("Errors").Child("Error");
    error.code = Printable(told.TextOf("Code"), 80);
    std::string message = told.TextOf("Message");
    // What follows is for a tool, and long.
    message = message.substr(0, message.find("Encoded authorization failure message"));
    error.message = Printable(message, kNamesMax);
  }
  if (!error.code.empty()) error.failure = FailureOf(error.code);
  if (reply.status == 429 || (reply.status == 503 && error.code.empty()))
    error.failure = Ec2Failure::kThrottled;
  if (error.failure == Ec2Failure::kOther && reply.status >= 500)
    error.failure = Ec2Failure::kServer;
  if (error.code.empty()) error.message = "status " + std::to_string(reply.status);
  return error;
}

Error TellEc2Error(const Ec2Error& error, const Ec2Question& question) {
  std::string what = question.action;
  if (!question.instance_type.empty()) what += " of " + question.instance_type;
  if (!question.zone.empty()) what += " in " + question.zone;
  what +=
      ": " + (error.code.empty() ? "" : error.code + ": ") + Printable(error.message, kMessageMax);
  while (what.ends_with('.') || what.ends_with(' ')) what.pop_back();
  if (const std::string advice = AdviceOf(error, question); !advice.empty()) what += "; " + advice;
  switch (error.failure) {
    case Ec2Failure::kCapacity:
      return {ErrorCode::kResourceExhausted, "no capacity: " + what};
    case Ec2Failure::kStale:
      return {ErrorCode::kPermissionDenied, what};
    case Ec2Failure::kMissing:
      return {ErrorCode::kNotFound, what};
    case Ec2Failure::kRefused:
      return {
          IsAboutWhoAsks(error.code) ? ErrorCode::kPermissionDenied : ErrorCode::kInvalidArgument,
          what};
    case Ec2Failure::kThrottled:
    case Ec2Failure::kServer:
    case Ec2Failure::kExists:
    case Ec2Failure::kOther:
      break;
  }
  return {ErrorCode::kUnavailable, what};
}

std::vector<std::string> InstancesIn(std::string_view message) {
  std::vector<std::string> ids;
  const auto belongs = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  };
  for (size_t at = 0; at < message.size();) {
    size_t end = at;
    while (end < message.size() && belongs(message[end])) ++end;
    const std::string_view word = message.substr(at, end - at);
    if (word.starts_with("i-") && word.size() > 2) ids.emplace_back(word);
    at = end + 1;
  }
  return ids;
}

}  // namespace troupe::ec2
