// Who asks AWS: credentials that are renewed before they expire.
//
// Thread: any. Whoever needs credentials while another thread renews them waits for it, no longer
// than the links of the chain do.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "autoscaler/ec2/aws_chain.h"
#include "autoscaler/ec2/aws_query.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::ec2 {

inline constexpr int64_t kRenewAhead_s = 300;  // Of an expiry.
inline constexpr int64_t kRenewPause_s = 30;   // After a renewal that failed, while the old serve.

class AwsIdentity {
 public:
  explicit AwsIdentity(AwsChain chain) : chain_(std::move(chain)) {}

  // Good for a while; the old ones, if they still are and new ones cannot be had.
  Result<AwsCredentials> Credentials(const AwsSend& send);
  // AWS takes these for expired: the next call looks for others.
  void Forget(const AwsCredentials& refused);
  // Found once.
  Result<std::string> Region(const AwsSend& send);
  [[nodiscard]] std::string Endpoint(const std::string& region) const {
    return chain_.Endpoint("ec2", region);
  }
  // Seconds since 1970, by this host.
  [[nodiscard]] int64_t Wall_s() const { return chain_.world().wall_s(); }

 private:
  const AwsChain chain_;
  std::mutex mu_;  // Of what follows.
  std::optional<AwsCredentials> held_;
  std::optional<std::string> region_;
  int64_t try_again_s_ = 0;
};

}  // namespace troupe::ec2
