#include "pyapi/actor_instance.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace troupe::pyapi {
namespace {

// Whether the process is being shut down, and whether a cancelled call has been interrupted.
constexpr Duration kLookAgain = seconds(1);
constexpr int kForcedExit = 1;
constexpr size_t kReadyMin = 8;  // So many calls lie ready before fibers are woken for more.

void SignalMainThread(int signal) { (void)::tgkill(::getpid(), ::getpid(), signal); }

Error Closed() { return {ErrorCode::kPeerGone, "the actor has ended before this call ran"}; }

}  // namespace

void PyRequest::Answer(Result<std::string> result, std::string exit_reason) {
  const bool now = answer_now && exit_reason.empty();
  Settle(std::move(result), std::move(exit_reason), now);
}

void PyRequest::Refuse() { Settle(Closed(), "", false); }

void PyRequest::CancelChildren() {
  const std::optional<actors::Cancellation> how = call->cancellation();
  if (how && how->recursive) children.Cancel(*how);
}

bool PyRequest::Unheard() const {
  if (heard_) return false;
  const std::optional<actors::Cancellation> how = call->cancellation();
  return how && !how->force;
}

void PyRequest::Settle(Result<std::string> result, std::string exit_reason, bool now) {
  {
    std::lock_guard lock(mu_);
    if (std::exchange(taken_, true)) return;
  }
  // The fiber waits until the event is set, so what this stands on is there.
  const bool left = now && answer_now(result);
  if (left) result = std::string();
  {
    std::lock_guard lock(mu_);
    result_ = std::move(result);
    exit_reason_ = std::move(exit_reason);
  }
  left ? queue->SetSoon(answered_) : answered_.Set();
}

Result<std::string> PyRequest::Await(const std::function<bool()>& closed) {
  // A method of Python cannot be interrupted, and the actor is busy until it has returned: neither
  // its deadline nor a cancellation ends this wait.
  while (!answered_.WaitFor(kLookAgain)) {
    if (!closed()) continue;
    std::lock_guard lock(mu_);
    if (!std::exchange(taken_, true)) return Closed();
  }
  std::lock_guard lock(mu_);
  return std::move(*result_);
}

RequestQueue::RequestQueue(bool tell_cancelled)
    : tell_cancelled_(tell_cancelled), fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

RequestQueue::~RequestQueue() { ::close(fd_); }

void RequestQueue::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);  // Full is as good.
}

void RequestQueue::Push(const std::shared_ptr<PyRequest>& request) {
  {
    std::lock_guard lock(mu_);
    if (!closed_) {
      items_.push_back({request, false});
      changed_.notify_one();
      if (tell_cancelled_) Wake();
      return;
    }
  }
  request->Refuse();
}

void RequestQueue::PushCancelled(const std::shared_ptr<PyRequest>& request) {
  std::lock_guard lock(mu_);
  if (closed_) return;
  items_.push_back({request, true});
  Wake();
}

std::optional<RequestQueue::Item> RequestQueue::Take(Duration limit) {
  std::unique_lock lock(mu_);
  const auto ready = [this] { return closed_ || (!items_.empty() && !saving_); };
  if (limit > Duration::zero()) {
    changed_.wait_for(lock, limit, ready);
  } else {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
  }
  if (!ready() || items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  saving_ = item.request->kind == PyRequest::Kind::kSave;
  if (tell_cancelled_ && !items_.empty() && !saving_) Wake();
  return item;
}

void RequestQueue::SetSoon(FiberEvent event) {
  std::vector<FiberEvent> due;
  {
    std::lock_guard lock(mu_);
    answered_.push_back(std::move(event));
    if (items_.size() >= kReadyMin && !closed_) return;
    due.swap(answered_);
  }
  for (FiberEvent& one : due) one.Set();
}

void RequestQueue::Saved() {
  std::lock_guard lock(mu_);
  saving_ = false;
  changed_.notify_all();
  if (tell_cancelled_) Wake();
}

void RequestQueue::Close() {
  std::deque<Item> left;
  std::vector<FiberEvent> due;
  {
    std::lock_guard lock(mu_);
    closed_ = true;
    left.swap(items_);
    due.swap(answered_);
    changed_.notify_all();
    Wake();
  }
  for (FiberEvent& one : due) one.Set();
  for (const Item& item : left) item.request->Refuse();
}

bool RequestQueue::closed() const {
  std::lock_guard lock(mu_);
  return closed_;
}

Result<std::string> PyInstance::Invoke(CallContext& context, const std::string& method,
                                       std::string arguments) {
  const auto request = std::make_shared<PyRequest>();
  request->method = method;
  request->arguments = std::move(arguments);
  request->caller = context.caller();
  request->deadline = context.deadline();
  request->call = context.call();
  request->answer_now = context.answer_now();
  request->queue = queue_;
  queue_->Push(request);
  const std::weak_ptr<PyRequest> weak = request;
  context.call()->OnCancel(
      [queue = queue_, weak, signal = signal_](const actors::Cancellation& how) {
        const auto alive = weak.lock();
        if (!alive) return;
        // First, so that what it waits for does not end its wait in another way.
        if (signal != 0 && !how.force) SignalMainThread(signal);
        if (queue->tell_cancelled()) return queue->PushCancelled(alive);
        alive->CancelChildren();
        if (signal != 0 && how.force) ::_exit(kForcedExit);
      });
  Result<std::string> result = request->Await([this, &request] { return LookAt(*request); });
  if (!request->exit_reason().empty()) context.Exit(request->exit_reason());
  return result;
}

bool PyInstance::LookAt(const PyRequest& request) const {
  // A signal that comes between Python's last look for signals and the system call in which its
  // main thread waits does not end that wait: another one does.
  if (signal_ != 0 && request.Unheard()) SignalMainThread(signal_);
  return queue_->closed();
}

Result<std::string> PyInstance::Save() {
  const auto request = std::make_shared<PyRequest>();
  request->kind = PyRequest::Kind::kSave;
  queue_->Push(request);
  Result<std::string> state = request->Await([this] { return queue_->closed(); });
  queue_->Saved();
  return state;
}

}  // namespace troupe::pyapi
