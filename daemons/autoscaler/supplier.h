// Supplier: who supplies the nodes of a cluster file, wired to the cluster that `troupe up` has
// started: how a node boots, how it is drained, and what is to be cleaned up after it.
//
// Thread: one.
#pragma once

#include <memory>
#include <string>

#include "autoscaler/cluster_config.h"
#include "autoscaler/fleet_census.h"
#include "autoscaler/node_provider.h"
#include "daemons/client/driver_client.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

// How long a node lives on without its head; one that was restarted is back long before.
inline constexpr Duration kLease = seconds(300);

class Supplier {
 public:
  virtual ~Supplier() = default;
  [[nodiscard]] virtual NodeProvider& nodes() = 0;
  [[nodiscard]] virtual NoticeSource& notices() = 0;
  // Moves on what is under way, also for the census; true if that has changed anything.
  virtual bool Step(Time now) { return nodes().Step(now); }
  // The node empties; it is gone after `left`.
  virtual Status Drain(const std::string& id, const std::string& reason, Duration left) = 0;
  // It is not listed any more.
  virtual void Gone(const std::string& id) {}
  // When there is something to do before the policy asks.
  [[nodiscard]] virtual Time next_wake() const = 0;
  // How long the end of all nodes may take at the end of the cluster.
  [[nodiscard]] virtual Duration grace() const = 0;
  // Of the nodes of this cluster, whichever `troupe up` has made them.
  [[nodiscard]] virtual FleetCensus& census() = 0;
  // Between two lists.
  [[nodiscard]] virtual Duration interval() const = 0;
  // Nodes that are still there, as people would look for them.
  [[nodiscard]] std::string Left();
};

struct SupplierOptions {
  // They outlive the supplier.
  const ClusterConfig* config = nullptr;
  std::string folder;  // Of the cluster file.
  std::string bin_dir;
  std::string life;  // Of this autoscaler; no other one has it.
  const Clock* clock = nullptr;
  DriverClient* client = nullptr;  // Null: nothing is launched or drained, only ended.
};

[[nodiscard]] std::unique_ptr<Supplier> MakeSupplier(const SupplierOptions& options);

// Where who is on `host` finds a head of this host that listens at `listen`, HOST:PORT; an empty
// host: whoever is out there.
[[nodiscard]] Result<std::string> EndpointTowards(const std::string& listen,
                                                  const std::string& host);
// Where processes of this host find it that those of other hosts are to reach, too.
[[nodiscard]] std::string EndpointHere(const HeadSpec& head, const DriverClient& client);
// For a program's argument: with all digits.
[[nodiscard]] std::string NumberText(double value);

}  // namespace troupe::daemons
