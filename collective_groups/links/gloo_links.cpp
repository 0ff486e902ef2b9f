// Adapter of Gloo: the only file that includes it.
//
// Stock Gloo (Debian, 2022-05) cannot be aborted safely: closing connections does not wake a local
// waiter, a failure does not spread beyond ring neighbours, and a context is dead after any
// time-out. So only its pairs and its buffers are used, without its contexts and collectives: one
// transport context per process holds a pair per peer slot, and every epoch gets a channel that
// maps ranks to slots, puts the epoch into the top 16 bits of each message's slot, and remembers
// its buffers so that Abort can wake them (0.1-0.3 ms, in any phase).
//
// Gloo's event loop sleeps up to 10 ms between rounds, and connecting or destroying a pair waits
// for a round; a timerfd registered with the device ticks every 200 us while links change.
//
// What Gloo throws on its event loop ends the process; so its pairs are made to fail instead.
//
// A pair of Gloo is whoever connects to its port first. So pairs are connected here, on the link
// lane, where the connecting side proves that it has seen the offer, and Gloo is handed the socket.
#include <dlfcn.h>
#include <gloo/common/error.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/links/internal/proven_connection.h"
#include "collective_groups/links/links.h"
#include "runtime/tcp_socket.h"
#include "runtime/thread.h"

namespace troupe::groups {
namespace {

namespace gt = gloo::transport;

constexpr long kTickNs = 200'000;
constexpr int kPairAttempts = 3;  // If a stranger finds a port in the moment in which it opens.

std::chrono::milliseconds Ms(Duration d) { return std::chrono::duration_cast<milliseconds>(d); }

class GlooChannel final : public Channel {
 public:
  GlooChannel(std::shared_ptr<gt::Context> base, const View& view)
      : base_(std::move(base)), epoch_bits_(uint64_t{view.epoch & 0xffff} << 48) {
    for (const ViewMember& m : view.members) slots_.push_back(static_cast<int>(m.slot));
  }

  Ticket Send(int to, uint64_t key, const void* data, size_t bytes) override {
    return Start(true, to, key, const_cast<void*>(data), bytes);
  }
  Ticket Receive(int from, uint64_t key, void* data, size_t bytes) override {
    return Start(false, from, key, data, bytes);
  }

  Status Wait(Ticket ticket) override {
    const auto it = messages_.find(ticket);
    TROUPE_ASSERT(it != messages_.end(), "a ticket is waited for once");
    Message& message = it->second;
    Status status = message.problem;
    if (status.ok()) {
      status = Guard([&] {
        const auto limit = Ms(kCollectiveTimeout);
        const bool done =
            !dead_.load() && (message.sending ? message.buffer->waitSend(nullptr, limit)
                                              : message.buffer->waitRecv(nullptr, limit));
        if (!done || dead_.load()) throw gloo::IoException("aborted");
      });
    }
    Forget(message);
    messages_.erase(it);
    return status;
  }

  void Clear() override {
    for (auto& [ticket, message] : messages_) Forget(message);
    messages_.clear();
  }

  void Abort() override {
    dead_.store(true);
    std::lock_guard lock(mu_);
    for (gt::UnboundBuffer* buffer : live_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  struct Message {
    bool sending = false;
    std::unique_ptr<gt::UnboundBuffer> buffer;
    Status problem;
  };

  Ticket Start(bool sending, int rank, uint64_t key, void* data, size_t bytes) {
    Message message;
    message.sending = sending;
    message.problem = Guard([&] {
      if (dead_.load()) throw gloo::IoException("aborted");
      message.buffer = base_->createUnboundBuffer(data, bytes);
      {
        std::lock_guard lock(mu_);
        live_.insert(message.buffer.get());
      }
      if (sending) {
        message.buffer->send(slots_[rank], epoch_bits_ | key, 0, bytes);
      } else {
        message.buffer->recv(slots_[rank], epoch_bits_ | key, 0, bytes);
      }
    });
    messages_.emplace(next_ticket_, std::move(message));
    return next_ticket_++;
  }

  void Forget(const Message& message) {
    std::lock_guard lock(mu_);
    live_.erase(message.buffer.get());
  }

  template <class F>
  Status Guard(F&& body) {
    try {
      body();
      return Status::Ok();
    } catch (const std::exception& e) {
      if (dead_.load()) return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
      return Error{ErrorCode::kPeerGone, e.what()};
    }
  }

  const std::shared_ptr<gt::Context> base_;
  const uint64_t epoch_bits_;
  std::vector<int> slots_;  // By rank.
  std::atomic<bool> dead_{false};

  // Owned by the collective lane.
  std::map<Ticket, Message> messages_;
  Ticket next_ticket_ = 1;

  // Guarded by mu_: what Abort must wake.
  std::mutex mu_;
  std::set<gt::UnboundBuffer*> live_;
};

// What a peer is told: where we listen, and the secret that it must say there.
struct LinkAddress {
  sockaddr_storage at{};
  LinkSecret secret{};

  [[nodiscard]] std::string ToBytes() const {
    return std::string(reinterpret_cast<const char*>(&at), sizeof at) +
           std::string(secret.data(), secret.size());
  }
  [[nodiscard]] static Result<LinkAddress> FromBytes(const std::vector<char>& bytes) {
    LinkAddress address;
    if (bytes.size() != sizeof address.at + address.secret.size()) {
      return Error{ErrorCode::kInvalidArgument,
                   "an offer of " + std::to_string(bytes.size()) +
                       " bytes: run the same release of Troupe on every host"};
    }
    std::memcpy(&address.at, bytes.data(), sizeof address.at);
    std::memcpy(address.secret.data(), bytes.data() + sizeof address.at, address.secret.size());
    return address;
  }
};

// A pair that connects by itself and fails by itself: what is thrown while it handles an event
// becomes its error, which those who wait for it, or use it later, are told.
class ContainedPair final : public gt::tcp::Pair {
 public:
  // Gloo's constructor listens, and would accept whoever comes; the socket is taken from it.
  ContainedPair(gt::tcp::Context* context, gt::tcp::Device* device, int rank,
                std::chrono::milliseconds timeout)
      : Pair(context, device, rank, timeout) {
    const std::lock_guard lock(m_);
    if (state_ != LISTENING) throw gloo::IoException("somebody else connected");
    mine_.at = self_.getSockaddr();
    device_->unregisterDescriptor(fd_, this);
    listener_ = std::exchange(fd_, -1);
    state_ = INITIALIZING;
    Status prepared = PrepareListener(listener_);
    Result<LinkSecret> secret = MakeLinkSecret();
    if (prepared.ok() && !secret.ok()) prepared = secret.error();
    if (!prepared.ok()) {
      ::close(listener_);
      throw gloo::IoException(prepared.error().message);
    }
    mine_.secret = secret.value();
  }
  ContainedPair(const ContainedPair&) = delete;
  ContainedPair& operator=(const ContainedPair&) = delete;

  ~ContainedPair() override {
    if (listener_ >= 0) ::close(listener_);
  }

  [[nodiscard]] std::string offer() const { return mine_.ToBytes(); }

  // One of both connects; which is settled by their offers.
  void connect(const std::vector<char>& bytes) override {
    const Result<LinkAddress> theirs = LinkAddress::FromBytes(bytes);
    if (!theirs.ok()) throw gloo::IoException(theirs.error().message);
    if (listener_ < 0) throw gloo::IoException("a link is made once for each offer");
    const Time deadline = SteadyClock().Now() + kLinkTimeout;
    const bool listens = offer() < theirs->ToBytes();
    const Result<int> socket = listens
                                   ? AcceptProven(listener_, mine_.secret, deadline)
                                   : ConnectProven(theirs->at, theirs->secret, listener_, deadline);
    const std::lock_guard lock(m_);
    ::close(std::exchange(listener_, -1));
    try {
      if (!socket.ok()) throw gloo::IoException(socket.error().message);
      fd_ = socket.value();
      if (state_ != INITIALIZING) throw gloo::IoException("linking was cancelled");
      handleConnected();
    } catch (const std::exception&) {
      // Not registered yet, for that is what Gloo does last.
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
      if (state_ == INITIALIZING) signalException(std::current_exception());
      throw;
    }
  }

  void close() override {
    {
      const std::lock_guard lock(m_);
      if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);  // Wakes who waits in connect.
    }
    Pair::close();
  }

  void handleEvents(int events) override {
    // Whoever holds the lock may be waiting for this loop; the event is raised again.
    const std::unique_lock lock(m_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    try {
      if (state_ == CONNECTED) handleReadWrite(events);
    } catch (const std::exception&) {
      if (state_ != CLOSED) signalException(std::current_exception());
    }
  }

  // 0 also while the pair is busy: whoever asks, asks again.
  uint64_t Moved() {
    const std::unique_lock lock(m_, std::try_to_lock);
    return lock.owns_lock() && state_ == CONNECTED ? TcpBytesMoved(fd_) : 0;
  }

 protected:
  void changeState(state next) noexcept override {
    gt::tcp::Pair::changeState(next);
    // Without the limit a lost route is noticed all the same, only later.
    if (next == CONNECTED) (void)LimitTcpSilence(fd_, kLinkSilence);
  }

 private:
  LinkAddress mine_;   // Constant after construction.
  int listener_ = -1;  // Closed by connect, with m_ held.
};

class ContainedContext final : public gt::tcp::Context {
 public:
  using gt::tcp::Context::Context;

  std::unique_ptr<gt::Pair>& createPair(int rank) override {
    for (int attempt = 1;; ++attempt) {
      try {
        pairs_[rank] = std::make_unique<ContainedPair>(this, device_.get(), rank, getTimeout());
        return pairs_[rank];
      } catch (const gloo::IoException&) {
        if (attempt == kPairAttempts) throw;
      }
    }
  }
};

class TickHandler final : public gt::tcp::Handler {
 public:
  int fd = -1;
  void handleEvents(int) override {
    uint64_t expirations = 0;
    (void)!::read(fd, &expirations, sizeof expirations);
  }
};

class GlooLinks final : public Links {
 public:
  explicit GlooLinks(const GlooOptions& options) {
    gt::tcp::attr attr;
    attr.hostname = options.bind_address;
    // By a thread of its own: Gloo's event loop inherits how it is scheduled, the caller keeps his.
    // In short slices it would read what arrives in crumbs, at twice the CPU and, where the CPU is
    // what limits a collective, half the speed.
    device_ = std::async(std::launch::async, [&] {
                PreferThroughput();
                return gt::tcp::CreateDevice(attr);
              }).get();
    tick_.fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    TROUPE_ASSERT(tick_.fd >= 0, "timerfd_create");
    TcpDevice().registerDescriptor(tick_.fd, EPOLLIN, &tick_);
  }

  ~GlooLinks() override {
    Tick(true);
    base_.reset();
    TcpDevice().unregisterDescriptor(tick_.fd, &tick_);
    ::close(tick_.fd);
  }

  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot) override {
    if (my_slot >= kLinkSlotsMax || peer_slot >= kLinkSlotsMax) {
      return Error{ErrorCode::kInvalidArgument, "link slot out of range"};
    }
    std::string address;
    const Status made = Guard("offer", [&] {
      const TickScope tick(this);
      std::lock_guard lock(links_mu_);
      cancelled_.erase(peer_slot);
      if (!base_) {
        base_ =
            std::make_shared<ContainedContext>(std::static_pointer_cast<gt::tcp::Device>(device_),
                                               static_cast<int>(my_slot), kLinkSlotsMax);
        base_->setTimeout(Ms(kLinkTimeout));
      }
      auto& pair = base_->createPair(static_cast<int>(peer_slot));
      address = static_cast<ContainedPair&>(*pair).offer();
    });
    if (!made.ok()) return made.error();
    return address;
  }

  Status Link(uint32_t peer_slot, const std::string& address) override {
    uint64_t cancels = 0;
    {
      std::lock_guard lock(links_mu_);
      if (!HasPair(peer_slot)) {
        return Error{ErrorCode::kInvalidArgument, "no link was offered to this slot"};
      }
      if (cancelled_.contains(peer_slot)) {
        return Error{ErrorCode::kCancelled, "linking was cancelled"};
      }
      linking_.insert(peer_slot);
      cancels = cancels_;
    }
    Status linked = Guard("link", [&] {
      const TickScope tick(this);
      base_->getPair(static_cast<int>(peer_slot))
          ->connect(std::vector<char>(address.begin(), address.end()));
    });
    std::lock_guard lock(links_mu_);
    linking_.erase(peer_slot);
    if (linked.ok() && (cancels != cancels_ || cancelled_.contains(peer_slot))) {
      return Error{ErrorCode::kCancelled, "linking was cancelled"};
    }
    return linked;
  }

  void CancelLink(uint32_t peer_slot) override {
    std::lock_guard lock(links_mu_);
    cancelled_.insert(peer_slot);
    if (linking_.contains(peer_slot)) base_->getPair(static_cast<int>(peer_slot))->close();
  }

  void CancelLinks() override {
    std::lock_guard lock(links_mu_);
    ++cancels_;
    for (const uint32_t slot : linking_) base_->getPair(static_cast<int>(slot))->close();
  }

  uint64_t moved() override {
    std::lock_guard lock(links_mu_);
    uint64_t moved = 0;
    for (uint32_t slot = 0; base_ && slot < kLinkSlotsMax; ++slot) {
      if (HasPair(slot)) moved += static_cast<ContainedPair&>(*base_->getPair(slot)).Moved();
    }
    return moved;
  }

  Result<std::shared_ptr<Channel>> Open(const View& view, const std::vector<int>& ranks) override {
    std::lock_guard lock(links_mu_);
    for (const int rank : ranks) {
      if (!HasPair(view.members[rank].slot)) {
        return Error{ErrorCode::kInvalidArgument,
                     "not linked to " + view.members[rank].id.ToString()};
      }
    }
    return std::shared_ptr<Channel>(std::make_shared<GlooChannel>(base_, view));
  }

 private:
  struct TickScope {
    explicit TickScope(GlooLinks* owner) : owner_(owner) { owner_->Tick(true); }
    ~TickScope() { owner_->Tick(false); }
    GlooLinks* owner_;
  };

  gt::tcp::Device& TcpDevice() { return static_cast<gt::tcp::Device&>(*device_); }

  [[nodiscard]] bool HasPair(uint32_t slot) const {
    return slot < kLinkSlotsMax && base_ && base_->getPair(static_cast<int>(slot)) != nullptr;
  }

  void Tick(bool on) {
    itimerspec spec{};
    if (on) spec.it_interval.tv_nsec = spec.it_value.tv_nsec = kTickNs;
    ::timerfd_settime(tick_.fd, 0, &spec, nullptr);
  }

  template <class F>
  static Status Guard(const char* what, F&& body) {
    try {
      body();
      return Status::Ok();
    } catch (const std::exception& e) {
      return Error{ErrorCode::kPeerGone, std::string(what) + ": " + e.what()};
    }
  }

  std::shared_ptr<gt::Device> device_;
  TickHandler tick_;
  std::shared_ptr<gt::Context> base_;  // Set once, by the link lane.

  // Guarded by links_mu_.
  std::mutex links_mu_;
  std::set<uint32_t> linking_;
  std::set<uint32_t> cancelled_;  // Until they are offered to again.
  uint64_t cancels_ = 0;
};

// A library that was loaded before may export another version of Gloo, which then answers our calls
// and crashes: the LibTorch of pip does. Gloo is a library of its own, or linked into what we are
// linked into.
Status CheckGloo() {
  using CreateFn = std::shared_ptr<gt::Device> (*)(const gt::tcp::attr&);
  const CreateFn create = &gt::tcp::CreateDevice;
  Dl_info gloo{};
  Dl_info self{};
  if (::dladdr(reinterpret_cast<void*>(create), &gloo) == 0 ||
      ::dladdr(reinterpret_cast<void*>(&CheckGloo), &self) == 0)
    return Status::Ok();
  const std::string path = gloo.dli_fname;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (gloo.dli_fbase == self.dli_fbase || name.starts_with("libgloo")) return Status::Ok();
  return Error{ErrorCode::kUnavailable,
               "the Gloo in this process is the one in " + path +
                   ", not the one that Troupe was built with; link Troupe before it"};
}

}  // namespace

Result<std::unique_ptr<Links>> MakeGlooLinks(const GlooOptions& options) {
  if (Status s = CheckGloo(); !s.ok()) return s.error();
  try {
    return std::unique_ptr<Links>(std::make_unique<GlooLinks>(options));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kUnavailable,
                 "cannot open the data plane on " + options.bind_address + ": " + e.what()};
  }
}

}  // namespace troupe::groups
