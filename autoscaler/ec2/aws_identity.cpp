#include "autoscaler/ec2/aws_identity.h"

#include <algorithm>

#include "autoscaler/cloud_text.h"

namespace troupe::ec2 {

Result<AwsCredentials> AwsIdentity::Credentials(const AwsSend& send) {
  const std::lock_guard lock(mu_);
  const int64_t now_s = Wall_s();
  const auto left_s = [&] { return *held_->expires_s - now_s; };
  if (held_ && (!held_->expires_s || left_s() > kRenewAhead_s)) return *held_;
  if (held_ && left_s() > 0 && now_s < try_again_s_) return *held_;
  Result<AwsCredentials> found = chain_.Credentials(send);
  if (found.ok()) {
    held_ = *found;
    // Of a source that only hands out what it has, and has nothing newer yet.
    try_again_s_ = now_s + kRenewPause_s;
    return found;
  }
  if (!held_ || left_s() <= 0) return found;
  try_again_s_ = now_s + kRenewPause_s;
  return *held_;
}

void AwsIdentity::Forget(const AwsCredentials& refused) {
  const std::lock_guard lock(mu_);
  if (held_ && held_->key_id == refused.key_id && held_->token == refused.token) held_.reset();
}

Result<std::string> AwsIdentity::Region(const AwsSend& send) {
  const std::lock_guard lock(mu_);
  if (region_) return *region_;
  Result<std::string> region = chain_.Region(send);
  if (!region.ok()) return region;
  // It becomes part of a host's name.
  const bool plain = std::ranges::all_of(
      *region, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
  if (!plain || region->size() > 40)
    return Error{ErrorCode::kInvalidArgument,
                 "\"" + Printable(*region, 40) + "\" is no region of AWS; see ec2.region"};
  region_ = *region;
  return region;
}

}  // namespace troupe::ec2
