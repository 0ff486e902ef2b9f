// What an error of EC2 means: what is to be done about it, and what a person can do.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::ec2 {

enum class Ec2Failure : uint8_t {
  kCapacity,   // There is none of what was asked for, or a quota is used up.
  kThrottled,  // Asked too often: the same later.
  kServer,     // It has failed itself: the same again.
  kStale,      // The credentials have expired, or the clocks differ.
  kMissing,    // There is no such instance, or not yet.
  kExists,     // It was made before.
  kRefused,    // A wrong setting, or no permission: the same again is useless.
  kOther,
};

struct Ec2Error {
  Ec2Failure failure = Ec2Failure::kOther;
  std::string code;     // "InsufficientInstanceCapacity"; empty: none could be read.
  std::string message;  // In EC2's words.
};

// What was asked when it came.
struct Ec2Question {
  std::string action;         // "CreateFleet".
  std::string instance_type;  // Empty: of none, or of several.
  std::string zone;
  bool spot = false;
};

[[nodiscard]] Ec2Failure FailureOf(std::string_view code);
// Of a reply that is no success; also of one that is no XML.
[[nodiscard]] Ec2Error ReadEc2Error(const HttpReply& reply);
// For people, with the cluster file's key, the permission or the quota that it is about.
[[nodiscard]] Error TellEc2Error(const Ec2Error& error, const Ec2Question& question);
// Instances that it says do not exist.
[[nodiscard]] std::vector<std::string> InstancesIn(std::string_view message);

}  // namespace troupe::ec2
