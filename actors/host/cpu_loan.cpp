#include "actors/host/cpu_loan.h"

#include <utility>

#include "runtime/assert.h"

namespace troupe::actors {

void CpuLoan::Count(int calls, int waits) {
  {
    std::lock_guard lock(mu_);
    const bool waited = AllWait();
    calls_ += calls;
    waits_ += waits;
    TROUPE_ASSERT(calls_ >= 0 && waits_ >= 0, "a call or a wait ended that had not begun");
    if (!AllWait()) {
      if (std::exchange(lent_, false)) tell_(++number_, false);
      return;
    }
    if (!waited) all_wait_since_ = loop_->Now();
    if (lent_ || std::exchange(looking_, true)) return;
  }
  LookAfter(kLendAfter);
}

void CpuLoan::LookAfter(Duration delay) {
  loop_->Post([loop = loop_, delay, weak = weak_from_this()] {
    loop->CallAfter(delay, [weak] {
      if (const auto alive = weak.lock()) alive->Look();
    });
  });
}

void CpuLoan::Look() {
  Duration left = Duration::zero();
  {
    std::lock_guard lock(mu_);
    looking_ = false;
    if (!AllWait() || lent_) return;
    left = all_wait_since_ + kLendAfter - loop_->Now();
    if (left <= Duration::zero()) {
      lent_ = true;
      return tell_(++number_, true);
    }
    looking_ = true;
  }
  LookAfter(left);
}

}  // namespace troupe::actors
