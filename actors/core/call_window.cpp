#include "actors/core/call_window.h"

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

constexpr Duration kFullRetry = milliseconds(200);  // The word of room may be lost.

}  // namespace

Result<uint64_t> CallWindow::Add(Call call) {
  if (entries_.size() >= kWindowCallsMax || bytes_ + call.arguments.size() > kWindowBytesMax) {
    return Error{ErrorCode::kBackpressure,
                 std::to_string(open_) +
                     " calls to this actor wait for their replies already; "
                     "wait for some of them, then call it again"};
  }
  bytes_ += call.arguments.size();
  first_deadline_ = std::min(first_deadline_, call.deadline);
  ++open_;
  entries_.push_back(Entry{std::move(call), State::kWaiting, false, false});
  return base_ + entries_.size() - 1;
}

void CallWindow::Bind(uint64_t incarnation) {
  bound_ = true;
  incarnation_ = incarnation;
  full_until_ = Time{};
  next_send_ = base_;
}

CallWindow::Entry* CallWindow::Find(uint64_t number) {
  if (number < base_ || number - base_ >= entries_.size()) return nullptr;
  return &entries_[number - base_];
}

// For its waiter it is over; its number is not before the receiver has settled it.
SettledCall CallWindow::Finish(Entry& entry, Result<std::string> result) {
  entry.given_up = true;
  --open_;
  bytes_ -= entry.call.arguments.size();
  entry.call.method.clear();
  return {std::exchange(entry.call.done, nullptr), std::move(result),
          std::exchange(entry.call.arguments, {})};
}

void CallWindow::Settle(Entry& entry) {
  --in_flight_;
  entry.state = State::kSettled;
  while (!entries_.empty() && entries_.front().state == State::kSettled) {
    entries_.pop_front();
    ++base_;
  }
  next_send_ = std::max(next_send_, base_);
}

std::vector<SettledCall> CallWindow::Unbind(const Error& why, bool final) {
  std::vector<SettledCall> failed;
  bound_ = false;
  for (Entry& entry : entries_) {
    // Also what is settled and not the first: the next incarnation may never have heard of it, and
    // would wait for its number.
    entry.state = State::kWaiting;
    if (entry.given_up || (!final && (!entry.exposed || entry.call.retry))) continue;
    const char* ran = entry.exposed ? " (the call was on its way; it may have run)" : "";
    failed.push_back(Finish(entry, Error{ErrorCode::kPeerGone, why.message + ran, why.origin}));
  }
  if (final) {
    base_ += entries_.size();
    entries_.clear();
    bytes_ = 0;
  }
  next_send_ = base_;
  in_flight_ = 0;
  check_at_ = Time::Never();
  return failed;
}

std::vector<ActorCall> CallWindow::TakeSendable(Time now) {
  std::vector<ActorCall> calls;
  if (!bound_ || now < full_until_) return calls;
  for (; next_send_ - base_ < entries_.size() && in_flight_ < kInFlightMax; ++next_send_) {
    Entry& entry = entries_[next_send_ - base_];
    if (entry.state != State::kWaiting) continue;
    entry.state = State::kInFlight;
    ++in_flight_;
    ActorCall call;
    call.actor = actor_;
    call.incarnation = incarnation_;
    call.number = next_send_;
    call.base = base_;
    if (!entry.given_up) {  // Else it is sent as nothing, which settles its number.
      entry.exposed = true;
      call.method = entry.call.method;
      call.arguments = entry.call.arguments;
      const Duration left = entry.call.deadline - now;
      call.timeout_ms = static_cast<uint64_t>(
          std::max<int64_t>(1, std::chrono::ceil<milliseconds>(left).count()));
    }
    calls.push_back(std::move(call));
  }
  if (!calls.empty()) {
    check_after_ = kCheckAfter;
    check_at_ = now + check_after_;
  }
  return calls;
}

std::optional<SettledCall> CallWindow::OnReply(ActorReply reply) {
  Entry* entry = Find(reply.number);
  // A reply to what is not in flight is of an incarnation that is over, or a repeat.
  if (entry == nullptr || entry->state != State::kInFlight) return std::nullopt;
  std::optional<SettledCall> settled;
  if (!entry->given_up) {
    settled = Finish(*entry, reply.error.empty() ? Result<std::string>(std::move(reply.value))
                                                 : Result<std::string>(FromChain(reply.error)));
  }
  Settle(*entry);
  check_after_ = kCheckAfter;
  return settled;
}

void CallWindow::OnMissing(const std::vector<uint64_t>& numbers) {
  for (const uint64_t number : numbers) {
    Entry* entry = Find(number);
    if (entry == nullptr || entry->state != State::kInFlight) continue;
    entry->state = State::kWaiting;
    --in_flight_;
    next_send_ = std::min(next_send_, number);
  }
}

void CallWindow::OnFull(Time now, uint64_t number) {
  full_until_ = now + kFullRetry;
  for (uint64_t n = std::max(number, base_); n - base_ < entries_.size(); ++n) {
    Entry& entry = entries_[n - base_];
    if (entry.state != State::kInFlight) continue;
    entry.state = State::kWaiting;
    --in_flight_;
  }
  next_send_ = std::min(next_send_, std::max(number, base_));
}

CallWindow::GivenUp CallWindow::Cancel(uint64_t number, const Error& why) {
  Entry* entry = Find(number);
  if (entry == nullptr || entry->state == State::kSettled) return {};
  const bool tell = entry->state == State::kInFlight;
  if (entry->given_up) return {std::nullopt, tell};
  return {Finish(*entry, why), tell};
}

std::vector<SettledCall> CallWindow::Sweep(Time now, const std::string& unbound) {
  std::vector<SettledCall> late;
  if (now < first_deadline_) return late;
  first_deadline_ = Time::Never();
  for (Entry& entry : entries_) {
    if (entry.state == State::kSettled || entry.given_up) continue;
    if (entry.call.deadline > now) {
      first_deadline_ = std::min(first_deadline_, entry.call.deadline);
      continue;
    }
    const std::string unreached = "the actor could not be reached within the call's deadline";
    std::string where = !bound_ ? unreached + (unbound.empty() ? "" : ": it is " + unbound)
                        : entry.state == State::kWaiting
                            ? "the actor's mailbox had no room within the call's deadline"
                            : "the actor did not answer within the call's deadline";
    late.push_back(Finish(entry, Error{ErrorCode::kDeadlineExceeded, where}));
  }
  return late;
}

std::optional<ActorCheck> CallWindow::TakeCheck(Time now) {
  if (!bound_ || now < check_at_) return std::nullopt;
  ActorCheck check{actor_, incarnation_, base_, {}};
  for (uint64_t n = base_; n - base_ < entries_.size(); ++n) {
    if (entries_[n - base_].state != State::kInFlight) continue;
    check.numbers.push_back(n);
    if (check.numbers.size() == kCheckNumbersMax) break;
  }
  if (check.numbers.empty()) {
    check_at_ = Time::Never();
    return std::nullopt;
  }
  check_after_ = std::min(2 * check_after_, kCheckAtMost);
  check_at_ = now + check_after_;
  return check;
}

}  // namespace troupe::actors
