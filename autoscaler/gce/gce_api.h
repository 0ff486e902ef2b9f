// What Compute Engine does for us, each as one question that is answered or has failed.
//
// Thread: one of RequestLanes.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/gce/gce_caller.h"
#include "autoscaler/gce/gce_identity.h"
#include "autoscaler/gce/gce_requests.h"
#include "autoscaler/machine_inventory.h"
#include "autoscaler/machine_source.h"
#include "runtime/result.h"

namespace troupe::gce {

inline constexpr Duration kGceOperationLimit = seconds(300);  // Until a machine is made.
inline constexpr Duration kGceWaitMost = seconds(120);        // Of Google, in one answer.
inline constexpr Duration kGceWaitMin = milliseconds(200);    // Between two answers at least.
inline constexpr Duration kGceWordsLimit = seconds(10);
inline constexpr size_t kGceWordsMax = 2000;  // Bytes.
inline constexpr size_t kGcePagesMax = 200;

struct GceEnd {
  Status status = Status::Ok();
  bool gone = false;  // Compute Engine does not know it.
};

struct GceListed {
  std::vector<ListedMachine> machines;
  std::set<std::string> unreachable;  // Zones.
  std::set<std::string> stopped;
};

// Zones of regions, once they are known.
// Thread: any.
class GceZones {
 public:
  [[nodiscard]] std::vector<std::string> Of(const std::string& region);
  void Are(const std::string& region, const std::vector<std::string>& zones);

 private:
  std::mutex mu_;
  std::map<std::string, std::vector<std::string>> zones_;
};

class GceApi {
 public:
  GceApi(const GceOptions* options, GceIdentity* identity, GceZones* zones,
         const RequestSeams& seams)
      : options_(options), zones_(zones), seams_(seams), caller_(identity, seams, options->limit) {}

  Result<std::vector<Machine>> Create(const MachineOrder& order);
  // Of the cluster.
  Result<GceListed> List();
  GceEnd Terminate(const std::string& id);
  // Why that one ends; empty: not told.
  std::string ReasonOf(const std::string& id);
  // The end of its serial console; empty: nothing can be read. No longer than kGceWordsLimit.
  std::string Printed(const std::string& id);

 private:
  Result<std::vector<std::string>> Zones(const GceOffer& offer);
  Result<GceOperation> Wait(GceOperation operation, const GceQuestion& question);
  Result<std::vector<Machine>> Find(const MachineOrder& order, const GceOffer& offer,
                                    const GceOperation& operation);

  const GceOptions* const options_;
  GceZones* const zones_;
  const RequestSeams seams_;
  GceCaller caller_;
};

}  // namespace troupe::gce
