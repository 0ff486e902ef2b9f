// Adapter of ZeroMQ: the only file that includes zmq.hpp.
//
// One io thread owns every socket of ZeroMQ: a ROUTER that listens, a DEALER per peer we connected
// to, the ZAP responder; and it reads the links to processes of this host, which ZeroMQ has no part
// in (decision 0017). Other threads hand over work through an eventfd. zmq::poll is level
// triggered, so no edge rules apply.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <zmq.hpp>

#include "runtime/internal/local_streams.h"
#include "runtime/internal/zmq_sockets.h"
#include "runtime/internal/zmq_zap.h"
#include "runtime/metrics.h"
#include "runtime/thread.h"
#include "runtime/timer_queue.h"
#include "runtime/transport.h"
#include "runtime/turn_taking.h"
#include "runtime/wire.h"

namespace troupe {
namespace {

constexpr int kBurstMax =
    256;  // Frames taken from one socket before timers and others get their turn.

// What waits for one peer: of protocols that repeat what is lost, and of actors, whose own windows
// are of this size.
constexpr size_t kControlQueueBytesMax = size_t{64} << 20;
constexpr size_t kCallQueueBytesMax = size_t{2} << 30;
constexpr size_t kCountersMax = 1000;  // Then those of peers without anything are let go.

using internal::Counter;

class ZmqTransport final : public Transport, private EventLoop {
 public:
  explicit ZmqTransport(ZmqTransportOptions options)
      : options_(std::move(options)),
        wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        turns_([this] { Wake(); }),
        queue_bytes_max_(options_.queue_while_connecting ? kCallQueueBytesMax
                                                         : kControlQueueBytesMax),
        local_({options_.name, options_.queue_while_connecting, kTransportQueueMessagesMax,
                queue_bytes_max_, wire::kWireFrameBytesMax},
               *this),
        context_(1) {
    TROUPE_ASSERT(wake_fd_ >= 0, "eventfd");
    thread_ = std::thread([this] { Run(); });
  }

  ~ZmqTransport() override {
    Stop();
    ::close(wake_fd_);
  }

  void Stop() override {
    TROUPE_ASSERT(!InLoop(), "the loop cannot wait for its own end");
    std::lock_guard lock(stop_mu_);
    if (!thread_.joinable()) return;
    stopping_.store(true);
    if (options_.shared_loop) turns_.Stop();
    Wake();
    thread_.join();
  }

  bool Help(Time until) override {
    if (!options_.shared_loop || !turns_.Help()) return false;
    // Whoever had the turn until now may have taken the wake that was meant for this thread.
    if (helper_woken_.exchange(false)) until = Time{};
    if (!stopping_.load()) TryTurnOnce(until);
    turns_.EndHelp();
    return true;
  }

  bool AwaitHelping(FiberEvent& event, Time until) override {
    while (!event.IsSet() && Now() < until) {
      if (options_.shared_loop && turns_.Help()) {
        while (!event.IsSet() && Now() < until && !stopping_.load()) TryTurnOnce(until);
        turns_.EndHelp();
        if (stopping_.load()) return event.WaitFor(until - Now());
        continue;
      }
      turns_.Park();
      (void)event.WaitFor(until - Now());
      turns_.Unpark();
    }
    return event.IsSet();
  }

  void WakeHelper() override {
    helper_woken_.store(true);
    Wake();
  }

  // Not thread_.get_id(): the loop may run before the constructor has stored the thread.
  [[nodiscard]] bool InLoop() const override {
    return options_.shared_loop ? turns_.Mine() : std::this_thread::get_id() == loop_id_.load();
  }

  [[nodiscard]] const std::string& self() const override { return options_.name; }
  EventLoop& loop() override { return *this; }

  void SetHandler(Handler handler) override {
    RunOnLoop([&] { handler_ = std::move(handler); });
  }
  void SetDropHandler(DropHandler handler) override {
    RunOnLoop([&] { drop_handler_ = std::move(handler); });
  }

  void SetGuestHandler(const GuestHandler& handler) override {
    RunOnLoop([&] { guest_handler_ = handler; });
  }
  void LetGuest(const std::string& public_key, bool in) override {
    RunOnLoop([&] {
      in ? (void)guests_.insert(public_key) : (void)guests_.erase(public_key);
      had_guests_ = had_guests_ || in;
    });
  }

  Result<PeerAddress> Listen(const std::string& endpoint) override {
    Result<PeerAddress> result = Stopped();
    RunOnLoop([&] { result = ListenOnLoop(endpoint); });
    return result;
  }

  Status Connect(const PeerAddress& peer) override {
    Status status = Stopped();
    RunOnLoop([&] { status = ConnectOnLoop(peer); });
    return status;
  }

  void Disconnect(const std::string& peer) override {
    RunOnLoop([&] { DisconnectOnLoop(peer); });
  }

  Status Send(const std::string& to, std::string frame) override {
    if (frame.size() > wire::kWireFrameBytesMax) {
      return Error{ErrorCode::kInvalidArgument,
                   "frame of " + std::to_string(frame.size()) + " bytes is over the limit"};
    }
    if (SendLocal(to, frame)) return Status::Ok();
    if (InLoop()) {
      SendOnLoop(to, std::move(frame));
      return Status::Ok();
    }
    if (options_.shared_loop && turns_.TryTurn()) {
      SendQueued();  // What others have sent comes first.
      SendOnLoop(to, std::move(frame));
      turns_.EndTurn();
      return Status::Ok();
    }
    {
      std::lock_guard lock(mu_);
      if (closed_) return Stopped();
      if (outbound_.size() >= static_cast<size_t>(kTransportQueueMessagesMax)) {
        return Error{ErrorCode::kBackpressure, "outbound queue is full"};
      }
      outbound_.emplace_back(to, std::move(frame));
    }
    Wake();
    return Status::Ok();
  }

 private:
  struct Dealer {
    zmq::socket_t socket;
    PeerAddress address;
  };

  // ---- EventLoop ----
  [[nodiscard]] Time Now() const override { return clock_.Now(); }
  void Post(std::function<void()> fn) override {
    {
      std::lock_guard lock(mu_);
      if (closed_) return;
      posted_.push_back(std::move(fn));
    }
    if (!InLoop()) Wake();
  }
  TimerId CallAt(Time when, std::function<void()> fn) override {
    TROUPE_ASSERT(InLoop(), "CallAt is for the loop; Post first");
    return timers_.Schedule(when, std::move(fn));
  }
  void Cancel(TimerId timer) override { timers_.Cancel(timer); }
  void WatchFd(int fd, std::function<void()> fn) override { fds_[fd] = std::move(fn); }
  void UnwatchFd(int fd) override { fds_.erase(fd); }

  static Error Stopped() { return Error{ErrorCode::kCancelled, "this transport was stopped"}; }

  void Wake() {
    if (woken_.exchange(true)) return;  // Nobody has looked since.
    const uint64_t one = 1;
    (void)!::write(wake_fd_, &one, sizeof one);
  }

  // Runs `fn` on the loop and waits for it; does nothing once the loop has ended. The loop never
  // blocks for long, so the wait is bounded by one turn.
  void RunOnLoop(const std::function<void()>& fn) {
    if (InLoop()) {
      fn();
      return;
    }
    if (options_.shared_loop && turns_.TryTurn()) {
      if (!stopping_.load()) fn();
      turns_.EndTurn();
      return;
    }
    std::mutex mu;
    std::condition_variable cv;
    bool done = false;
    {
      std::lock_guard lock(mu_);
      if (closed_) return;
      posted_.emplace_back([&] {
        fn();
        std::lock_guard done_lock(mu);
        done = true;
        cv.notify_one();
      });
    }
    Wake();
    std::unique_lock lock(mu);
    cv.wait(lock, [&] { return done; });
  }

  // The path of an endpoint on this host; empty if it is none.
  static std::string PathOf(const std::string& endpoint) {
    return endpoint.starts_with(internal::kLocalScheme)
               ? endpoint.substr(internal::kLocalScheme.size())
               : "";
  }

  Result<PeerAddress> ListenOnLoop(const std::string& endpoint) {
    if (const std::string path = PathOf(endpoint); !path.empty()) {
      if (const Status s = local_.Listen(path); !s.ok()) return s.error();
      return PeerAddress{options_.name, endpoint, ""};
    }
    // Nobody is let in before somebody says who may be.
    if (!options_.keys.secret_key.empty()) StartZap();
    Result<zmq::socket_t> router = internal::BindRouter(context_, options_, endpoint);
    if (!router.ok()) return router.error();
    const auto bound = router->get(zmq::sockopt::last_endpoint);
    routers_.push_back(std::move(*router));
    return PeerAddress{options_.name, bound, options_.keys.public_key};
  }

  void DisconnectOnLoop(const std::string& peer) {
    dealers_.erase(peer);
    local_.Disconnect(peer);
  }

  Status ConnectOnLoop(const PeerAddress& peer) {
    if (const std::string path = PathOf(peer.endpoint); !path.empty()) {
      dealers_.erase(peer.peer);
      return local_.Connect(peer.peer, path);
    }
    Result<zmq::socket_t> dealer = internal::ConnectDealer(context_, options_, peer);
    if (!dealer.ok()) return dealer.error();
    DisconnectOnLoop(peer.peer);
    dealers_.emplace(peer.peer, Dealer{std::move(*dealer), peer});
    return Status::Ok();
  }

  static void CountSent(size_t bytes) {
    metrics::Add(metrics::Id::kSentFrames);
    metrics::Add(metrics::Id::kSentBytes, static_cast<double>(bytes));
  }

  // From any thread. False if there is no such peer on this host.
  bool SendLocal(const std::string& to, std::string& frame) {
    using Sent = internal::LocalStreams::Sent;
    const size_t bytes = frame.size();
    const Sent sent = local_.Send(to, std::move(frame));
    if (sent == Sent::kUnknown) return false;
    CountSent(bytes);
    if (sent == Sent::kDropped) {
      if (InLoop()) {
        Dropped(to);
      } else {
        Post([this, to] { Dropped(to); });
      }
    }
    return true;
  }

  void SendOnLoop(const std::string& to, std::string frame) {
    CountSent(frame.size());
    try {
      if (const auto it = dealers_.find(to); it != dealers_.end()) {
        const Counter counter = Room(to, frame.size());
        if (!counter || !internal::SendFrame(it->second.socket, std::move(frame), counter))
          Dropped(to);
        return;
      }
      const Counter counter = routers_.empty() ? nullptr : Room(to, frame.size());
      if (!counter) return Dropped(to);
      for (zmq::socket_t& router : routers_) {
        // With router_mandatory the routing id decides before the body is handed over.
        try {
          if (router.send(zmq::buffer(to), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
            (void)internal::SendFrame(router, std::move(frame), counter);
            return;
          }
        } catch (const zmq::error_t& e) {
          if (e.num() != EHOSTUNREACH) throw;
        }
      }
      Dropped(to);
    } catch (const zmq::error_t&) {
      Dropped(to);
    }
  }

  // What counts the bytes that wait for a peer; null if there is no room for these.
  Counter Room(const std::string& to, size_t bytes) {
    if (counters_.size() >= kCountersMax)
      std::erase_if(counters_, [](const auto& entry) { return *entry.second == 0; });
    Counter& counter = counters_[to];
    if (!counter) counter = std::make_shared<std::atomic<size_t>>(0);
    const size_t waiting = *counter;
    return waiting > 0 && waiting + bytes > queue_bytes_max_ ? nullptr : counter;
  }

  void Dropped(const std::string& to) {
    metrics::Add(metrics::Id::kDroppedFrames);
    if (drop_handler_) drop_handler_(to);
  }

  void StartZap() {
    if (zap_) return;
    std::set<std::string> allowed(options_.allowed_keys.begin(), options_.allowed_keys.end());
    allowed.insert(options_.keys.public_key);
    zap_.emplace(context_, std::move(allowed), &guests_);
  }

  void ReceiveRouter(zmq::socket_t& router) {
    for (int i = 0; i < kBurstMax; ++i) {
      zmq::message_t id;
      zmq::message_t body;
      if (!router.recv(id, zmq::recv_flags::dontwait)) return;
      if (!id.more() || !router.recv(body, zmq::recv_flags::dontwait)) continue;
      std::string frame(body.data<char>(), body.size());
      if (!internal::ReceiveParts(router, frame, body.more())) continue;
      const std::string guest = had_guests_ ? internal::ZapResponder::GuestOf(body) : "";
      if (!guest.empty()) {
        if (guest_handler_) guest_handler_(id.to_string(), guest, std::move(frame));
        continue;
      }
      if (from_ != id.to_string_view()) from_ = id.to_string();
      Deliver(from_, std::move(frame));
    }
  }

  void ReceiveDealer(const std::string& peer) {
    for (int i = 0; i < kBurstMax; ++i) {
      const auto it = dealers_.find(peer);  // The handler may have replaced or removed it.
      if (it == dealers_.end()) return;
      zmq::message_t body;
      if (!it->second.socket.recv(body, zmq::recv_flags::dontwait)) return;
      std::string frame(body.data<char>(), body.size());
      if (internal::ReceiveParts(it->second.socket, frame, body.more()))
        Deliver(peer, std::move(frame));
    }
  }

  void Deliver(const std::string& from, std::string frame) {
    metrics::Add(metrics::Id::kReceivedFrames);
    metrics::Add(metrics::Id::kReceivedBytes, static_cast<double>(frame.size()));
    if (handler_) handler_(from, std::move(frame));
  }

  void SendQueued() {
    std::deque<std::pair<std::string, std::string>> outbound;
    {
      std::lock_guard lock(mu_);
      if (outbound_.empty()) return;
      outbound.swap(outbound_);
    }
    for (auto& [to, frame] : outbound) SendOnLoop(to, std::move(frame));
  }

  void RunPosted() {
    if (woken_.load()) {
      uint64_t ignored = 0;
      (void)!::read(wake_fd_, &ignored, sizeof ignored);
      woken_.store(false);
    }
    SendQueued();
    std::deque<std::function<void()>> posted;
    {
      std::lock_guard lock(mu_);
      posted.swap(posted_);
    }
    for (auto& fn : posted) fn();
  }

  [[nodiscard]] bool HasPosted() {
    std::lock_guard lock(mu_);
    return !posted_.empty() || !outbound_.empty();
  }

  // What was posted before Stop still runs; from then on posts are dropped.
  [[nodiscard]] bool Close() {
    std::lock_guard lock(mu_);
    closed_ = stopping_.load() && posted_.empty() && outbound_.empty();
    return closed_;
  }

  void Run() {
    loop_id_.store(std::this_thread::get_id());
    NameThisThread("transport");
    PreferLowLatency();  // ZeroMQ's own threads are started from here and inherit it.
    bool closed = false;
    while (!closed) {
      if (options_.shared_loop) turns_.Keep();
      while (!closed && !turns_.StandBack()) {
        TryTurnOnce(Time::Never());
        closed = Close();
      }
      if (closed) {
        dealers_.clear();
        routers_.clear();
        zap_.reset();
        local_.Close();
      }
      if (options_.shared_loop) turns_.EndKeep();
    }
    loop_id_.store({});  // A later thread may be given the id of this one.
  }

  void TryTurnOnce(Time until) {
    try {
      Turn(until);
    } catch (const zmq::error_t& e) {
      TROUPE_ASSERT(e.num() == EINTR || e.num() == ETERM, e.what());
    }
  }

  void Turn(Time until) {
    std::vector<zmq::pollitem_t> items{{nullptr, wake_fd_, ZMQ_POLLIN, 0},
                                       {nullptr, local_.handle(), ZMQ_POLLIN, 0}};
    const bool zap_polled = zap_.has_value();  // What is posted may start it below.
    if (zap_polled) items.push_back({zap_->handle(), 0, ZMQ_POLLIN, 0});
    const size_t first_router = items.size();
    for (zmq::socket_t& router : routers_) items.push_back({router.handle(), 0, ZMQ_POLLIN, 0});
    const size_t first_dealer = items.size();
    std::vector<std::string> peers;
    for (auto& [peer, dealer] : dealers_) {
      items.push_back({dealer.socket.handle(), 0, ZMQ_POLLIN, 0});
      peers.push_back(peer);
    }
    const size_t first_fd = items.size();
    std::vector<int> fds;
    for (const auto& [fd, fn] : fds_) {
      items.push_back({nullptr, fd, ZMQ_POLLIN | ZMQ_POLLERR, 0});
      fds.push_back(fd);
    }
    zmq::poll(items, PollTimeout(until));
    RunPosted();
    if (items[1].revents != 0) {
      local_.HandleReady(
          [this](const std::string& from, std::string frame) { Deliver(from, std::move(frame)); });
    }
    if (zap_polled && (items[2].revents & ZMQ_POLLIN) != 0) zap_->Answer();
    for (size_t i = first_router; i < first_dealer; ++i) {
      if ((items[i].revents & ZMQ_POLLIN) != 0) ReceiveRouter(routers_[i - first_router]);
    }
    for (size_t i = first_dealer; i < first_fd; ++i) {
      if ((items[i].revents & ZMQ_POLLIN) != 0) ReceiveDealer(peers[i - first_dealer]);
    }
    for (size_t i = first_fd; i < items.size(); ++i) {
      if (items[i].revents == 0) continue;
      const auto it = fds_.find(fds[i - first_fd]);
      if (it == fds_.end()) continue;
      const auto fn = it->second;  // A copy: the callback may unwatch itself.
      fn();
    }
    timers_.RunDue(Now());
  }

  [[nodiscard]] std::chrono::milliseconds PollTimeout(Time until) {
    if (stopping_.load() || HasPosted()) return milliseconds(0);
    const Time due = std::min(until, timers_.NextDue());
    if (due == Time::Never()) return milliseconds(1000);
    const Duration left = due - Now();
    if (left <= Duration::zero()) return milliseconds(0);
    return std::min(std::chrono::ceil<milliseconds>(left), milliseconds(1000));
  }

  const ZmqTransportOptions options_;
  const int wake_fd_;
  const SteadyClock clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> woken_{false};
  std::atomic<bool> helper_woken_{false};  // Since its last turn began.
  std::atomic<std::thread::id> loop_id_;
  std::mutex stop_mu_;  // Held while the thread is joined.
  TurnTaking turns_;    // Of a shared loop.
  const size_t queue_bytes_max_;
  internal::LocalStreams local_;

  // Guarded by mu_.
  std::mutex mu_;
  std::deque<std::function<void()>> posted_;
  std::deque<std::pair<std::string, std::string>> outbound_;
  bool closed_ = false;

  // Owned by the io thread, or by who has the turn.
  zmq::context_t context_;
  std::set<std::string> guests_;  // Keys.
  std::optional<internal::ZapResponder> zap_;
  std::deque<zmq::socket_t> routers_;
  std::map<std::string, Dealer> dealers_;
  std::map<std::string, Counter> counters_;  // Of bytes that wait, by peer.
  std::map<int, std::function<void()>> fds_;
  std::string from_;  // Of the last frame of a router.
  TimerQueue timers_;
  Handler handler_;
  DropHandler drop_handler_;
  GuestHandler guest_handler_;
  bool had_guests_ = false;  // They may be connected still.

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeZmqTransport(ZmqTransportOptions options) {
  if (options.name.empty() || options.name.size() > 128) {
    return Error{ErrorCode::kInvalidArgument, "a transport name has 1 to 128 bytes"};
  }
  return std::unique_ptr<Transport>(std::make_unique<ZmqTransport>(std::move(options)));
}

}  // namespace troupe
