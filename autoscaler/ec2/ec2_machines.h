// Machines that are instances of EC2, spot or on demand.
//
// Requests wait for EC2 on threads of this source, so that its owner never does; what has come is
// told in Step. docs/decisions/0045-* says why machines are made as they are.
// Thread: one, beside its own.
// Owns: kEc2CreateThreads + 3 threads at most, started when there is something to ask; the
// destructor cancels what is under way and joins them.
// Limits: kEc2WaitingMax requests wait.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/ec2/aws_identity.h"
#include "autoscaler/ec2/ec2_api.h"
#include "autoscaler/ec2/ec2_requests.h"
#include "autoscaler/machine_inventory.h"
#include "autoscaler/machine_source.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"

namespace troupe::ec2 {

inline constexpr size_t kEc2CreateThreads = 8;
inline constexpr size_t kEc2WaitingMax = 10'000;
// Between two listings at least: each machine that is made has its owner ask for one.
inline constexpr Duration kEc2ListGap = milliseconds(500);
inline constexpr Duration kEc2SweepEvery = seconds(600);

struct Ec2Tools {
  AwsWorld world;  // Its `run` is replaced.
  HttpLinkMaker link;
  const Clock* clock = nullptr;
};
// Those of libcurl and of this process.
[[nodiscard]] Ec2Tools RealEc2Tools(const Clock* clock);

class Ec2Machines final : public MachineSource {
 public:
  Ec2Machines(Ec2Options options, Ec2Tools tools);
  ~Ec2Machines() override;
  Ec2Machines(const Ec2Machines&) = delete;
  Ec2Machines& operator=(const Ec2Machines&) = delete;

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  void Printed(const std::string& id, const std::function<void(const std::string&)>& done) override;
  void Withdraw(const std::string& request_id) override;
  std::map<std::string, double> TakePrices() override { return std::exchange(prices_, {}); }
  bool Step(Time now) override;

 private:
  struct End {
    std::vector<std::string> ids;
    std::function<void(Status)> done;
  };
  enum Lane : size_t { kCreate, kList, kEnd, kWords, kLanes };
  using Ask = std::function<RequestLanes::Finish(Ec2Api&)>;
  AwsWorld WithRun(AwsWorld world);
  Status Post(Lane lane, Ask ask, std::shared_ptr<const std::atomic<bool>> wanted = nullptr);
  void AskToEnd();
  void AskToList(Time now);
  void AskForPrices(Time now);

  const Ec2Options options_;
  const Clock* const clock_;
  MachineInventory inventory_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> wanted_;  // Orders, by request.
  std::vector<End> ends_;      // Asked for, and not yet sent.
  bool ending_ = false;        // A request is under way.
  std::vector<Answer> lists_;  // Asked for, and not yet sent.
  Time list_at_{};             // Not before.
  Time sweep_at_{};
  Time price_at_{};
  bool pricing_ = false;                  // A question is under way.
  std::map<std::string, double> prices_;  // Told, and not yet taken.
  std::string price_trouble_;             // As it was logged last.
  AwsIdentity identity_;
  RequestLanes lanes_;  // Last: its threads end first.
};

}  // namespace troupe::ec2
