// What is run on a host over SSH to start, list and end nodes: scripts for any POSIX shell of
// Linux.
//
// Pure.
// Thread: plain values.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autoscaler/exec_command.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr int kSshFailed = 255;  // Its own exit status.
// That runs the script at its standard input on `host`. `ssh`: its arguments up to the host's name.
[[nodiscard]] ExecCommand SshTo(ExecCommand ssh, const std::string& host);

// Starts `boot` apart from the session, and ends when it runs.
[[nodiscard]] std::string SshStartScript(const std::string& fleet, const std::string& id,
                                         const std::string& boot);
[[nodiscard]] std::string SshListScript(const std::string& fleet);
// `force`: it was asked before.
[[nodiscard]] std::string SshEndScript(const std::string& fleet, const std::string& id, bool force);

// Tells each node of `cluster` that lives on the host, whichever `troupe up` has started it, and
// removes what others have left behind: those of the fleets that are `over` at once, all others'
// after 10 minutes, in which whoever has started them may still read their words.
[[nodiscard]] std::string SshCensusScript(const std::string& cluster,
                                          const std::set<std::string>& over);

struct SshListing {
  std::map<std::string, bool> alive;         // By node.
  std::map<std::string, std::string> words;  // The last ones of those that have ended.
};
// What SshListScript has printed; kCorrupt if it is not whole.
[[nodiscard]] Result<SshListing> ParseSshListing(std::string_view text);

// What SshCensusScript has printed: fleet and node of each; kCorrupt if it is not whole.
[[nodiscard]] Result<std::vector<std::pair<std::string, std::string>>> ParseSshCensus(
    std::string_view text);

// What ssh itself says when it cannot, for people: its last line, and what to do.
[[nodiscard]] std::string ExplainSsh(std::string_view log);

}  // namespace troupe
