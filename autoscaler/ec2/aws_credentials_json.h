// Credentials as JSON: of a `credential_process`, a container's agent, and an instance's metadata.
//
// Thread: plain values.
#pragma once

#include <string>
#include <string_view>

#include "autoscaler/ec2/aws_query.h"
#include "runtime/result.h"

namespace troupe::ec2 {

// kCorrupt, without a word of what it says: it may be half a secret.
[[nodiscard]] Result<AwsCredentials> ParseCredentialsJson(std::string_view text);

}  // namespace troupe::ec2
