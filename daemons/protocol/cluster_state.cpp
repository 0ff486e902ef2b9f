#include "daemons/protocol/cluster_state.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::daemons {
namespace {

using ClusterText = nlohmann::json;

constexpr double kDrainMost_s = 1e8;  // Beyond, it is no deadline.

void CountWorker(const std::map<std::string, ClusterState::Node*>& nodes, const ClusterText& worker,
                 const std::string& phase) {
  const std::string how = worker.at("state");
  const bool over = phase == "succeeded" || phase == "failed" || phase == "cancelled" ||
                    how == "finished" || how == "drained" || how == "dead";
  if (over) return;
  const auto node = nodes.find(worker.value("node", ""));
  if (node == nodes.end()) return;
  ++node->second->workers;
  if (phase == "running" && worker.at("rank") >= 0) ++node->second->members;
}

}  // namespace

Result<ClusterState> ParseClusterState(const std::string& json) {
  try {
    const ClusterText root = ClusterText::parse(json);
    ClusterState state;
    for (const ClusterText& node : root.at("nodes")) {
      bool idle = true;
      for (const auto& [name, amount] : node.at("used").items())
        idle = idle && amount.get<double>() <= 0;
      ClusterState::Node& known = state.nodes.emplace_back();
      known = {node.at("id"), node.at("alive"), idle, node.at("draining"), node.at("reason")};
      const double left_s = node.at("drain_left_s").get<double>();
      if (left_s < kDrainMost_s) known.drain_left = Duration(static_cast<int64_t>(left_s * 1e9));
      known.source = node.at("notice").at(0);
      known.kind = node.at("notice").at(1);
      known.warning_source = node.at("warning").at(0);
      known.warning_kind = node.at("warning").at(1);
      known.warning = node.at("warning").at(2);
    }
    std::map<std::string, ClusterState::Node*> by_id;
    for (ClusterState::Node& node : state.nodes) by_id[node.id] = &node;
    for (const ClusterText& run : root.at("runs")) {
      const std::string phase = run.at("state");
      const auto members = std::ranges::count_if(
          run.at("workers"), [](const ClusterText& w) { return w.at("rank") >= 0; });
      state.running =
          state.running || (phase == "running" && members >= run.at("target").get<int>());
      std::string reason = run.at("reason");
      if (reason.empty()) reason = run.value("epoch_reason", "");
      uint64_t steps = 0;
      for (const ClusterText& worker : run.at("workers")) {
        steps = std::max(steps, worker.value("version", uint64_t{0}));
        CountWorker(by_id, worker, phase);
      }
      state.runs.push_back({run.at("name"), phase, std::move(reason), run.at("epoch"),
                            static_cast<int>(members), run.at("target"), run.at("run"), steps,
                            run.value("stood_s", 0.0), run.value("redone_s", 0.0),
                            run.value("samples", uint64_t{0}),
                            run.value("samples_per_epoch", uint64_t{0})});
      if (phase != "succeeded" && phase != "failed" && phase != "cancelled")
        state.wanted_workers += run.at("target").get<int>();
    }
    return state;
  } catch (const ClusterText::exception& error) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string("not a description of a cluster: ") + error.what()};
  }
}

}  // namespace troupe::daemons
