// What Ec2Machines has done by its threads: machines made, listed and ended, each as one call that
// waits.
//
// A machine's boot script holds a join token of its own, which a fleet can only take from a launch
// template: so a template is made for each request, and deleted after it. One that was left, by an
// autoscaler that was killed, is deleted by the next one of the cluster.
// Thread: one at a time. The identity is shared.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/ec2/ec2_caller.h"
#include "autoscaler/ec2/ec2_requests.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::ec2 {

// So long an order is repeated while EC2 only says that it is asked too often.
inline constexpr Duration kEc2ThrottlePatience = seconds(300);
inline constexpr int kEc2FleetsMax = 3;  // For one order, if EC2 throttles inside of a fleet.
inline constexpr Duration kEc2WordsLimit = seconds(10);
inline constexpr size_t kEc2WordsMax = 2000;  // Bytes.
inline constexpr size_t kEc2PagesMax = 200;
inline constexpr size_t kEc2TerminateMax = 200;  // Instances in one request.

struct Ec2End {
  Status status = Status::Ok();
  bool gone = false;  // EC2 does not know it any more.
};

class Ec2Api {
 public:
  Ec2Api(const Ec2Options* options, AwsIdentity* identity, const Ec2Seams& seams)
      : options_(options), caller_(identity, seams, options->limit) {}

  Result<std::vector<Machine>> Create(const MachineOrder& order);
  Result<std::vector<Ec2Instance>> List();
  // Of each of them. `young`: those that EC2 may not know yet.
  std::map<std::string, Ec2End> Terminate(const std::vector<std::string>& ids,
                                          const std::set<std::string>& young);
  // What an instance has printed on its console; empty: EC2 has nothing, or does not say. No longer
  // than kEc2WordsLimit.
  std::string Printed(const std::string& id);
  // What spot instances cost now, by offer. Nothing if no offer is on spot.
  Result<std::map<std::string, double>> Prices(int64_t now_s);
  // Deletes templates of this cluster that nobody needs any more. How many.
  Result<int> Sweep();

 private:
  Result<std::vector<Ec2Override>> Overrides(const Ec2Offer& offer);
  Result<std::vector<Machine>> CreateByFleet(const Ec2Offer& offer, const MachineOrder& order,
                                             const std::vector<Ec2Override>& overrides);
  Result<std::vector<Machine>> AskFleets(const Ec2Offer& offer, const MachineOrder& order,
                                         const std::vector<Ec2Override>& overrides,
                                         const Ec2Patience& patience);
  Result<std::vector<Machine>> CreateOneByOne(const Ec2Offer& offer, const MachineOrder& order,
                                              const std::vector<Ec2Override>& overrides);
  void TerminateSome(std::vector<std::string> ids, const std::set<std::string>& young,
                     const Ec2Patience& patience, std::map<std::string, Ec2End>& ended);

  const Ec2Options* const options_;
  Ec2Caller caller_;
};

}  // namespace troupe::ec2
