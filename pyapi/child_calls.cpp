#include "pyapi/child_calls.h"

#include <algorithm>
#include <utility>

namespace troupe::pyapi {

void ChildCalls::Child::Cancel(const actors::Cancellation& how) const {
  if (call) call->Cancel(how);
  if (const auto alive = state.lock()) alive->GiveUp();
}

bool ChildCalls::Child::over() const {
  const auto alive = state.lock();
  return !alive || alive->Ready();
}

void ChildCalls::Add(const PyCall& call) {
  Child child{call.state(), call.pending()};
  std::optional<actors::Cancellation> cancelled;
  {
    std::lock_guard lock(mu_);
    cancelled = cancelled_;
    if (!cancelled) {
      if (children_.size() >= look_at_) {
        std::erase_if(children_, [](const Child& old) { return old.over(); });
        look_at_ = std::max<size_t>(look_at_, 2 * children_.size());
      }
      children_.push_back(std::move(child));
      return;
    }
  }
  child.Cancel(*cancelled);
}

void ChildCalls::Cancel(const actors::Cancellation& how) {
  std::vector<Child> children;
  {
    std::lock_guard lock(mu_);
    cancelled_ = how;
    children = children_;
  }
  for (const Child& child : children) {
    if (!child.over() || how.force) child.Cancel(how);
  }
}

}  // namespace troupe::pyapi
