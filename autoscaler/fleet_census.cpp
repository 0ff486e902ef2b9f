#include "autoscaler/fleet_census.h"

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <tuple>
#include <utility>

#include "runtime/process.h"

namespace troupe {
namespace {

constexpr size_t kTimeDigits = 11;  // Hexadecimal, of milliseconds: enough until the year 2527.
constexpr size_t kNamesTold = 20;

}  // namespace

void MachineCensus::List(Answer done) {
  source_->List(
      [cluster = cluster_, done = std::move(done)](const Result<std::vector<Machine>>& listed) {
        if (!listed.ok()) return done(listed.error());
        std::vector<CensusNode> nodes;
        for (const Machine& machine : *listed) {
          if (TagOf(machine.tags, kClusterTag) != cluster) continue;
          nodes.push_back({machine.id, TagOf(machine.tags, kNodeTag), TagOf(machine.tags, kLifeTag),
                           machine.state == "stopping"});
        }
        done(std::move(nodes));
      });
}

void MachineCensus::End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) {
  std::vector<std::string> ids;
  for (const CensusNode& node : nodes) ids.push_back(node.id);
  source_->Terminate(ids, std::move(done));
}

std::string NewLife(double unix_s) {
  const auto milliseconds = static_cast<uint64_t>(std::max(0.0, unix_s) * 1000) & 0xfffffffffffU;
  char time[kTimeDigits + 1];
  std::snprintf(time, sizeof time, "%0*" PRIx64, static_cast<int>(kTimeDigits), milliseconds);
  return time + RandomId().substr(0, 8);
}

double BeginOfLife(const std::string& life) {
  if (life.size() != kTimeDigits + 8 ||
      life.find_first_not_of("0123456789abcdef") != std::string::npos)
    return 0;
  return static_cast<double>(std::stoull(life.substr(0, kTimeDigits), nullptr, 16)) / 1000;
}

std::string NamesOf(std::vector<CensusNode> nodes) {
  std::sort(nodes.begin(), nodes.end(), [](const CensusNode& one, const CensusNode& other) {
    return std::tie(one.node, one.id) < std::tie(other.node, other.id);
  });
  std::string names;
  for (size_t i = 0; i < std::min(nodes.size(), kNamesTold); ++i) {
    const CensusNode& node = nodes[i];
    names +=
        (i == 0 ? "" : ", ") + (node.node.empty() ? node.id : node.node + " (" + node.id + ")");
  }
  if (nodes.size() > kNamesTold)
    names += " and " + std::to_string(nodes.size() - kNamesTold) + " more";
  return names;
}

}  // namespace troupe
