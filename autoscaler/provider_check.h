// Whether a program supplies nodes as the contract asks (autoscaler/exec_protocol.h): a test that
// anybody can run on theirs.
//
// It makes up to four real nodes of the first offer, or of the given one, and ends all of them,
// also those of checks that failed. Each check stands for itself; one that needs what an earlier
// one did not get is skipped.
// Thread: one; blocks up to the command's limit per request, and kProviderSettles for a list to
// show what was done.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/exec_command.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr Duration kProviderSettles = seconds(60);

struct ProviderCheckOptions {
  ExecCommand command;
  std::string offer;  // Empty: the first that the program offers.
  Duration settles = kProviderSettles;
  std::function<Result<ExecReply>(const ExecCommand&, std::string_view)> run = RunExecCommand;
  std::function<void(Duration)> sleep;  // Null: sleeps.
};

struct ProviderFinding {
  enum class Outcome { kPassed, kFailed, kSkipped };
  std::string what;  // "the same request twice makes one node"
  Outcome outcome = Outcome::kPassed;
  std::string detail;  // Why not.
};

[[nodiscard]] std::vector<ProviderFinding> CheckProvider(const ProviderCheckOptions& options);
// A line per finding and a last one that counts; ok if none failed.
[[nodiscard]] Result<std::string> ReportOf(const std::vector<ProviderFinding>& findings);

}  // namespace troupe
