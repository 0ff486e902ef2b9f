// ChildCalls: the calls that one call has made, so that they can be given up with it.
//
// Thread: any.
// Limits: one entry for each call that is not over, and at most as many again.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "pyapi/actor_calls.h"

namespace troupe::pyapi {

class ChildCalls {
 public:
  // Given up at once if its parent is.
  void Add(const PyCall& call);
  void Cancel(const actors::Cancellation& how);

 private:
  struct Child {
    std::weak_ptr<CallState> state;  // Gone: nobody has the call any more, and it is over.
    std::shared_ptr<actors::PendingCall> call;
    void Cancel(const actors::Cancellation& how) const;
    [[nodiscard]] bool over() const;
  };

  std::mutex mu_;
  std::vector<Child> children_;
  size_t look_at_ = 64;  // When there are so many, those that are over are forgotten.
  std::optional<actors::Cancellation> cancelled_;
};

}  // namespace troupe::pyapi
