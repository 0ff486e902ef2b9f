// Machines that are VM instances of Google Compute Engine, spot or on demand.
//
// Requests wait for Google on threads of this source, so that its owner never does; what has come
// is told in Step. docs/decisions/0048-* says why machines are made as they are.
// Thread: one, beside its own.
// Owns: kGceCreateThreads + kGceEndThreads + 2 threads at most, started when there is something to
// ask; the destructor cancels what is under way and joins them.
// Limits: kGceWaitingMax requests wait in each lane.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/gce/gce_api.h"
#include "autoscaler/gce/gce_identity.h"
#include "autoscaler/gce/gce_requests.h"
#include "autoscaler/machine_inventory.h"
#include "autoscaler/machine_source.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"

namespace troupe::gce {

inline constexpr size_t kGceCreateThreads = 8;
inline constexpr size_t kGceEndThreads = 8;
inline constexpr size_t kGceWaitingMax = 10'000;
// Between two listings at least: each machine that is made has its owner ask for one.
inline constexpr Duration kGceListGap = milliseconds(500);
// A deleted instance is in no list any more, and Google's lists lag little.
inline constexpr Duration kGceLostAfter = seconds(3);
inline constexpr Duration kGceEndAgain = seconds(30);  // One that is still listed is ended again.

struct GceTools {
  GceWorld world;
  HttpLinkMaker link;
  const Clock* clock = nullptr;
};
// Those of libcurl and of this process.
[[nodiscard]] GceTools RealGceTools(const Clock* clock);

class GceMachines final : public MachineSource {
 public:
  GceMachines(GceOptions options, const GceChoice& choice, GceTools tools);
  ~GceMachines() override;
  GceMachines(const GceMachines&) = delete;
  GceMachines& operator=(const GceMachines&) = delete;

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  void Printed(const std::string& id, const std::function<void(const std::string&)>& done) override;
  void Withdraw(const std::string& request_id) override;
  bool Step(Time now) override;

 private:
  enum Lane : size_t { kCreate, kList, kEnd, kWords, kLanes };
  using Ask = std::function<RequestLanes::Finish(GceApi&)>;
  Status Post(Lane lane, Ask ask, std::shared_ptr<const std::atomic<bool>> wanted = nullptr);
  void AskToList(Time now);
  std::string ReasonOf(const std::string& id);
  void DeleteStopped(const std::set<std::string>& stopped);
  Result<std::vector<Machine>> Take(const GceListed& listed);

  const GceOptions options_;
  const Clock* const clock_;
  MachineInventory inventory_{kGceLostAfter};
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> wanted_;  // Orders, by request.
  std::map<std::string, Time> asked_;           // Ends that were begun, by id, and when.
  std::map<std::string, std::string> reasons_;  // Of those that end by themselves; empty: asked.
  bool listed_ = false;                         // All zones, once.
  std::vector<Answer> lists_;                   // Asked for, and not yet sent.
  Time list_at_{};                              // Not before.
  GceIdentity identity_;
  GceZones zones_;
  RequestLanes lanes_;  // Last: its threads end first.
};

}  // namespace troupe::gce
