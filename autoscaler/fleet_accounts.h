// FleetAccounts: what the paid time of a fleet went to, and what it cost.
//
// Each worker-second of a node that is listed, a node of n workers has n in a second, is in one
// class:
//
//   useful      a member of a run trains, or an actor has the room
//   redone      members computed steps again that were lost
//   recovering  members stood still while their group re-formed without a plan
//   waiting     a worker starts, or its group waits for others
//   starting    the node was launched and is not up yet
//   idle        nobody uses the room
//   draining    the node is to go, and nobody works there any more
//
// Time that members lost is known in sums, per run and as it happens: it is taken from the useful
// time that follows, where there is not enough yet.
// Thread: one. A pure core: the caller hands in the time.
// Invariant: FA-1 the classes sum to the paid time, that of all nodes from when they were listed
// first to last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/plan.h"
#include "runtime/clock.h"

namespace troupe {

enum class TimeUse : uint8_t {
  kUseful,
  kRedone,
  kRecovering,
  kWaiting,
  kStarting,
  kIdle,
  kDraining
};
inline constexpr size_t kTimeUses = 7;
[[nodiscard]] std::string_view TimeUseName(TimeUse use);

class FleetAccounts {
 public:
  struct Node {
    std::string id;
    std::string pool;
    NodePhase phase = NodePhase::kLaunching;
    bool idle = true;
    int workers = 0;  // Of runs, there; and those of them whose group trains.
    int members = 0;
    bool noticed = false;  // Its provider takes it back.
  };
  struct Run {
    std::string id;
    uint64_t steps = 0;  // Each of these only grows, in one life of the run.
    double stood_s = 0;
    double redone_s = 0;
    uint64_t samples = 0;            // Of committed steps.
    uint64_t samples_per_epoch = 0;  // Of its data; 0: not known.
  };
  using Uses = std::array<double, kTimeUses>;
  struct Sums {
    Uses worker_s{};
    Uses dollars{};
    double spot_worker_s = 0;
    // What that time would have cost on the cheapest on-demand pool; none: there is no such pool.
    std::optional<double> on_demand_dollars;
    int preemptions = 0;  // Nodes with a notice, and nodes that went without being ended.
    // Of redone and recovering time, and of nodes that started in place of such ones.
    double lost_dollars = 0;
    uint64_t steps = 0;    // Committed by all runs;
    uint64_t samples = 0;  // and their samples,
    double epochs = 0;     // in times through the data of each.

    [[nodiscard]] double PaidSeconds() const;
    [[nodiscard]] double Dollars() const;
  };

  explicit FleetAccounts(std::vector<PoolLimits> pools);

  // What is there from now on. Until now it was as it was said last.
  void Advance(Time now, const std::vector<Node>& nodes, const std::vector<Run>& runs);
  // What is billed from now on costs so much, for a node and hour.
  void PriceIs(const std::string& pool, double per_hour);
  // Of all that was billed so far, and by pool.
  [[nodiscard]] const Sums& total() const { return total_; }
  [[nodiscard]] const std::map<std::string, Sums>& pools() const { return of_pool_; }

 private:
  struct Known {
    Node node;
    bool replaces = false;  // One that was taken away.
  };
  void Compare();  // With what on demand costs now.
  void Bill(double span_s);
  void BillNode(const Known& known, double span_s, double lost, double redone_share);
  [[nodiscard]] double UsefulOf(const Node& node, double span_s) const;
  [[nodiscard]] int RoomOf(const std::string& pool) const;
  void Add(const Known& known, TimeUse use, double worker_s);
  void TakeRuns(const std::vector<Run>& runs);
  void TakeNodes(const std::vector<Node>& nodes);

  std::map<std::string, PoolLimits> limits_;
  std::optional<double> on_demand_price_;  // Of a worker-hour.
  std::map<std::string, Known> nodes_;
  std::map<std::string, Run> runs_;
  Sums total_;
  std::map<std::string, Sums> of_pool_;
  Time last_ = Time::Never();
  double owed_stood_s_ = 0;  // Not taken from useful time yet.
  double owed_redone_s_ = 0;
  int to_replace_ = 0;
};

}  // namespace troupe
