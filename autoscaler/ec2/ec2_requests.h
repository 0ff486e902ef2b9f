// What EC2 is asked, in the words of its Query API 2016-11-15, and what its answers say.
//
// Pure.
// Thread: plain values.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/ec2/aws_chain.h"
#include "autoscaler/ec2/aws_query.h"
#include "autoscaler/ec2/aws_xml.h"
#include "autoscaler/ec2/ec2_errors.h"
#include "autoscaler/machine_inventory.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::ec2 {

inline constexpr size_t kEc2UserDataMax = 16384;  // Bytes, as EC2 has it.
inline constexpr size_t kEc2OverridesMax = 300;   // Of one fleet.

// What a pool of the cluster file asks for.
struct Ec2Offer {
  bool spot = true;
  std::vector<std::string> instance_types;  // In the order of preference; empty: the template's.
  std::vector<std::string> zones;           // Empty: where EC2 likes.
  std::string max_price;                    // Dollars per hour of a spot instance; empty: no limit.
  std::string image;                        // Instead of the one of all pools.
};

struct Ec2Options {
  AwsChoice aws;
  std::string image;
  std::string key_name;
  std::vector<std::string> security_groups;  // "sg-..." or names, of the default VPC.
  std::vector<std::string> subnets;
  std::string instance_profile;  // A name or an ARN.
  std::string launch_template;   // NAME or lt-ID, with :VERSION if need be; empty: made for each.
  std::string strategy;          // Of fleets on spot.
  std::map<std::string, std::string> tags;
  std::map<std::string, Ec2Offer> offers;
  std::string cluster;
  Duration limit = seconds(60);
  Duration price_interval{};  // Between two looks at spot prices; 0: none.
};

// One kind of machine that may be made: an instance type in a place.
struct Ec2Override {
  std::string instance_type;
  std::string subnet;  // At most one of these two.
  std::string zone;
};

// Each type in each place. `zone_of`: of the subnets, if the offer has zones.
[[nodiscard]] Result<std::vector<Ec2Override>> OverridesOf(
    const Ec2Options& options, const Ec2Offer& offer,
    const std::map<std::string, std::string>& zone_of);

// The boot script, and the end of the machine after it where that is one of EC2: it pays for what
// has no use any more.
[[nodiscard]] std::string UserDataOf(const std::string& boot_script);
// At most 64 bytes; the same for the same request.
[[nodiscard]] std::string ClientTokenOf(const std::string& request_id, int attempt);
[[nodiscard]] std::string TemplateNameOf(const std::string& request_id);

[[nodiscard]] AwsParameters CreateTemplateRequest(const Ec2Options& options, const Ec2Offer& offer,
                                                  const MachineOrder& order);
[[nodiscard]] AwsParameters DeleteTemplateRequest(const std::string& name);
// Those of the cluster; `next`: of the page before, or empty. Also of DescribeInstancesRequest.
[[nodiscard]] AwsParameters DescribeTemplatesRequest(const std::string& cluster,
                                                     const std::string& next);
[[nodiscard]] AwsParameters CreateFleetRequest(const Ec2Options& options, const Ec2Offer& offer,
                                               const MachineOrder& order,
                                               const std::vector<Ec2Override>& overrides,
                                               int attempt);
// From the template that the cluster file names.
[[nodiscard]] AwsParameters RunInstancesRequest(const Ec2Options& options, const Ec2Offer& offer,
                                                const MachineOrder& order,
                                                const Ec2Override& wanted, int attempt);
[[nodiscard]] AwsParameters DescribeInstancesRequest(const std::string& cluster,
                                                     const std::string& next);
[[nodiscard]] AwsParameters DescribeSubnetsRequest(const std::vector<std::string>& subnets);
// What spot instances of those types cost at `now_s`, seconds since 1970.
[[nodiscard]] AwsParameters SpotPricesRequest(const std::set<std::string>& types, int64_t now_s,
                                              const std::string& next);
[[nodiscard]] AwsParameters ConsoleRequest(const std::string& id);
[[nodiscard]] AwsParameters TerminateRequest(const std::vector<std::string>& ids);

using Ec2Instance = ListedMachine;  // One that has ended is listed for an hour.
// Of DescribeInstances, of one page.
[[nodiscard]] std::vector<Ec2Instance> InstancesOf(const XmlElement& answer);
// Of RunInstances, ids only.
[[nodiscard]] std::vector<Machine> MadeOf(const XmlElement& answer);

struct Ec2SpotPrice {
  std::string instance_type;
  std::string zone;
  double per_hour = 0;
};
// Of DescribeSpotPriceHistory, of one page, the newest first.
[[nodiscard]] std::vector<Ec2SpotPrice> SpotPricesOf(const XmlElement& answer);
// Of each spot offer the least among its types and zones: what EC2 is asked to prefer. Nothing of
// those without a price.
[[nodiscard]] std::map<std::string, double> OfferPrices(const Ec2Options& options,
                                                        const std::vector<Ec2SpotPrice>& prices);

struct Ec2Fleet {
  std::vector<Machine> made;
  struct Refusal {
    Ec2Error error;
    Ec2Question question;
  };
  std::vector<Refusal> refusals;  // One for each override, at most.
};
[[nodiscard]] Ec2Fleet FleetOf(const XmlElement& answer, bool spot);
// What is to be said of a fleet, or several launches, that made nothing.
[[nodiscard]] Error JoinRefusals(const std::vector<Ec2Fleet::Refusal>& refusals);

struct Ec2Template {
  std::string name;
  int64_t made_s = 0;  // Since 1970; 0: not known.
};
[[nodiscard]] std::vector<Ec2Template> TemplatesOf(const XmlElement& answer);

}  // namespace troupe::ec2
