// What Compute Engine is asked, and what it tells of instances.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/gce/gce_errors.h"
#include "autoscaler/machine_inventory.h"
#include "autoscaler/machine_source.h"
#include "runtime/result.h"

namespace troupe::gce {

// A node that is told to end has so long to drain: Google takes a Spot VM back after 30 s.
inline constexpr Duration kGceDrains = seconds(25);
inline constexpr size_t kGceScriptMax = 256 << 10;  // Bytes, as metadata has it.

// What a pool of the cluster file asks for.
struct GceOffer {
  bool spot = true;
  std::vector<std::string> machine_types;  // The first is liked best.
  std::vector<std::string> zones;          // Of one region; at least one.
  std::string image;                       // Instead of the one of all pools.
  bool gpu = false;                        // Those cannot move to another host.
};

struct GceOptions {
  std::string image;
  std::string network;
  std::string subnetwork;
  bool external_ip = true;
  std::string service_account;
  std::string instance_template;
  std::string disk_type;
  int64_t disk_gb = 0;
  std::string target_shape;
  std::map<std::string, std::string> labels;
  std::map<std::string, GceOffer> offers;
  std::string cluster;
  Duration limit = seconds(60);
};

// A version 4 look of a UUID, the same for the same text.
[[nodiscard]] std::string RequestUuidOf(const std::string& text);
// "spot-1-0123456789abcdef", at most 63 bytes, the same for the same order and place in it.
[[nodiscard]] std::string InstanceNameOf(const MachineOrder& order, int number);
// The boot script, and the end of the machine after it where that is one of Google.
[[nodiscard]] std::string StartupScriptOf(const std::string& boot_script);
// Has the node drain, and waits until it has ended.
[[nodiscard]] std::string ShutdownScript();
// Where a bulk insertion is asked for: "zones/Z" or "regions/R", with "/instances/bulkInsert".
[[nodiscard]] std::string BulkPathOf(const GceOffer& offer);
// JSON. `all`: the zones of its region, if it has several: those that are not the offer's are
// denied, since Google takes any that is not named. kInvalidArgument: the script is too long.
[[nodiscard]] Result<std::string> BulkBodyOf(const GceOptions& options, const GceOffer& offer,
                                             const MachineOrder& order,
                                             const std::vector<std::string>& all = {});
// Of a region, as Google describes it.
[[nodiscard]] std::vector<std::string> ZonesIn(const std::string& body);

// Of an operation.
struct GceOperation {
  std::string path;  // "zones/Z/operations/NAME".
  bool done = false;
  GceError error;                       // Its `code` is empty: none.
  std::map<std::string, int64_t> made;  // By zone.
};
[[nodiscard]] Result<GceOperation> ReadOperation(const std::string& body);

struct GcePage {
  std::vector<ListedMachine> machines;
  std::set<std::string> unreachable;  // Zones of which this list says nothing.
  std::set<std::string> stopped;      // Machines that run no more, and cost their disks.
  std::string next;                   // Empty: this is the last.
};
// Of an aggregated list.
[[nodiscard]] GcePage ReadPage(const std::string& body);
// "zone/name".
[[nodiscard]] std::string MachineIdOf(const std::string& zone, const std::string& name);
// The zone, and the name; nothing if it is none.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> PartsOf(const std::string& id);
// Why an instance ended, of a list of operations of its zone that are about it; empty: not told.
[[nodiscard]] std::string ReasonIn(const std::string& body);

}  // namespace troupe::gce
