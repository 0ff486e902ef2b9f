// The files in which Amazon's tools keep profiles: ~/.aws/config and ~/.aws/credentials.
//
// Pure.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace troupe::ec2 {

using AwsProfile = std::map<std::string, std::string>;
using AwsProfiles = std::map<std::string, AwsProfile>;

// Of text in their INI format. `config`: sections are called "profile NAME", but for "default", and
// others are no profiles. What cannot be read is passed over, as by Amazon's tools; settings that
// are indented belong to a service, and are passed over, too.
[[nodiscard]] AwsProfiles ParseAwsProfiles(std::string_view text, bool config);

}  // namespace troupe::ec2
