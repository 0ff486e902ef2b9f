// Links between threads of one process: every message is copied into the receiver's mailbox.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/links/links.h"

namespace troupe::groups {

class LocalExchange {
 public:
  using Box = std::tuple<std::string, Epoch, int, int, uint64_t>;  // Group, epoch, from, to, key.

  std::mutex mu;
  std::condition_variable changed;
  std::map<Box, std::deque<std::string>> boxes;
};

namespace {

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<LocalExchange> exchange, const View& view, int me)
      : exchange_(std::move(exchange)), group_(view.group), epoch_(view.epoch), me_(me) {}

  Ticket Send(int to, uint64_t key, const void* data, size_t bytes) override {
    std::lock_guard lock(exchange_->mu);
    exchange_->boxes[{group_, epoch_, me_, to, key}].emplace_back(static_cast<const char*>(data),
                                                                  bytes);
    exchange_->changed.notify_all();
    return next_ticket_++;
  }
  Ticket Receive(int from, uint64_t key, void* data, size_t bytes) override {
    receiving_[next_ticket_] = {from, key, data, bytes};
    order_[{from, key}].push_back(next_ticket_);
    return next_ticket_++;
  }
  Status Wait(Ticket ticket) override {
    const auto it = receiving_.find(ticket);
    if (it == receiving_.end()) return Over();  // A send: it was done at once.
    std::unique_lock lock(exchange_->mu);
    // Those posted before it for the same messages come first.
    std::deque<Ticket>& queue = order_[{it->second.from, it->second.key}];
    while (receiving_.contains(ticket)) {
      const Pending& next = receiving_.at(queue.front());
      std::deque<std::string>& box = exchange_->boxes[{group_, epoch_, next.from, me_, next.key}];
      const bool there = exchange_->changed.wait_for(lock, kCollectiveTimeout,
                                                     [&] { return dead_.load() || !box.empty(); });
      if (dead_.load()) return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
      if (!there) return Error{ErrorCode::kPeerGone, "no message in time"};
      if (box.front().size() != next.bytes) {
        return Error{ErrorCode::kInternal, "a message of another size was expected"};
      }
      if (next.bytes > 0) std::memcpy(next.data, box.front().data(), next.bytes);
      box.pop_front();
      receiving_.erase(queue.front());
      queue.pop_front();
    }
    return Over();
  }
  void Clear() override {
    receiving_.clear();
    order_.clear();
  }
  void Abort() override {
    std::lock_guard lock(exchange_->mu);
    dead_.store(true);
    exchange_->changed.notify_all();
  }

 private:
  struct Pending {
    int from = 0;
    uint64_t key = 0;
    void* data = nullptr;
    size_t bytes = 0;
  };
  [[nodiscard]] Status Over() const {
    if (dead_.load()) return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
    return Status::Ok();
  }

  const std::shared_ptr<LocalExchange> exchange_;
  const std::string group_;
  const Epoch epoch_;
  const int me_;
  std::atomic<bool> dead_{false};
  std::map<Ticket, Pending> receiving_;
  std::map<std::pair<int, uint64_t>, std::deque<Ticket>> order_;
  Ticket next_ticket_ = 1;
};

class LocalLinks final : public Links {
 public:
  explicit LocalLinks(std::shared_ptr<LocalExchange> exchange) : exchange_(std::move(exchange)) {}

  Result<std::string> Offer(uint32_t my_slot, uint32_t) override {
    slot_ = my_slot;
    return std::string("local");
  }
  Status Link(uint32_t peer_slot, const std::string&) override {
    linked_.insert(peer_slot);
    return Status::Ok();
  }
  void CancelLink(uint32_t) override {}
  void CancelLinks() override {}
  Result<std::shared_ptr<Channel>> Open(const View& view, const std::vector<int>& ranks) override {
    for (const int rank : ranks) {
      if (!linked_.contains(view.members[rank].slot)) {
        return Error{ErrorCode::kInvalidArgument,
                     "not linked to " + view.members[rank].id.ToString()};
      }
    }
    int me = 0;
    while (view.members[me].slot != slot_) ++me;
    return std::shared_ptr<Channel>(std::make_shared<LocalChannel>(exchange_, view, me));
  }

 private:
  const std::shared_ptr<LocalExchange> exchange_;
  uint32_t slot_ = 0;
  std::set<uint32_t> linked_;
};

}  // namespace

std::shared_ptr<LocalExchange> MakeLocalExchange() { return std::make_shared<LocalExchange>(); }

std::unique_ptr<Links> MakeLocalLinks(std::shared_ptr<LocalExchange> exchange) {
  return std::make_unique<LocalLinks>(std::move(exchange));
}

}  // namespace troupe::groups
