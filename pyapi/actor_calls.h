// Calls of Python to actors: their results, who waits for them, and what was done about them.
//
// No thread of the runtime ever takes the GIL: what completes is put into a Completions, from which
// a Python thread takes it.
// Thread: any.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/api/future.h"
#include "actors/host/actor_ref.h"
#include "actors/host/actor_system.h"
#include "pyapi/completions.h"

namespace troupe::pyapi {

namespace py = pybind11;

// The result of one call, which does not change any more once it is there.
class CallState {
 public:
  CallState() = default;
  ~CallState();
  CallState(const CallState&) = delete;
  CallState& operator=(const CallState&) = delete;

  void Complete(Result<std::string> result);
  // Nobody waits for it any more.
  void GiveUp();
  [[nodiscard]] bool Ready() const;
  // Set when it is ready.
  [[nodiscard]] FiberEvent& done() { return done_; }
  // When it is ready.
  [[nodiscard]] const Result<std::string>& result() const;
  // Runs `fn` once, here and now if it is ready (then the id is 0), else where it is completed.
  uint64_t OnComplete(std::function<void()> fn);
  void Remove(uint64_t id);
  // The segments that its value names are taken care of by somebody.
  void Claim() { claimed_.store(true); }

 private:
  FiberEvent done_;
  mutable std::mutex mu_;
  std::optional<Result<std::string>> result_;
  std::map<uint64_t, std::function<void()>> then_;
  uint64_t next_ = 1;
  std::atomic<bool> claimed_{false};
  uint64_t contents_ =
      0;  // By which Python keeps what the value refers to; 0: it refers to nothing.
};

// A shared pointer that a forked child must not let go of: what it holds belongs to threads that
// exist in the parent only.
template <class T>
class OwnedHere {
 public:
  explicit OwnedHere(std::shared_ptr<T> held)
      : held_(std::make_unique<std::shared_ptr<T>>(std::move(held))), pid_(::getpid()) {}
  OwnedHere(const OwnedHere&) = delete;
  OwnedHere& operator=(const OwnedHere&) = delete;
  ~OwnedHere() {
    if (::getpid() != pid_) (void)held_.release();
  }
  T* operator->() const { return held_->get(); }
  [[nodiscard]] const std::shared_ptr<T>& get() const { return *held_; }
  [[nodiscard]] bool here() const { return ::getpid() == pid_; }

 private:
  std::unique_ptr<std::shared_ptr<T>> held_;
  const pid_t pid_;
};

class PyCall {
 public:
  // A call of an actor, a task, or neither: somebody else completes it.
  PyCall(std::shared_ptr<CallState> state, std::shared_ptr<actors::PendingCall> call)
      : state_(std::move(state)), call_(std::move(call)) {}
  [[nodiscard]] const std::shared_ptr<CallState>& state() const { return state_; }
  [[nodiscard]] const std::shared_ptr<actors::PendingCall>& pending() const { return call_.get(); }
  // Not in a forked child.
  [[nodiscard]] bool here() const { return call_.here(); }
  void Cancel(const actors::Cancellation& how);
  // Not on a fiber; without the GIL. This thread may run the runtime's loop meanwhile.
  bool WaitFor(Duration limit) const;
  // What it waits for; empty if that is not known.
  [[nodiscard]] std::string WhyNot() const;

 private:
  const std::shared_ptr<CallState> state_;
  const OwnedHere<actors::PendingCall> call_;
};

class HeldRef;  // pyapi/object_refs.h

class PyActorRef {
 public:
  // `held` counts this as a handle of its actor, and so do its calls until they are over; null:
  // nobody does.
  PyActorRef(std::shared_ptr<actors::ActorRef> ref, std::shared_ptr<actors::ActorSystem> system,
             std::shared_ptr<HeldRef> held = nullptr)
      : ref_(std::move(ref)), system_(std::move(system)), held_(std::move(held)) {}
  [[nodiscard]] actors::ActorRef& ref() const { return *ref_.get(); }
  [[nodiscard]] const std::shared_ptr<HeldRef>& held() const { return held_; }
  // Tells `completions` of `token` when it has ended for good, as long as this lives.
  void TellGone(const std::shared_ptr<Completions>& completions, uint64_t token) const;
  [[nodiscard]] std::unique_ptr<PyCall> Call(const std::string& method, const py::bytes& arguments,
                                             double timeout_s, bool retry) const;
  // The same of bytes that are moved.
  [[nodiscard]] std::unique_ptr<PyCall> Send(const std::string& method, std::string arguments,
                                             double timeout_s, bool retry) const;
  // Not in a forked child.
  [[nodiscard]] bool here() const { return ref_.here(); }
  void Kill(bool restart, const std::string& reason, double limit_s) const;
  // Whether it is known to have ended for good.
  [[nodiscard]] bool Gone() const;

 private:
  const OwnedHere<actors::ActorRef> ref_;
  const OwnedHere<actors::ActorSystem> system_;
  const std::shared_ptr<HeldRef> held_;
};

// Who is told of values that refer to something, in this process.
void SetValueReader(const std::shared_ptr<Completions>& completions);
// The segments that a payload names are not for its receiver to unlink, and nobody waits for its
// receiver to take what it refers to.
void DisownSegments(std::string& payload);
// Who needs the segments that a payload names, and is on another host, asks `home` for them from
// now on, if they are on this host.
void Rehome(std::string& payload, const std::string& home);

void BindCalls(py::module_& m);

}  // namespace troupe::pyapi
