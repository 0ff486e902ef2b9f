// PyInstance: an actor that is written in Python, as its cell sees it.
//
// A call's fiber puts it into a queue and waits; threads of Python take it from there and answer.
// So Python never runs on a fiber (F-8), and no fiber ever waits for the GIL. A task that runs on
// the main thread is told of its cancellation by a signal; to force it ends the process.
// Thread: the queue: any; an instance: its actor's fibers.
// Invariants: while the state is being saved no call is handed out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/host/instance.h"
#include "pyapi/child_calls.h"

namespace troupe::pyapi {

class RequestQueue;

// One call for Python.
struct PyRequest {
  enum class Kind : uint8_t { kCall, kSave };
  Kind kind = Kind::kCall;
  std::string method;
  std::string arguments;
  std::string caller;
  Time deadline = Time::Never();
  std::shared_ptr<actors::RunningCall> call;  // Null: a save.
  CallContext::AnswerNow answer_now;          // While Await waits.
  std::shared_ptr<RequestQueue> queue;        // That it comes from.
  ChildCalls children;                        // What it has called itself.

  // Once; later answers do nothing. From any thread: what may leave at once does so from here.
  void Answer(Result<std::string> result, std::string exit_reason = "");
  // When it is cancelled.
  void CancelChildren();
  // It is cancelled, and its code has not been interrupted yet.
  [[nodiscard]] bool Unheard() const;
  // Its code has been interrupted. From any thread.
  void Heard() { heard_ = true; }
  // It will not run, or not be heard. What that means to its caller is up to the fiber.
  void Refuse();
  // What it was answered with; `closed`, asked each second, tells that nobody will answer.
  [[nodiscard]] Result<std::string> Await(const std::function<bool()>& closed);
  [[nodiscard]] const std::string& exit_reason() const { return exit_reason_; }

 private:
  void Settle(Result<std::string> result, std::string exit_reason, bool now);

  std::atomic<bool> heard_{false};
  std::mutex mu_;
  bool taken_ = false;  // It is being answered, or was, or nobody waits any more.
  std::optional<Result<std::string>> result_;
  std::string exit_reason_;
  FiberEvent answered_;
};

// Requests that wait for Python. An event descriptor is readable while there may be some, for event
// loops.
class RequestQueue {
 public:
  struct Item {
    std::shared_ptr<PyRequest> request;
    bool cancelled = false;  // It is with Python already, and nobody wants it any more.
  };

  explicit RequestQueue(bool tell_cancelled);
  ~RequestQueue();
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  void Push(const std::shared_ptr<PyRequest>& request);
  void PushCancelled(const std::shared_ptr<PyRequest>& request);
  // nullopt: none came within the limit.
  [[nodiscard]] std::optional<Item> Take(Duration limit);
  // The save that held others back is done.
  void Saved();
  // The fiber of a call whose answer has left need not wake at once: while others lie ready for
  // Python it is woken with those of the calls behind it.
  void SetSoon(FiberEvent event);
  // What is open is answered with kPeerGone, and so is what follows.
  void Close();
  [[nodiscard]] bool closed() const;
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool tell_cancelled() const { return tell_cancelled_; }

 private:
  void Wake() const;

  const bool tell_cancelled_;
  const int fd_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::vector<FiberEvent> answered_;  // To be set.
  bool saving_ = false;
  bool closed_ = false;
};

class PyInstance final : public actors::Instance {
 public:
  using Restorer = std::function<Status(const std::string& state)>;
  // `restore` is called where the actor is hosted, not on a fiber.
  // `signal`: sent to the main thread when a call is cancelled, and calls may be forced; 0:
  // neither.
  // `needed`: whether others ask this process for objects.
  PyInstance(std::shared_ptr<RequestQueue> queue, bool saves, Restorer restore, int signal = 0,
             std::function<bool()> needed = nullptr)
      : queue_(std::move(queue)),
        saves_(saves),
        restore_(std::move(restore)),
        signal_(signal),
        needed_(std::move(needed)) {}

  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override;
  // Calls wait in the queue while others run.
  [[nodiscard]] bool runs_in_invoke() const override { return false; }
  [[nodiscard]] bool saves() const override { return saves_; }
  [[nodiscard]] bool needed() const override { return needed_ && needed_(); }
  Result<std::string> Save() override;
  Status Restore(const std::string& state) override { return restore_(state); }

 private:
  // What a request's fiber asks each second.
  bool LookAt(const PyRequest& request) const;

  const std::shared_ptr<RequestQueue> queue_;
  const bool saves_;
  const Restorer restore_;
  const int signal_;
  const std::function<bool()> needed_;
};

}  // namespace troupe::pyapi
