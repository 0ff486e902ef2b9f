// Random clusters and requests, by seed: PL-1 to PL-3 hold for every strategy, and for equal
// requests the answer is exactly what counting says.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "scheduler/placement.h"

namespace troupe {
namespace {

constexpr int kSeeds = 3000;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int Up(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  ResourceSet Resources(int cpus) {
    std::map<std::string, double> amounts{{"CPU", 0.5 * (1 + Up(2 * cpus))}};
    if (Up(3) == 0) amounts["GPU"] = 0.25 * (1 + Up(8));
    return *ResourceSet::FromMap(amounts);
  }
  ClusterView Cluster() {
    ClusterView cluster;
    for (int i = Up(6); i > 0; --i) {
      const std::string id = "n" + std::to_string(i);
      std::map<std::string, std::string> labels;
      if (Up(2) == 0) labels["zone"] = Up(2) == 0 ? "x" : "y";
      cluster.Put(id, NodeView{Resources(8), {}, labels, Up(6) != 0, Up(6) == 0});
      (void)cluster.Reserve(id, Resources(4));  // Some fit and some do not.
    }
    return cluster;
  }
  PlacementRequest Request() {
    PlacementRequest request{Resources(3), {}, Up(4) == 0 ? "n1" : ""};
    if (Up(4) == 0) request.labels["zone"] = "x";
    return request;
  }

 private:
  std::mt19937 random_;
};

void CheckAssignments(const ClusterView& before, const std::vector<PlacementRequest>& requests,
                      const PlacementOptions& options, const Assignments& result) {
  ClusterView cluster = before;
  std::set<std::string> used;
  ASSERT_EQ(result.node_of.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string& id = result.node_of[i];
    if (id.empty()) continue;
    const NodeView& node = before.nodes().at(id);
    EXPECT_TRUE(node.alive && !node.draining);
    for (const auto& [key, value] : requests[i].labels) EXPECT_EQ(node.labels.at(key), value);
    const Status booked = cluster.Reserve(id, requests[i].resources);
    EXPECT_TRUE(booked.ok()) << (booked.ok() ? "" : booked.error().message);
    const bool first = used.insert(id).second;
    if (options.strategy == PlacementStrategy::kStrictSpread) {
      EXPECT_TRUE(first);
    }
  }
  if (options.strategy == PlacementStrategy::kStrictPack) {
    EXPECT_LE(used.size(), 1u);
  }
  EXPECT_GE(result.placed(), std::min(options.at_least, requests.size()));
}

TEST(PlacementPropertyTest, NeverOverCapacityForAnySeedAndStrategy) {
  size_t placed = 0;
  size_t rejected = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    const ClusterView cluster = draw.Cluster();
    std::vector<PlacementRequest> requests;
    for (int i = draw.Up(7); i > 0; --i) requests.push_back(draw.Request());
    PlacementOptions options{static_cast<PlacementStrategy>(draw.Up(5))};
    if (draw.Up(3) == 0) options.at_least = static_cast<size_t>(draw.Up(4));
    const PlacementResult result = Place(cluster, requests, options);
    if (const auto* assignments = std::get_if<Assignments>(&result)) {
      ++placed;
      CheckAssignments(cluster, requests, options, *assignments);
    } else {
      ++rejected;
      EXPECT_NE(std::get<Rejection>(result).reason.find("need"), std::string::npos);
    }
    if (::testing::Test::HasFailure()) return;
  }
  // Both outcomes are exercised, else the test proves little.
  EXPECT_GT(placed, 500u);
  EXPECT_GT(rejected, 500u);
}

size_t Holds(const NodeView& node, const ResourceSet& need) {
  ResourceSet free = node.Free();
  size_t count = 0;
  while (node.alive && !node.draining && free.Covers(need)) {
    free.Subtract(need);
    ++count;
  }
  return count;
}

TEST(PlacementPropertyTest, EqualRequestsArePlacedExactlyWhenCountingSaysTheyFit) {
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    Draw draw(seed);
    const ClusterView cluster = draw.Cluster();
    const ResourceSet need = draw.Resources(3);
    const size_t count = 1 + static_cast<size_t>(draw.Up(8));
    const std::vector<PlacementRequest> requests(count, PlacementRequest{need, {}, ""});
    size_t total = 0;
    size_t nodes = 0;
    size_t most = 0;
    for (const auto& [id, node] : cluster.nodes()) {
      const size_t holds = Holds(node, need);
      total += holds;
      nodes += holds > 0 ? 1 : 0;
      most = std::max(most, holds);
    }
    const auto fits = [&](PlacementStrategy strategy) {
      return std::holds_alternative<Assignments>(Place(cluster, requests, {strategy}));
    };
    ASSERT_EQ(fits(PlacementStrategy::kPack), total >= count) << "seed " << seed;
    ASSERT_EQ(fits(PlacementStrategy::kSpread), total >= count) << "seed " << seed;
    ASSERT_EQ(fits(PlacementStrategy::kHybrid), total >= count) << "seed " << seed;
    ASSERT_EQ(fits(PlacementStrategy::kStrictSpread), nodes >= count) << "seed " << seed;
    ASSERT_EQ(fits(PlacementStrategy::kStrictPack), most >= count) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe
