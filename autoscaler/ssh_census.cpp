#include "autoscaler/ssh_census.h"

#include <algorithm>
#include <utility>

#include "autoscaler/ssh_scripts.h"

namespace troupe {
namespace {

constexpr size_t kHostsNamed = 5;

}  // namespace

SshCensus::SshCensus(SshCensusOptions options)
    : options_(std::move(options)),
      source_(options_.hosts, [this](const ExecCommand& command, std::string input, ExecDone done) {
        if (options_.run) return options_.run(command, std::move(input), std::move(done));
        pool_.Run(command, std::move(input), std::move(done));
      }) {}

void SshCensus::Ask(const std::string& host, const std::string& script, ExecDone done) {
  ExecCommand command = SshTo(options_.ssh, host);
  if (options_.run) return options_.run(command, script, std::move(done));
  pool_.Run(std::move(command), script, std::move(done));
}

void SshCensus::List(FleetCensus::Answer done) { lists_.push_back(std::move(done)); }

bool SshCensus::Step(Time now) {
  bool moved = pool_.Step(now);
  if (lists_.empty()) return moved;  // The user's program need not tell hosts that nobody asks for.
  if (const auto told = source_.Step(now)) {
    hosts_.clear();
    for (const HostSlots& slots : *told) hosts_.push_back(slots.host);
    moved = true;
  }
  if (asking_) return moved;
  if (source_.told()) {
    AskAll();
  } else if (!source_.status().ok()) {
    AnswerLists(source_.status().error());
  }
  return true;
}

void SshCensus::AskAll() {
  asking_ = true;
  found_.clear();
  unknown_.clear();
  const std::vector<std::string> hosts = hosts_;
  open_ = hosts.size() + 1;  // The last one is for this loop: answers may come within it.
  for (const std::string& host : hosts) {
    Ask(host, SshCensusScript(options_.cluster, over_),
        [this, host](const Result<ExecReply>& reply) { Take(host, reply); });
  }
  if (--open_ == 0) AnswerLists(found_);
}

void SshCensus::Take(const std::string& host, const Result<ExecReply>& reply) {
  const auto nodes = [&]() -> Result<std::vector<std::pair<std::string, std::string>>> {
    if (!reply.ok()) return reply.error();
    if (reply->code != kSshFailed) return ParseSshCensus(reply->out);
    return Error{ErrorCode::kUnavailable, ExplainSsh(reply->log)};
  }();
  if (!nodes.ok()) unknown_[host] = nodes.error().message;
  const size_t prefix = options_.cluster.size() + 1;
  const std::vector<std::pair<std::string, std::string>> none;
  for (const auto& [fleet, node] : nodes.ok() ? *nodes : none)
    found_.push_back({host + "/" + node, node, fleet.substr(std::min(prefix, fleet.size()))});
  if (--open_ == 0) AnswerLists(found_);
}

void SshCensus::AnswerLists(const Result<std::vector<CensusNode>>& listed) {
  asking_ = false;
  for (const FleetCensus::Answer& done : std::exchange(lists_, {})) done(listed);
}

void SshCensus::End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) {
  for (const CensusNode& node : nodes) {
    const std::string host = node.id.substr(0, node.id.size() - node.node.size() - 1);
    const bool force = !asked_.insert(node.life + " " + node.id).second;
    const std::string fleet = options_.cluster + "-" + node.life;
    over_.insert(fleet);
    Ask(host, SshEndScript(fleet, node.node, force), [](const Result<ExecReply>&) {});
  }
  done(Status::Ok());
}

std::string SshCensus::Unknown() const {
  std::string text;
  size_t named = 0;
  for (const auto& [host, why] : unknown_) {
    if (named++ < kHostsNamed) text += (text.empty() ? "" : "; ") + host + ": " + why;
  }
  if (named > kHostsNamed) text += " and " + std::to_string(named - kHostsNamed) + " more hosts";
  return text.empty() ? text : "not known what is there on " + text;
}

}  // namespace troupe
