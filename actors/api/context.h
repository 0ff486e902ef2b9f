// CallContext: what a running method can ask about its call, and wait with.
//
//   int Work(troupe::CallContext& call, int steps) {   // Or CallContext::Current().
//     for (int i = 0; i < steps; ++i)
//       if (!call.Check().ok()) return i;              // Nobody waits for the rest.
//   }
//
// A method that is described with a CallContext& first gets it; arguments follow.
// Thread: the method's fiber; cancelled() and Check() also others while the method runs.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/core/protocol.h"
#include "runtime/clock.h"
#include "runtime/executor.h"
#include "runtime/result.h"

namespace troupe {
namespace actors {
class ActorSystem;
class CpuLoan;

// One call that runs. Shared with whoever may cancel it.
class RunningCall {
 public:
  // Again only to force what was asked for before.
  void Cancel(const Cancellation& how);
  [[nodiscard]] bool cancelled() const;
  // How; nothing if it is not.
  [[nodiscard]] std::optional<Cancellation> cancellation() const;
  // Called when the call is cancelled, and once more if it is forced later; at once if it is
  // already.
  void OnCancel(std::function<void(const Cancellation& how)> fn);
  // Waits for `event`; a cancellation ends the wait.
  [[nodiscard]] Status Await(FiberEvent& event, Duration limit, Time deadline);

 private:
  mutable std::mutex mu_;
  std::optional<Cancellation> cancelled_;
  std::function<void(const Cancellation& how)> on_cancel_;
  FiberEvent* waiting_ = nullptr;
};
}  // namespace actors

class CallContext {
 public:
  CallContext(actors::ActorSystem* system, const actors::ActorAddress* self, std::string caller,
              Time deadline, std::shared_ptr<actors::RunningCall> call)
      : system_(system),
        self_(self),
        caller_(std::move(caller)),
        deadline_(deadline),
        call_(std::move(call)) {}

  // Of the method that runs on this fiber; null elsewhere.
  [[nodiscard]] static CallContext* Current();

  // The process that called; empty: this one.
  [[nodiscard]] const std::string& caller() const { return caller_; }
  [[nodiscard]] Time deadline() const { return deadline_; }
  [[nodiscard]] bool cancelled() const { return call_->cancelled(); }
  // kCancelled or kDeadlineExceeded if nobody waits for the result any more.
  [[nodiscard]] Status Check() const;
  // Lets the actor's other calls run meanwhile; ends early, with Check's error.
  [[nodiscard]] Status Sleep(Duration duration);
  [[nodiscard]] const actors::ActorAddress& self() const { return *self_; }
  // Whether the actor has died and was started again, by max_restarts or a drain.
  [[nodiscard]] bool restarted() const { return self_->incarnation > 1; }
  [[nodiscard]] actors::ActorSystem& system() const { return *system_; }
  [[nodiscard]] const std::shared_ptr<actors::RunningCall>& call() const { return call_; }
  // Ends the actor when this method has returned; it is not restarted. Whoever watches it is told
  // `reason`.
  void Exit(std::string reason = "it has ended itself") { exit_reason_ = std::move(reason); }
  [[nodiscard]] const std::string& exit_reason() const { return exit_reason_; }

  // Where its waits are counted; null: nowhere.
  void set_loan(actors::CpuLoan* loan) { loan_ = loan; }
  [[nodiscard]] actors::CpuLoan* loan() const { return loan_; }

  // Of an instance whose methods run on threads of its own: sends the result off at once, from
  // there, while Invoke waits on its fiber; what Invoke returns then is dropped. False if the
  // result has to take the usual way.
  using AnswerNow = std::function<bool(const Result<std::string>&)>;
  void set_answer_now(AnswerNow fn) { answer_now_ = std::move(fn); }
  [[nodiscard]] const AnswerNow& answer_now() const { return answer_now_; }

 private:
  actors::ActorSystem* const system_;
  const actors::ActorAddress* const self_;
  const std::string caller_;
  const Time deadline_;
  const std::shared_ptr<actors::RunningCall> call_;
  std::string exit_reason_;
  AnswerNow answer_now_;
  actors::CpuLoan* loan_ = nullptr;
};

}  // namespace troupe
