// ActorClient: the caller's side. Sends calls to actors' processes and completes futures with their
// replies.
//
// Future<R> can be waited for from a fiber or a thread; Then runs when it is complete. Every call
// has a deadline: a lost reply, a dead actor and a full mailbox all end in a typed error.
// Thread: any.
// Owns: its transport and the calls in flight.
// Limits: kCallsInFlightMax.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/actor_type.h"
#include "runtime/executor.h"
#include "runtime/transport.h"

namespace troupe {

inline constexpr Duration kCallTimeout = seconds(60);
inline constexpr size_t kCallsInFlightMax = 1'000'000;

template <class R>
class Future {
 public:
  using Value = std::conditional_t<std::is_void_v<R>, bool, R>;  // void calls yield true.

  Future() : state_(std::make_shared<State>()) {}

  // The result; kDeadlineExceeded if it is not there within `limit` (the call goes on).
  Result<Value> Get(Duration limit = kCallTimeout + seconds(1)) const {
    if (!state_->ready.WaitFor(limit)) return Error{ErrorCode::kDeadlineExceeded, "no result yet"};
    return *state_->result;
  }
  [[nodiscard]] bool Ready() const { return state_->ready.IsSet(); }
  // Runs `fn(const Result<Value>&)` once, when complete (at once if it already is), on the
  // completing thread: it must not block.
  void Then(std::function<void(const Result<Value>&)> fn) const {
    {
      std::lock_guard lock(state_->mu);
      if (!state_->result) {
        state_->then.push_back(std::move(fn));
        return;
      }
    }
    fn(*state_->result);
  }
  void Complete(Result<Value> result) const {
    std::vector<std::function<void(const Result<Value>&)>> then;
    {
      std::lock_guard lock(state_->mu);
      if (state_->result) return;
      state_->result = std::move(result);
      then.swap(state_->then);
    }
    state_->ready.Set();
    for (const auto& fn : then) fn(*state_->result);
  }

 private:
  struct State {
    std::mutex mu;
    std::optional<Result<Value>> result;
    std::vector<std::function<void(const Result<Value>&)>> then;
    FiberEvent ready;
  };
  std::shared_ptr<State> state_;
};

namespace actors {

class ActorClient {
 public:
  using Callback = std::function<void(Result<std::string>)>;

  explicit ActorClient(std::unique_ptr<Transport> transport);
  ~ActorClient();

  Status Connect(const PeerAddress& actor) { return transport_->Connect(actor); }
  // `done` runs exactly once, on the loop or, for an immediate refusal, on the caller's thread.
  void Call(const std::string& actor, const std::string& method, std::string arguments,
            Duration timeout, const Callback& done);
  // Completes every call to `actor` with kPeerGone and refuses later ones.
  void Lost(const std::string& actor, const std::string& why);

 private:
  struct Pending {
    std::string actor;
    Callback done;
    Time deadline{};
  };
  void OnFrame(const std::string& frame);
  void Sweep();

  std::unique_ptr<Transport> transport_;
  std::mutex mu_;
  std::map<uint64_t, Pending> pending_;
  std::map<std::string, std::string> lost_;
  uint64_t next_id_ = 1;
};

}  // namespace actors
}  // namespace troupe
