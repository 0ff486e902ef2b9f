#include "autoscaler/ec2/aws_identity.h"

#include <algorithm>
#include <cstdlib>

#include "autoscaler/notices/notice.h"

namespace troupe::ec2 {

Result<AwsCredentials> AwsIdentity::Credentials(const AwsSend& send) {
  const std::lock_guard lock(mu_);
  const int64_t now_s = chain_.world().wall_s() + offset_s_;
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

int64_t AwsIdentity::Wall_s() const {
  const std::lock_guard lock(mu_);
  return chain_.world().wall_s() + offset_s_;
}

bool AwsIdentity::CorrectClock(const HttpReply& reply) {
  const auto date = reply.headers.find("date");
  const auto told_s =
      date == reply.headers.end() ? std::nullopt : notices::ParseHttpTime(date->second);
  if (!told_s) return false;
  const std::lock_guard lock(mu_);
  const int64_t here_s = chain_.world().wall_s();
  if (std::abs(*told_s - here_s - offset_s_) <= kClockOff_s) return false;
  offset_s_ = *told_s - here_s;
  return true;
}

}  // namespace troupe::ec2
