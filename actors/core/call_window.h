// CallWindow: the caller's half of a session, the calls of this process to one actor.
//
//   waiting --sent--> in flight --reply--> settled        (settled calls leave from the front)
//      ^                 |  |
//      +--missing, full--+  +--given up: its waiter has an error, the number stays until settled
//
// Calls get numbers without gaps and are sent in their order. What the receiver has not got is sent
// again under the same number, so a lost frame, in either direction, neither loses nor doubles a
// call. When an incarnation of the actor ends, what was in flight fails or, if it may run again, is
// sent to the next one; what waits, waits on.
// Thread: one at a time. Reads no clock; holds callbacks but never runs one.
// Invariants: AC-1 calls are sent in the order of Add. AC-2 each call is settled exactly once.
// AC-3 no call is settled later than the first Sweep after its deadline. AC-4 a call without
// `retry` is never sent to two incarnations.
// Limits: kWindowCallsMax calls, kWindowBytesMax bytes of arguments; more is kBackpressure.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/core/protocol.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::actors {

inline constexpr size_t kWindowCallsMax = 1'000'000;
inline constexpr size_t kWindowBytesMax = size_t{1} << 30;
inline constexpr Duration kCheckAfter = milliseconds(200);  // Without a reply; doubles up to the
inline constexpr Duration kCheckAtMost = seconds(2);        // second while nothing changes.
inline constexpr size_t kCheckNumbersMax = 1000;
inline constexpr size_t kInFlightMax = 4096;  // More wait for the replies to these.

using CallDone = std::function<void(Result<std::string>)>;

// A call that is over, for its waiter.
struct SettledCall {
  CallDone done;
  Result<std::string> result;
  std::string arguments;  // What it was called with, to be dropped where nobody waits for that.
};

class CallWindow {
 public:
  struct Call {
    std::string method;
    std::string arguments;
    Time deadline = Time::Never();
    bool retry = false;  // May run again in another incarnation.
    CallDone done;
  };

  // `first`: the number of its first call, greater than any that this process has used towards the
  // actor before.
  CallWindow(std::string actor, uint64_t first)
      : actor_(std::move(actor)), base_(first), next_send_(first) {}

  // The call's number.
  Result<uint64_t> Add(Call call);
  // From now on calls go to this incarnation.
  void Bind(uint64_t incarnation);
  // The incarnation has ended. `final`: there will be no other. What must fail is returned.
  [[nodiscard]] std::vector<SettledCall> Unbind(const Error& why, bool final);
  // What is to be sent now, in this order.
  [[nodiscard]] std::vector<ActorCall> TakeSendable(Time now);
  [[nodiscard]] std::optional<SettledCall> OnReply(ActorReply reply);
  void OnMissing(const std::vector<uint64_t>& numbers);
  void OnFull(Time now, uint64_t number);
  void OnRoom() { full_until_ = Time{}; }
  // The waiter does not want it any more; whether the receiver has to be told, again if it is
  // given up again.
  struct GivenUp {
    std::optional<SettledCall> settled;
    bool tell = false;
  };
  [[nodiscard]] GivenUp Cancel(uint64_t number, const Error& why);
  // Calls whose deadline has passed. `unbound`: why there is nobody to send them to.
  [[nodiscard]] std::vector<SettledCall> Sweep(Time now, const std::string& unbound = "");
  // A question for the receiver, if it has been silent for long enough.
  [[nodiscard]] std::optional<ActorCheck> TakeCheck(Time now);

  [[nodiscard]] bool bound() const { return bound_; }
  [[nodiscard]] uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] uint64_t base() const { return base_; }
  [[nodiscard]] size_t open() const { return open_; }  // Calls with a waiter.

 private:
  enum class State : uint8_t { kWaiting, kInFlight, kSettled };
  struct Entry {
    Call call;
    State state = State::kWaiting;
    bool given_up = false;
    bool exposed = false;  // Sent: even if refused or missed, a copy may have run since.
  };

  Entry* Find(uint64_t number);
  SettledCall Finish(Entry& entry, Result<std::string> result);
  void Settle(Entry& entry);

  const std::string actor_;
  std::deque<Entry> entries_;  // The first has number base_.
  uint64_t base_;
  uint64_t next_send_;  // Nothing below waits to be sent.
  bool bound_ = false;
  uint64_t incarnation_ = 0;
  size_t open_ = 0;
  size_t in_flight_ = 0;
  size_t bytes_ = 0;
  Time full_until_{};  // Until then nothing is sent: the mailbox has no room.
  Time first_deadline_ = Time::Never();
  Time check_at_ = Time::Never();
  Duration check_after_ = kCheckAfter;
};

}  // namespace troupe::actors
