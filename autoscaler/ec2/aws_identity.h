// Who asks AWS, and when it is there: credentials that are renewed before they expire, and a clock
// that is set right by what AWS answers.
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
inline constexpr int64_t kClockOff_s = 60;     // More than this is corrected.

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
  // Seconds since 1970 by AWS's clock, as far as it is known.
  [[nodiscard]] int64_t Wall_s() const;
  // Sets the clock by the reply's Date. True if it was off, so that asking again may help.
  bool CorrectClock(const HttpReply& reply);

 private:
  const AwsChain chain_;
  mutable std::mutex mu_;  // Of what follows.
  std::optional<AwsCredentials> held_;
  std::optional<std::string> region_;
  int64_t try_again_s_ = 0;
  int64_t offset_s_ = 0;
};

}  // namespace troupe::ec2
