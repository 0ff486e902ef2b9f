// What a cluster file says of EC2.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe {

// What has ids of its own in each region.
struct Ec2Region {
  std::string name;
  std::string image;
  std::string key_name;
  std::vector<std::string> security_groups;
  std::vector<std::string> subnets;
  std::string launch_template;  // NAME or lt-ID, with :VERSION if need be.
};

struct Ec2Spec {
  std::string region;  // Empty, also of the next two: as Amazon's tools find it.
  std::string profile;
  std::string endpoint;
  std::string image;
  std::string key_name;
  std::vector<std::string> security_groups;
  std::vector<std::string> subnets;
  std::string instance_profile;            // A name or an ARN.
  std::string launch_template;             // NAME or lt-ID, with :VERSION if need be.
  std::vector<Ec2Region> regions;          // Others than `region`.
  std::string strategy;                    // Of EC2, by which it chooses among spot instances.
  Duration price_interval = seconds(300);  // Between two looks at spot prices; 0: none.
  std::map<std::string, std::string> tags;
  Duration timeout = seconds(60);  // Of one order, listing or end.
  Duration interval = seconds(5);  // Between two listings.
};

}  // namespace troupe
