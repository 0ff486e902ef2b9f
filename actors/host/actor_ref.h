// ActorRef: what a handle refers to, whatever process the actor is in.
//
// Thread: any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/core/call_window.h"
#include "actors/core/protocol.h"

namespace troupe {

inline constexpr Duration kCallTimeout = seconds(60);

struct CallOptions {
  Duration timeout = kCallTimeout;  // Until it completes, waiting for a restart included.
  // If the actor dies while the call is on its way: send it again to its next incarnation. Where
  // state is saved it has its effect once even so, else it may run twice.
  bool retry = false;
};

namespace actors {

// Every actor answers this method with nothing, in turn.
inline constexpr const char* kPing = "troupe.ping";
// And this one with whether it is needed, as kIsNeeded or nothing. See Instance.
inline constexpr const char* kNeeded = "troupe.needed";
inline constexpr const char* kIsNeeded = "needed";

class ActorRef {
 public:
  using OnDown = std::function<void(const Error& reason)>;

  virtual ~ActorRef() = default;
  // What others need to reach it.
  [[nodiscard]] virtual ActorAddress address() const = 0;
  // `done` runs exactly once, at the latest soon after the time-out, on a thread of the runtime or,
  // if it is refused, on this one. Returns what Cancel takes; 0 if it is over already.
  virtual uint64_t Call(std::string method, std::string arguments, const CallOptions& options,
                        CallDone done) = 0;
  // Its waiter is told at once. Again to force what was asked for before.
  virtual void Cancel(uint64_t call, const Cancellation& how) = 0;
  // `down` runs once when the actor has ended for good; at once if it has. Returns what Demonitor
  // takes.
  virtual uint64_t Monitor(OnDown down) = 0;
  virtual void Demonitor(uint64_t monitor) = 0;
  // Ends it. `restart`: the cluster may start it again, as after a crash.
  virtual void Kill(bool restart, const std::string& reason, CallDone done) = 0;
  // Why it cannot be called now; empty if it can, or nothing is known.
  [[nodiscard]] virtual std::string WhyNot() const { return ""; }
  // Why there is no room for it; empty if it has some, or that is not known.
  [[nodiscard]] virtual std::string RoomReason() const { return ""; }
};

// Why a call of it has no answer yet: "Till 5f0c is pending: no node has ..."
[[nodiscard]] inline std::string WhyNoAnswer(const ActorRef& ref) {
  const ActorAddress address = ref.address();
  const std::string why = ref.WhyNot();
  return address.type + " " + address.actor + (why.empty() ? " has not answered" : " is " + why);
}

}  // namespace actors
}  // namespace troupe
