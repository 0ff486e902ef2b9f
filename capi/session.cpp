#include "capi/internal/session.h"

namespace troupe::capi {
namespace {

constexpr Duration kStopLimit = seconds(2);  // For methods that run in this process.

}  // namespace

Result<Session::Use> Session::Enter() {
  std::lock_guard lock(mu_);
  if (closed_) return Error{ErrorCode::kCancelled, "this runtime was shut down"};
  ++users_;
  return Use(shared_from_this());
}

void Session::Leave() {
  std::lock_guard lock(mu_);
  if (--users_ == 0) left_.notify_all();
}

Status Session::End(Duration limit) {
  if (!ours_)
    return Error{ErrorCode::kInvalidArgument,
                 "the runtime of a method is its process's; it cannot be shut down"};
  {
    std::lock_guard lock(mu_);
    closed_ = true;
  }
  system_->Stop(kStopLimit);
  std::unique_lock lock(mu_);
  if (!left_.wait_for(lock, limit, [this] { return users_ == 0; }))
    return Error{ErrorCode::kDeadlineExceeded,
                 "calls of other threads have not returned yet; shut it down again"};
  std::optional<Cluster> ended = std::move(runtime_);
  runtime_.reset();
  lock.unlock();
  ended.reset();
  return Status::Ok();
}

}  // namespace troupe::capi
