// What Troupe and a program that supplies nodes say to each other: JSON, one request per call of
// the program at its standard input, one reply at its standard output; docs/fleets.md has the
// contract.
//
// Pure. A reply may have keys that are not known here; what is known must have its type.
// Thread: plain values.
// Limits: kExecNodesMax nodes or offers of a reply.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/machine_source.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr int kExecProtocolVersion = 1;
inline constexpr size_t kExecNodesMax = 20'000;
inline constexpr size_t kExecIdBytesMax = 256;

// Exit codes of the program, beside 0 and those that mean "try again".
inline constexpr int kExecNoCapacity = 10;
inline constexpr int kExecThrottled = 11;
inline constexpr int kExecBadConfig = 12;

struct ExecOffer {
  std::string name;
  std::string market;  // "spot" or "on_demand"; empty: not said.
  std::string zone;
  std::optional<double> price_per_hour;
};

[[nodiscard]] std::string ExecRequest(std::string_view verb);
[[nodiscard]] std::string ExecCreateRequest(const MachineOrder& create);
[[nodiscard]] std::string ExecTerminateRequest(const std::vector<std::string>& ids);

// kCorrupt, with the place, for what is no such reply.
[[nodiscard]] Result<std::vector<Machine>> ParseExecNodes(std::string_view reply);
[[nodiscard]] Result<std::vector<ExecOffer>> ParseExecOffers(std::string_view reply);
// Dollars per hour, by offer.
[[nodiscard]] Result<std::map<std::string, double>> ParseExecPrices(std::string_view reply);
// A reply without content.
[[nodiscard]] Status ParseExecDone(std::string_view reply);

// What an exit code means: kOk, kResourceExhausted (no capacity), kBackpressure (throttled),
// kInvalidArgument (trying again is useless), kUnavailable.
[[nodiscard]] Status ExecStatus(std::string_view verb, int code, std::string_view log);

}  // namespace troupe
