// Nodes on hosts, reached over SSH, of every life of a cluster: what SshProvider starts.
//
// A host that cannot be reached is named by Unknown(), and does not keep the others' from being
// listed.
// Thread: one; ssh is not waited for.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/fleet_census.h"
#include "autoscaler/host_source.h"

namespace troupe {

struct SshCensusOptions {
  ExecCommand ssh;  // Its arguments up to the host's name.
  HostSourceOptions hosts;
  std::string cluster;
  HostSource::Run run;  // Instead of running it; `done` may be called at once.
};

class SshCensus final : public FleetCensus {
 public:
  explicit SshCensus(SshCensusOptions options);

  void List(FleetCensus::Answer done) override;
  // TERM at first, and KILL for those that were asked before.
  void End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) override;
  [[nodiscard]] std::string Unknown() const override;
  // Moves on what is under way; true if that has changed anything.
  bool Step(Time now);

 private:
  void Ask(const std::string& host, const std::string& script, ExecDone done);
  void AskAll();
  void Take(const std::string& host, const Result<ExecReply>& reply);
  void AnswerLists(const Result<std::vector<CensusNode>>& listed);

  const SshCensusOptions options_;
  CommandPool pool_;
  HostSource source_;
  std::vector<std::string> hosts_;
  std::vector<FleetCensus::Answer> lists_;  // Not answered yet.
  bool asking_ = false;
  size_t open_ = 0;  // Hosts that have not answered.
  std::vector<CensusNode> found_;
  std::map<std::string, std::string> unknown_;  // Hosts, and why.
  std::set<std::string> asked_;                 // Nodes that were asked to end.
  std::set<std::string> over_;                  // And of which fleets.
};

}  // namespace troupe
