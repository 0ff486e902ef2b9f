// CpuLoan: whether all calls that run in this process wait, so that others may use its CPU.
//
// Calls and their waits are counted. When every running call has waited for kLendAfter, the CPU is
// lent; the moment one goes on, or another begins, it is taken back. A wait that is shorter tells
// nobody anything.
// Thread: any.
// Invariants: CL-1 it is not lent while a call runs that does not wait. CL-2 numbers of what is
// told count up, and lent and taken back alternate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/event_loop.h"

namespace troupe::actors {

inline constexpr Duration kLendAfter = milliseconds(2);

class CpuLoan final : public std::enable_shared_from_this<CpuLoan> {
 public:
  // Must not block; runs where a wait begins or ends, or on the loop.
  using Tell = std::function<void(uint64_t number, bool lent)>;

  CpuLoan(EventLoop* loop, Tell tell) : loop_(loop), tell_(std::move(tell)) {}

  void CallBegan() { Count(1, 0); }
  void CallEnded() { Count(-1, 0); }
  // Of a call that runs, for what only others can bring about.
  void WaitBegan() { Count(0, 1); }
  void WaitEnded() { Count(0, -1); }

 private:
  void Count(int calls, int waits);
  void LookAfter(Duration delay);
  void Look();
  [[nodiscard]] bool AllWait() const { return calls_ > 0 && waits_ >= calls_; }

  EventLoop* const loop_;
  const Tell tell_;

  std::mutex mu_;
  int calls_ = 0;
  int waits_ = 0;
  bool looking_ = false;  // Look is due.
  bool lent_ = false;
  uint64_t number_ = 0;
  Time all_wait_since_{};
};

// As long as it lives a call runs, or waits. Null: nobody counts.
class LoanCall {
 public:
  explicit LoanCall(CpuLoan* loan) : loan_(loan) {
    if (loan_ != nullptr) loan_->CallBegan();
  }
  ~LoanCall() {
    if (loan_ != nullptr) loan_->CallEnded();
  }
  LoanCall(const LoanCall&) = delete;
  LoanCall& operator=(const LoanCall&) = delete;

 private:
  CpuLoan* const loan_;
};

class LoanWait {
 public:
  explicit LoanWait(CpuLoan* loan) : loan_(loan) {
    if (loan_ != nullptr) loan_->WaitBegan();
  }
  ~LoanWait() {
    if (loan_ != nullptr) loan_->WaitEnded();
  }
  LoanWait(const LoanWait&) = delete;
  LoanWait& operator=(const LoanWait&) = delete;

 private:
  CpuLoan* const loan_;
};

}  // namespace troupe::actors
