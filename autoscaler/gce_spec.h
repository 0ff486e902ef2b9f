// What a cluster file says of Google Compute Engine.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe {

struct GceSpec {
  std::string project;      // Empty, also of the next two: as Google's tools find it.
  std::string credentials;  // A file, from the cluster file's folder on.
  std::string endpoint;
  std::string image;              // "projects/p/global/images/family/f", or a name of the project.
  std::string network;            // Empty, also of the next one: the default one.
  std::string subnetwork;         // A name in the region of the pool, or a path.
  bool external_ip = true;        // Without one a NAT leads out.
  std::string service_account;    // Of instances; empty: none.
  std::string instance_template;  // What else they are like.
  std::string disk_type;
  int64_t disk_gb = 0;  // 0: as the image has it.
  std::string target_shape;
  std::map<std::string, std::string> labels;
  Duration timeout = seconds(60);  // Of one request, with its repetitions.
  Duration interval = seconds(5);  // Between two listings.
};

// A label holds lower-case letters, digits, - and _, 63 at most. What it stands for may have more:
// that is escaped, the same for the same text. Labels of two texts differ.
[[nodiscard]] std::string GceLabelOf(const std::string& text);
// The way back.
[[nodiscard]] std::string TextOfGceLabel(const std::string& label);
inline constexpr size_t kGceLabelMax = 63;
// "us-central1" of "us-central1-a".
[[nodiscard]] std::string GceRegionOf(const std::string& zone);

}  // namespace troupe
