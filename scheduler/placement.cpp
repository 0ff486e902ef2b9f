#include "scheduler/placement.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace troupe {
namespace {

constexpr std::array<std::pair<PlacementStrategy, std::string_view>, 5> kStrategies = {
    {{PlacementStrategy::kHybrid, "hybrid"},
     {PlacementStrategy::kPack, "pack"},
     {PlacementStrategy::kSpread, "spread"},
     {PlacementStrategy::kStrictPack, "strict_pack"},
     {PlacementStrategy::kStrictSpread, "strict_spread"}}};
constexpr double kHybridPackLimit = 0.5;  // Share of a node up to which hybrid packs.
constexpr size_t kNodesInReasonMax = 3;

bool HasLabels(const NodeView& node, const std::map<std::string, std::string>& labels) {
  return std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
    const auto found = node.labels.find(label.first);
    return found != node.labels.end() && found->second == label.second;
  });
}

bool Usable(const NodeView& node) { return node.alive && !node.draining; }

// One attempt: the nodes as they would be with what is placed so far.
class Attempt {
 public:
  Attempt(const ClusterView& cluster, PlacementStrategy strategy)
      : nodes_(cluster.nodes()), strategy_(strategy) {}

  // Places one request on the best node; false if none fits.
  bool Add(const PlacementRequest& request, std::string& node_of) {
    const std::string* best = nullptr;
    Score best_score;
    for (const auto& [id, node] : nodes_) {
      if (!Fits(id, node, request)) continue;
      const Score score = ScoreOf(id, node, request);
      if (best == nullptr || score < best_score) {
        best = &id;
        best_score = score;
      }
    }
    if (best == nullptr) return false;
    nodes_[*best].used.Add(request.resources);
    ++placed_on_[*best];
    node_of = *best;
    return true;
  }

  bool Fits(const std::string& id, const NodeView& node, const PlacementRequest& request) const {
    if (!Usable(node) || !HasLabels(node, request.labels)) return false;
    if (strategy_ == PlacementStrategy::kStrictSpread && placed_on_.contains(id)) return false;
    return node.Free().Covers(request.resources);
  }

  [[nodiscard]] const std::map<std::string, NodeView>& nodes() const { return nodes_; }
  [[nodiscard]] bool Taken(const std::string& id) const { return placed_on_.contains(id); }

 private:
  // Compared in this order; the least wins, and among equals the first id.
  using Score = std::tuple<int, int, double, double>;

  Score ScoreOf(const std::string& id, const NodeView& node,
                const PlacementRequest& request) const {
    const auto found = placed_on_.find(id);
    const size_t here = found == placed_on_.end() ? 0 : found->second;
    const bool preferred = id == request.preferred_node;
    // Work without a GPU goes to a GPU node only when no other has room.
    const bool wastes_gpu = node.total.Get("GPU") > 0 && request.resources.Get("GPU") == 0;
    NodeView after = node;
    after.used.Add(request.resources);
    const double share = after.used.ShareOf(after.total);
    const auto ours = static_cast<double>(here);
    switch (strategy_) {
      case PlacementStrategy::kPack:
      case PlacementStrategy::kStrictPack:
        return {!preferred, wastes_gpu, here > 0 ? 0 : 1, -share};
      case PlacementStrategy::kSpread:
      case PlacementStrategy::kStrictSpread:
        return {!preferred, wastes_gpu, ours, share};
      case PlacementStrategy::kHybrid:
        break;
    }
    return {!preferred, wastes_gpu, share <= kHybridPackLimit ? 0 : 1,
            share <= kHybridPackLimit ? -share : share};
  }

  std::map<std::string, NodeView> nodes_;
  std::map<std::string, size_t> placed_on_;
  PlacementStrategy strategy_;
};

std::string LabelsToString(const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [key, value] : labels) text += (text.empty() ? "" : ", ") + key + "=" + value;
  return text;
}

// What keeps `request` off a usable node: "lacks CPU 1.5 (0.5 of 4 free)", "has no GPU".
std::string Obstacle(const NodeView& node, const PlacementRequest& request, bool taken) {
  if (!HasLabels(node, request.labels)) return "has other labels";
  std::string text;
  const ResourceSet free = node.Free();
  for (const auto& [name, amount] : free.Missing(request.resources).ToMap()) {
    if (!text.empty()) text += " and ";
    if (node.total.Get(name) == 0) {
      text += "has no " + name;
      continue;
    }
    text += "lacks " + name + " " + ShowAmount(name, amount) + " (" +
            ShowAmount(name, free.Get(name)) + " of " + ShowAmount(name, node.total.Get(name)) +
            " free)";
  }
  if (text.empty() && taken) return "already holds one of these requests";
  return text;
}

// Why `request` fits nowhere, the nearest misses first.
std::string ReasonFor(const Attempt& attempt, const PlacementRequest& request) {
  std::string needs = "needs " + request.resources.ToString();
  if (!request.labels.empty()) needs += " on a node with " + LabelsToString(request.labels);
  size_t dead = 0;
  size_t draining = 0;
  std::vector<std::tuple<double, std::string, std::string>> misses;
  for (const auto& [id, node] : attempt.nodes()) {
    dead += node.alive ? 0 : 1;
    draining += node.alive && node.draining ? 1 : 0;
    if (!Usable(node)) continue;
    // Nearness: wrong labels are farthest, then resources that the node has not at all.
    double distance = node.Free().Missing(request.resources).ShareOf(node.total);
    if (!HasLabels(node, request.labels)) distance += 1000;
    if (!node.total.Covers(request.resources)) distance += 100;
    misses.emplace_back(distance, id, Obstacle(node, request, attempt.Taken(id)));
  }
  const std::string asides = (dead > 0 ? "; " + std::to_string(dead) + " dead" : std::string()) +
                             (draining > 0 ? "; " + std::to_string(draining) + " draining" : "");
  if (misses.empty()) return needs + "; no node is available" + asides;
  std::sort(misses.begin(), misses.end());
  std::string text = needs;
  for (size_t i = 0; i < std::min(misses.size(), kNodesInReasonMax); ++i) {
    const auto& [distance, id, obstacle] = misses[i];
    text += (i == 0 && misses.size() > 1 ? "; best node " : "; node ") + id + " " + obstacle;
  }
  if (misses.size() > kNodesInReasonMax) {
    text += "; " + std::to_string(misses.size() - kNodesInReasonMax) + " more nodes do not fit";
  }
  return text + asides;
}

// All requests as one; nullopt if their labels contradict each other.
std::optional<PlacementRequest> Merged(const std::vector<PlacementRequest>& requests) {
  PlacementRequest all;
  for (const PlacementRequest& request : requests) {
    all.resources.Add(request.resources);
    if (all.preferred_node.empty()) all.preferred_node = request.preferred_node;
    for (const auto& [key, value] : request.labels) {
      if (all.labels.emplace(key, value).first->second != value) return std::nullopt;
    }
  }
  return all;
}

// The requests' indices from the largest to the smallest, measured by the sum of all nodes.
std::vector<size_t> LargestFirst(const ClusterView& cluster,
                                 const std::vector<PlacementRequest>& requests) {
  ResourceSet total;
  for (const auto& [id, node] : cluster.nodes()) total.Add(node.total);
  std::vector<double> share;
  for (const PlacementRequest& request : requests)
    share.push_back(request.resources.ShareOf(total));
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return share[a] > share[b]; });
  return order;
}

PlacementResult TryPlace(const ClusterView& cluster, const std::vector<PlacementRequest>& requests,
                         const PlacementOptions& options) {
  const size_t at_least = std::min(options.at_least, requests.size());
  Attempt attempt(cluster, options.strategy);
  Assignments result;
  result.node_of.resize(requests.size());
  if (options.strategy == PlacementStrategy::kStrictPack) {
    const std::optional<PlacementRequest> all = Merged(requests);
    if (!all) return Rejection{"the requests must share one node but ask for different labels"};
    std::string node;
    if (!attempt.Add(*all, node)) {
      return Rejection{"together on one node, " + ReasonFor(attempt, *all)};
    }
    std::fill(result.node_of.begin(), result.node_of.end(), node);
    return result;
  }
  const PlacementRequest* refused = nullptr;
  for (const size_t index : LargestFirst(cluster, requests)) {
    if (attempt.Add(requests[index], result.node_of[index])) continue;
    if (refused == nullptr) refused = &requests[index];
  }
  if (refused == nullptr || result.placed() >= at_least) return result;
  std::string reason = ReasonFor(attempt, *refused);
  if (requests.size() > 1) {
    reason = "only " + std::to_string(result.placed()) + " of " + std::to_string(requests.size()) +
             " fit; the next " + reason;
  }
  return Rejection{std::move(reason)};
}

}  // namespace

ResourceSet NodeView::Free() const {
  ResourceSet free = total;
  free.Subtract(used);
  return free;
}

void ClusterView::Put(const std::string& id, NodeView node) {
  TROUPE_ASSERT(node.total.Covers(node.used), "a node uses more than it has");
  nodes_[id] = std::move(node);
}

void ClusterView::Remove(const std::string& id) { nodes_.erase(id); }

Status ClusterView::Reserve(const std::string& id, const ResourceSet& resources) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return Error{ErrorCode::kNotFound, "node " + id + " is not known"};
  const ResourceSet missing = found->second.Free().Missing(resources);
  if (!missing.empty()) {
    return Error{ErrorCode::kResourceExhausted, "node " + id + " lacks " + missing.ToString()};
  }
  found->second.used.Add(resources);
  return Status::Ok();
}

void ClusterView::Release(const std::string& id, const ResourceSet& resources) {
  const auto found = nodes_.find(id);
  if (found != nodes_.end()) found->second.used.Subtract(resources);
}

void ClusterView::SetState(const std::string& id, bool alive, bool draining) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  found->second.alive = alive;
  found->second.draining = draining;
}

std::string_view PlacementStrategyName(PlacementStrategy strategy) {
  for (const auto& [value, name] : kStrategies) {
    if (value == strategy) return name;
  }
  return "unknown";
}

Result<PlacementStrategy> ParsePlacementStrategy(std::string_view name) {
  std::string known;
  for (const auto& [value, word] : kStrategies) {
    if (word == name) return value;
    known.append(known.empty() ? "" : ", ").append(word);
  }
  return Error{ErrorCode::kInvalidArgument,
               "unknown placement strategy \"" + std::string(name) + "\"; use one of " + known};
}

size_t Assignments::placed() const {
  return static_cast<size_t>(
      std::count_if(node_of.begin(), node_of.end(), [](const auto& id) { return !id.empty(); }));
}

PlacementResult Place(const ClusterView& cluster, const std::vector<PlacementRequest>& requests,
                      const PlacementOptions& options) {
  PlacementResult result = TryPlace(cluster, requests, options);
  if (auto* rejection = std::get_if<Rejection>(&result)) {
    ClusterView idle;
    for (const auto& [id, node] : cluster.nodes()) {
      idle.Put(id, NodeView{node.total, {}, node.labels, node.alive, node.draining});
    }
    rejection->possible_when_idle =
        std::holds_alternative<Assignments>(TryPlace(idle, requests, options));
  }
  return result;
}

}  // namespace troupe
