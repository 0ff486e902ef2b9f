// Adapter of Gloo: the only file that includes it.
//
// Stock Gloo (Debian, 2022-05) cannot be aborted safely: closing connections does not wake a local
// waiter, a failure does not spread beyond ring neighbours, and a context is dead after any
// time-out. So the pairs are kept apart from the contexts: one transport context per process holds
// a pair per peer slot, and every epoch gets a thin context that maps ranks to slots, puts the
// epoch into the unused bits 8..23 of each message's slot, and remembers its buffers so that Abort
// can wake them (0.1-0.3 ms, in any phase).
//
// Gloo's event loop sleeps up to 10 ms between rounds, and connecting or destroying a pair waits
// for a round; a timerfd registered with the device ticks every 200 us while links change.
#include <gloo/allreduce.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "collective_groups/communicator.h"
#include "runtime/thread.h"

namespace troupe::groups {
namespace {

namespace gt = gloo::transport;

constexpr int kSlotsMax = 256;  // Live incarnations plus those whose slot was given back.
constexpr size_t kSmallBytesMax = 64 << 10;
constexpr long kTickNs = 200'000;
constexpr size_t kChunksInFlight = 4;

std::chrono::milliseconds Ms(Duration d) { return std::chrono::duration_cast<milliseconds>(d); }

struct Aborted : gloo::IoException {
  using gloo::IoException::IoException;
};

// One epoch's mapping and the buffers that Abort must wake.
struct EpochState {
  std::shared_ptr<gt::Context> base;
  std::vector<int> slots;  // By rank.
  Epoch epoch = 0;
  uint64_t tag_bits = 0;
  std::atomic<bool> dead{false};
  std::mutex mu;
  std::set<gt::UnboundBuffer*> live;

  // Owned by the collective lane. Collectives of the whole view share one tag counter; transfers,
  // in which only some ranks take part, count per direction and peer, so that nobody's counter runs
  // ahead.
  uint32_t tag = 0;
  std::map<int, uint32_t> sent_to;
  std::map<int, uint32_t> received_from;

  void Abort() {
    dead.store(true);
    std::lock_guard lock(mu);
    for (gt::UnboundBuffer* buffer : live) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  void Check() const {
    if (dead.load()) throw Aborted("the epoch was aborted");
  }
};

class EpochBuffer final : public gt::UnboundBuffer {
 public:
  EpochBuffer(std::shared_ptr<EpochState> epoch, void* data, size_t bytes)
      : UnboundBuffer(data, bytes),
        epoch_(std::move(epoch)),
        inner_(epoch_->base->createUnboundBuffer(data, bytes)) {
    std::lock_guard lock(epoch_->mu);
    epoch_->live.insert(inner_.get());
  }
  ~EpochBuffer() override {
    std::lock_guard lock(epoch_->mu);
    epoch_->live.erase(inner_.get());
  }
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    epoch_->Check();
    if (!inner_->waitRecv(rank, timeout)) throw Aborted("the epoch was aborted");
    epoch_->Check();
    return true;
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    epoch_->Check();
    if (!inner_->waitSend(rank, timeout)) throw Aborted("the epoch was aborted");
    epoch_->Check();
    return true;
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    epoch_->Check();
    inner_->send(epoch_->slots[rank], slot ^ epoch_->tag_bits, offset, bytes);
  }
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    epoch_->Check();
    inner_->recv(epoch_->slots[rank], slot ^ epoch_->tag_bits, offset, bytes);
  }
  void recv(std::vector<int> ranks, uint64_t slot, size_t offset, size_t bytes) override {
    epoch_->Check();
    for (int& rank : ranks) rank = epoch_->slots[rank];
    inner_->recv(std::move(ranks), slot ^ epoch_->tag_bits, offset, bytes);
  }

 private:
  const std::shared_ptr<EpochState> epoch_;
  const std::unique_ptr<gt::UnboundBuffer> inner_;
};

class EpochTransport final : public gt::Context {
 public:
  EpochTransport(std::shared_ptr<EpochState> epoch, int rank, int size)
      : gt::Context(rank, size), epoch_(std::move(epoch)) {
    setTimeout(Ms(kCollectiveTimeout));
  }
  std::unique_ptr<gt::Pair>& getPair(int rank) override {
    return epoch_->base->getPair(epoch_->slots[rank]);
  }
  std::unique_ptr<gt::Pair>& createPair(int rank) override { return getPair(rank); }
  std::unique_ptr<gt::UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<EpochBuffer>(epoch_, data, bytes);
  }

 private:
  const std::shared_ptr<EpochState> epoch_;
};

class EpochContext final : public gloo::Context {
 public:
  EpochContext(std::shared_ptr<gt::Device> device, std::shared_ptr<gt::Context> transport, int rank,
               int size)
      : gloo::Context(rank, size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
    timeout_ = Ms(kCollectiveTimeout);
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

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(const GlooOptions& options) {
    gt::tcp::attr attr;
    attr.hostname = options.bind_address;
    // By a thread of its own: Gloo's event loop inherits how it is scheduled, the caller keeps his.
    device_ = std::async(std::launch::async, [&] {
                PreferLowLatency();
                return gt::tcp::CreateDevice(attr);
              }).get();
    tick_.fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    TROUPE_ASSERT(tick_.fd >= 0, "timerfd_create");
    TcpDevice().registerDescriptor(tick_.fd, EPOLLIN, &tick_);
  }

  ~GlooCommunicator() override {
    Tick(true);
    AbortCurrent();
    std::lock_guard lock(mu_);
    context_.reset();
    epoch_.reset();
    base_.reset();
    TcpDevice().unregisterDescriptor(tick_.fd, &tick_);
    ::close(tick_.fd);
  }

  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot) override {
    if (my_slot >= kSlotsMax || peer_slot >= kSlotsMax) {
      return Error{ErrorCode::kInvalidArgument, "link slot out of range"};
    }
    return Guard<std::string>("offer", nullptr, [&]() -> Result<std::string> {
      const TickScope tick(this);
      if (!base_) {
        base_ = device_->createContext(static_cast<int>(my_slot), kSlotsMax);
        base_->setTimeout(Ms(kLinkTimeout) / 5);  // Gloo waits five times this for a connection.
      }
      std::lock_guard lock(links_mu_);
      cancelled_.erase(peer_slot);
      const std::vector<char> bytes =
          base_->createPair(static_cast<int>(peer_slot))->address().bytes();
      return std::string(bytes.begin(), bytes.end());
    });
  }

  Status Link(uint32_t peer_slot, const std::string& address) override {
    {
      std::lock_guard lock(links_mu_);
      if (!base_ || !base_->getPair(static_cast<int>(peer_slot))) {
        return Error{ErrorCode::kInvalidArgument, "no link was offered to this slot"};
      }
      if (cancelled_.contains(peer_slot)) {
        return Error{ErrorCode::kCancelled, "linking was cancelled"};
      }
      linking_.insert(peer_slot);
    }
    const uint64_t cancels = cancels_.load();
    const Result<bool> result = Guard<bool>("link", nullptr, [&]() -> Result<bool> {
      const TickScope tick(this);
      base_->getPair(static_cast<int>(peer_slot))
          ->connect(std::vector<char>(address.begin(), address.end()));
      return true;
    });
    std::lock_guard lock(links_mu_);
    linking_.erase(peer_slot);
    if (!result.ok()) return result.error();
    if (cancels != cancels_.load() || cancelled_.contains(peer_slot)) {
      return Error{ErrorCode::kCancelled, "linking was cancelled"};
    }
    return Status::Ok();
  }

  void CancelLinks() override {
    std::lock_guard lock(links_mu_);
    ++cancels_;
    for (const uint32_t slot : linking_) base_->getPair(static_cast<int>(slot))->close();
  }

  void CancelLink(uint32_t peer_slot) override {
    std::lock_guard lock(links_mu_);
    cancelled_.insert(peer_slot);
    if (linking_.contains(peer_slot)) base_->getPair(static_cast<int>(peer_slot))->close();
  }

  Status Begin(const View& view, int rank) override {
    auto epoch = std::make_shared<EpochState>();
    epoch->base = base_;
    epoch->epoch = view.epoch;
    epoch->tag_bits = (view.epoch & 0xffff) << 8;
    for (const ViewMember& m : view.members) {
      epoch->slots.push_back(static_cast<int>(m.slot));
      const bool self = static_cast<int>(epoch->slots.size()) - 1 == rank;
      if (!self && (!base_ || !base_->getPair(static_cast<int>(m.slot)))) {
        return Error{ErrorCode::kInvalidArgument, "not linked to " + m.id.ToString()};
      }
    }
    const int size = static_cast<int>(view.members.size());
    auto transport = std::make_shared<EpochTransport>(epoch, rank, size);
    auto context = std::make_shared<EpochContext>(device_, transport, rank, size);
    std::lock_guard lock(mu_);
    epoch_ = std::move(epoch);
    context_ = std::move(context);
    return Status::Ok();
  }

  void Abort(Epoch epoch) override {
    std::shared_ptr<EpochState> state;
    {
      std::lock_guard lock(mu_);
      if (epoch_ && epoch_->epoch <= epoch) state = epoch_;
    }
    if (state) state->Abort();
  }

  Status AllReduce(void* data, size_t count, DataType type, ReduceOp op) override {
    return Run("all-reduce", [&](gloo::Context& context,
                                 const std::shared_ptr<gloo::Context>& shared, EpochState& epoch) {
      if (context.size == 1 || count == 0) return;
      const size_t bytes = count * ElementBytes(type);
      const ReduceFunction reduce = GetReduceFunction(type, op);
      if (bytes <= kSmallBytesMax) {
        SmallAllReduce(context, ++epoch.tag, data, count, bytes, reduce);
        return;
      }
      gloo::AllreduceOptions options(shared);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setTag(++epoch.tag);
      options.setReduceFunction(gloo::AllreduceOptions::Func(reduce));
      SetOutput(options, data, count, ElementBytes(type));
      gloo::allreduce(options);
    });
  }

  Status Broadcast(void* data, size_t bytes, int root) override {
    return Run("broadcast", [&](gloo::Context& context, const std::shared_ptr<gloo::Context>&,
                                EpochState& epoch) {
      if (context.size == 1 || bytes == 0) return;
      const uint64_t slot = SlotOf(++epoch.tag);
      auto buffer = context.createUnboundBuffer(data, bytes);
      // Binomial tree over ranks relative to the root.
      const int me = (context.rank - root + context.size) % context.size;
      const auto absolute = [&](int relative) { return (relative + root) % context.size; };
      int mask = 1;
      while (mask < context.size && (me & mask) == 0) mask <<= 1;
      if (me != 0) {
        buffer->recv(absolute(me - mask), slot, 0, bytes);
        buffer->waitRecv(nullptr, context.getTimeout());
      }
      for (mask >>= 1; mask > 0; mask >>= 1) {
        if (me + mask >= context.size) continue;
        buffer->send(absolute(me + mask), slot, 0, bytes);
        buffer->waitSend(nullptr, context.getTimeout());
      }
    });
  }

  Status AllGather(const void* in, void* out, std::span<const size_t> bytes_per_rank) override {
    return Run("all-gather", [&](gloo::Context& context, const std::shared_ptr<gloo::Context>&,
                                 EpochState& epoch) {
      TROUPE_ASSERT(static_cast<int>(bytes_per_rank.size()) == context.size,
                    "one block size per rank");
      const uint64_t slot = SlotOf(++epoch.tag);
      size_t offset = 0;
      std::vector<size_t> offsets;
      for (const size_t bytes : bytes_per_rank) {
        offsets.push_back(offset);
        offset += bytes;
      }
      auto* target = static_cast<char*>(out);
      const size_t mine = bytes_per_rank[context.rank];
      if (mine > 0) std::memmove(target + offsets[context.rank], in, mine);
      std::vector<std::unique_ptr<gt::UnboundBuffer>> receiving;
      std::vector<std::unique_ptr<gt::UnboundBuffer>> sending;
      for (int step = 1; step < context.size; ++step) {
        const int from = (context.rank + step) % context.size;
        if (bytes_per_rank[from] == 0) continue;
        receiving.push_back(
            context.createUnboundBuffer(target + offsets[from], bytes_per_rank[from]));
        receiving.back()->recv(from, slot, 0, bytes_per_rank[from]);
      }
      for (int step = 1; step < context.size && mine > 0; ++step) {
        const int to = (context.rank - step + context.size) % context.size;
        sending.push_back(context.createUnboundBuffer(target + offsets[context.rank], mine));
        sending.back()->send(to, slot, 0, mine);
      }
      for (auto& buffer : receiving) buffer->waitRecv(nullptr, context.getTimeout());
      for (auto& buffer : sending) buffer->waitSend(nullptr, context.getTimeout());
    });
  }

  Status Barrier() override {
    return Run("barrier", [&](gloo::Context& context, const std::shared_ptr<gloo::Context>&,
                              EpochState& epoch) {
      uint8_t token = 0;
      if (context.size > 1) {
        SmallAllReduce(context, ++epoch.tag, &token, 1, 1,
                       GetReduceFunction(DataType::kUint8, ReduceOp::kMax));
      }
    });
  }

  Result<uint64_t> Transfer(std::span<const int> chain,
                            std::span<const MutableBuffer> buffers) override {
    uint64_t sent = 0;
    bool corrupt = false;
    const Status status =
        Run("state transfer",
            [&](gloo::Context& context, const std::shared_ptr<gloo::Context>&, EpochState& epoch) {
              const auto me = std::find(chain.begin(), chain.end(), context.rank);
              if (me == chain.end()) return;
              const int from = me == chain.begin() ? -1 : *(me - 1);
              const int to = me + 1 == chain.end() ? -1 : *(me + 1);
              for (const MutableBuffer& buffer : buffers) {
                corrupt |= !TransferOne(context, epoch, buffer, from, to);
                if (to >= 0) sent += buffer.bytes;
              }
            });
    if (!status.ok()) return status.error();
    if (corrupt) return Error{ErrorCode::kCorrupt, "state transfer: a chunk's hash does not match"};
    return sent;
  }

 private:
  struct TickScope {
    explicit TickScope(GlooCommunicator* owner) : owner_(owner) { owner_->Tick(true); }
    ~TickScope() { owner_->Tick(false); }
    GlooCommunicator* owner_;
  };

  gt::tcp::Device& TcpDevice() { return static_cast<gt::tcp::Device&>(*device_); }

  void Tick(bool on) {
    itimerspec spec{};
    if (on) spec.it_interval.tv_nsec = spec.it_value.tv_nsec = kTickNs;
    ::timerfd_settime(tick_.fd, 0, &spec, nullptr);
  }

  void AbortCurrent() {
    std::shared_ptr<EpochState> state;
    {
      std::lock_guard lock(mu_);
      state = epoch_;
    }
    if (state) state->Abort();
  }

  template <class T, class F>
  Result<T> Guard(const char* what, const EpochState* epoch, F&& body) {
    try {
      return body();
    } catch (const Aborted&) {
      return Error{ErrorCode::kEpochChanged, std::string(what) + ": the epoch was aborted"};
    } catch (const std::exception& e) {
      if (epoch != nullptr && epoch->dead.load()) {
        return Error{ErrorCode::kEpochChanged, std::string(what) + ": the epoch was aborted"};
      }
      return Error{ErrorCode::kPeerGone, std::string(what) + ": " + e.what()};
    }
  }

  template <class F>
  Status Run(const char* what, F&& body) {
    std::shared_ptr<EpochState> epoch;
    std::shared_ptr<EpochContext> context;
    {
      std::lock_guard lock(mu_);
      epoch = epoch_;
      context = context_;
    }
    if (!context) return Error{ErrorCode::kEpochChanged, std::string(what) + ": not in an epoch"};
    const Result<bool> result = Guard<bool>(what, epoch.get(), [&]() -> Result<bool> {
      epoch->Check();
      body(*context, context, *epoch);
      return true;
    });
    return result.ok() ? Status::Ok() : Status(result.error());
  }

  // Layout of Gloo's own slots: prefix << 56 | tag << 24 | (epoch in bits 8..23) | delta. Prefix
  // 0x7e is nobody else's.
  static uint64_t SlotOf(uint32_t tag, uint8_t delta = 0) {
    return (uint64_t{0x7e} << 56) | (uint64_t{tag} << 24) | delta;
  }
  static uint64_t TransferSlot(uint32_t tag, uint8_t delta) {
    return (uint64_t{0x7d} << 56) | (uint64_t{tag} << 24) | delta;
  }

  static void SetOutput(gloo::AllreduceOptions& options, void* data, size_t count,
                        size_t element_bytes) {
    switch (element_bytes) {
      case 1:
        return options.setOutput(static_cast<uint8_t*>(data), count);
      case 2:
        return options.setOutput(static_cast<uint16_t*>(data), count);
      case 4:
        return options.setOutput(static_cast<uint32_t*>(data), count);
      default:
        return options.setOutput(static_cast<uint64_t*>(data), count);
    }
  }

  // Recursive doubling (latency-optimal; Gloo's ring costs milliseconds for small tensors on few
  // cores). Ranks beyond the largest power of two first fold into a partner and get the result
  // back. Operands of a pair are combined in rank order, so every rank ends with the same bits.
  void SmallAllReduce(gloo::Context& context, uint32_t tag, void* data, size_t count, size_t bytes,
                      ReduceFunction reduce) {
    small_scratch_.resize(std::max(small_scratch_.size(), bytes));
    auto mine = context.createUnboundBuffer(data, bytes);
    auto theirs = context.createUnboundBuffer(small_scratch_.data(), bytes);
    const auto timeout = context.getTimeout();
    int power = 1;
    while (power * 2 <= context.size) power *= 2;
    const int extra = context.size - power;
    const int rank = context.rank;
    if (rank >= power) {
      mine->send(rank - power, SlotOf(tag, 0), 0, bytes);
      mine->waitSend(nullptr, timeout);
      mine->recv(rank - power, SlotOf(tag, 255), 0, bytes);
      mine->waitRecv(nullptr, timeout);
      return;
    }
    if (rank < extra) {
      theirs->recv(rank + power, SlotOf(tag, 0), 0, bytes);
      theirs->waitRecv(nullptr, timeout);
      reduce(data, data, small_scratch_.data(), count);
    }
    uint8_t round = 1;
    for (int mask = 1; mask < power; mask <<= 1, ++round) {
      const int peer = rank ^ mask;
      theirs->recv(peer, SlotOf(tag, round), 0, bytes);
      mine->send(peer, SlotOf(tag, round), 0, bytes);
      theirs->waitRecv(nullptr, timeout);
      mine->waitSend(nullptr, timeout);
      if (rank < peer) {
        reduce(data, data, small_scratch_.data(), count);
      } else {
        reduce(data, small_scratch_.data(), data, count);
      }
    }
    if (rank < extra) {
      mine->send(rank + power, SlotOf(tag, 255), 0, bytes);
      mine->waitSend(nullptr, timeout);
    }
  }

  // One buffer along the chain: receive a chunk, pass it on, then compare the hashes that follow
  // the data.
  bool TransferOne(gloo::Context& context, EpochState& epoch, const MutableBuffer& buffer, int from,
                   int to) {
    const auto timeout = context.getTimeout();
    const uint32_t in = from >= 0 ? ++epoch.received_from[from] : 0;
    const uint32_t out = to >= 0 ? ++epoch.sent_to[to] : 0;
    auto* data = static_cast<char*>(buffer.data);
    const size_t chunks = (buffer.bytes + kTransferChunkBytes - 1) / kTransferChunkBytes;
    const auto length = [&](size_t i) {
      return std::min(kTransferChunkBytes, buffer.bytes - i * kTransferChunkBytes);
    };
    std::vector<uint64_t> hashes(chunks);
    std::deque<std::unique_ptr<gt::UnboundBuffer>> receiving;
    std::deque<std::unique_ptr<gt::UnboundBuffer>> sending;
    size_t posted = 0;
    for (size_t i = 0; i < chunks; ++i) {
      char* chunk = data + i * kTransferChunkBytes;
      while (from >= 0 && posted < chunks && posted < i + kChunksInFlight) {
        receiving.push_back(
            context.createUnboundBuffer(data + posted * kTransferChunkBytes, length(posted)));
        receiving.back()->recv(from, TransferSlot(in, 1), 0, length(posted));
        ++posted;
      }
      if (from >= 0) {
        receiving.front()->waitRecv(nullptr, timeout);
        receiving.pop_front();
      }
      if (to >= 0) {
        sending.push_back(context.createUnboundBuffer(chunk, length(i)));
        sending.back()->send(to, TransferSlot(out, 1), 0, length(i));
      }
      hashes[i] = XXH3_64bits(chunk, length(i));
      if (sending.size() >= kChunksInFlight) {
        sending.front()->waitSend(nullptr, timeout);
        sending.pop_front();
      }
    }
    for (auto& chunk : sending) chunk->waitSend(nullptr, timeout);
    if (chunks == 0) return true;
    const size_t hash_bytes = chunks * sizeof(uint64_t);
    bool same = true;
    if (from >= 0) {
      std::vector<uint64_t> expected(chunks);
      auto incoming = context.createUnboundBuffer(expected.data(), hash_bytes);
      incoming->recv(from, TransferSlot(in, 2), 0, hash_bytes);
      incoming->waitRecv(nullptr, timeout);
      same = expected == hashes;
    }
    if (to >= 0) {
      auto outgoing = context.createUnboundBuffer(hashes.data(), hash_bytes);
      outgoing->send(to, TransferSlot(out, 2), 0, hash_bytes);
      outgoing->waitSend(nullptr, timeout);
    }
    return same;
  }

  std::shared_ptr<gt::Device> device_;
  TickHandler tick_;
  std::shared_ptr<gt::Context> base_;  // Owned by the link lane; read by Begin on the same lane.

  // Guarded by links_mu_.
  std::mutex links_mu_;
  std::set<uint32_t> linking_;
  std::set<uint32_t> cancelled_;  // Until they are offered to again.
  std::atomic<uint64_t> cancels_{0};

  // Guarded by mu_.
  std::mutex mu_;
  std::shared_ptr<EpochState> epoch_;
  std::shared_ptr<EpochContext> context_;

  // Owned by the collective lane.
  std::vector<char> small_scratch_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> MakeGlooCommunicator(const GlooOptions& options) {
  try {
    return std::unique_ptr<Communicator>(std::make_unique<GlooCommunicator>(options));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kUnavailable,
                 "cannot open the data plane on " + options.bind_address + ": " + e.what()};
  }
}

}  // namespace troupe::groups
