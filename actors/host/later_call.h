// LaterCall: a call some of whose arguments are futures; it is made when they are complete.
//
// The time-out runs from the beginning. Until the call is made, a cancellation or the time-out ends
// it without anything being sent; afterwards they are the call's own. The calls that the arguments
// come from are not cancelled: others may wait for them.
// Thread: any.
// Limits: kLaterCallsMax of a process; more fail with kBackpressure.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "actors/api/future.h"
#include "actors/host/actor_ref.h"
#include "actors/host/actor_system.h"
#include "actors/host/instance.h"

namespace troupe::actors {

inline constexpr size_t kLaterCallsMax = 100'000;

class LaterCall final : public PendingCall, public std::enable_shared_from_this<LaterCall> {
 public:
  // Makes the call with what is left of its time. What is returned cancels it; null: it is over.
  using Make = std::function<std::shared_ptr<PendingCall>(std::string arguments, Duration left,
                                                          CallDone done)>;
  ~LaterCall() override;
  LaterCall(const LaterCall&) = delete;
  LaterCall& operator=(const LaterCall&) = delete;
  // `done` runs once. Without a system (in tests) nobody watches the time.
  static std::shared_ptr<LaterCall> Start(const std::shared_ptr<ActorSystem>& system,
                                          Duration timeout, const Future<std::string>& arguments,
                                          Make make, CallDone done);
  void Cancel(const Cancellation& how) override;
  void Await(FiberEvent& event, Time until) override;
  [[nodiscard]] std::string WhyNot() const override;

 private:
  LaterCall(const std::shared_ptr<ActorSystem>& system, Make make);
  void OnArguments(const Result<std::string>& arguments);

  const std::weak_ptr<ActorSystem> system_;
  std::shared_ptr<ActorSystem::LocalCall> waiting_;  // Constant once it has begun.
  mutable std::mutex mu_;
  Make make_;
  std::shared_ptr<PendingCall> made_;
  std::optional<Cancellation> cancelled_;
};

// The arguments of a call, encoded when all futures among them are complete; the first error of one
// is the error. The others are kept as what they become, so that nothing is referred to.
template <class P, class... A>
Future<std::string> EncodeLater(A&&... arguments) {
  struct Waiting {
    P pack;
    std::atomic<size_t> missing{1 + (size_t{kIsFuture<A>} + ...)};
    Future<std::string> encoded;
    void Arrived() {
      if (missing.fetch_sub(1) == 1) encoded.Complete(EncodeArguments(pack));
    }
  };
  const auto waiting = std::make_shared<Waiting>();
  size_t place = 0;
  const auto take = [&](auto& slot, auto&& argument) {
    using Argument = decltype(argument);
    ++place;
    if constexpr (kIsFuture<Argument>) {
      argument.OnComplete([waiting, &slot, place](const auto& result) {
        if (!result.ok()) {
          waiting->encoded.Complete(
              result.error().WithContext("argument " + std::to_string(place) + " of the call"));
          return;
        }
        slot = *result;
        waiting->Arrived();
      });
    } else {
      slot = std::forward<Argument>(argument);
    }
  };
  std::apply([&](auto&... slots) { (take(slots, std::forward<A>(arguments)), ...); },
             waiting->pack.values);
  waiting->Arrived();
  return waiting->encoded;
}

}  // namespace troupe::actors
