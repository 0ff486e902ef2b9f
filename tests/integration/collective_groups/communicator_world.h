// A group whose ranks are threads of the test, over links of every kind.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collective_groups/collectives/collectives.h"

namespace troupe::groups {

// How the members of a world lie.
enum class Kind {
  kMemory,  // All on one host.
  kGloo,    // Each on its own host, over TCP.
  kLevels,  // Even and odd members on a host each.
  kUneven,  // The first on a host of its own, the others together.
  kLocal    // Each on its own host, handed over in memory.
};
inline const char* KindName(Kind kind) {
  static constexpr const char* kNames[] = {"Memory", "Gloo", "Levels", "Uneven", "Local"};
  return kNames[static_cast<size_t>(kind)];
}

struct Rank {
  uint32_t slot = 0;
  std::unique_ptr<Communicator> communicator;
};

inline const Operation kUnnamed{};

// With one buffer, in place.
inline Status Reduce(Communicator& communicator, void* data, size_t count, DataType type,
                     ReduceOp op) {
  const size_t bytes = count * ElementBytes(type);
  const ConstBuffer in{data, bytes};
  const MutableBuffer out{data, bytes};
  const ReduceArguments arguments{{type, op}, count};
  return communicator.AllReduce(kUnnamed, {&in, 1}, {&out, 1}, arguments);
}

// Ranks of one group; each runs its part on a thread of its own.
class World {
 public:
  using Front = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;

  World(Kind kind, size_t size, Front front = nullptr) : kind_(kind), front_(std::move(front)) {
    for (size_t i = 0; i < size; ++i) Join();
    Begin();
  }

  // Called with every offer before the peer gets it.
  void set_on_offer(std::function<void(const std::string&)> on_offer) {
    on_offer_ = std::move(on_offer);
  }
  // A new youngest member, linked to everybody.
  void Join() {
    const std::string host = HostOf(next_slot_);
    auto links = kind_ == Kind::kLocal ? MakeLocalLinks(exchange_) : MakeGlooLinks({}).value();
    Rank rank{next_slot_++, MakeCommunicator(std::move(links), host).value()};
    if (front_) rank.communicator = front_(std::move(rank.communicator));
    for (Rank& other : ranks_) LinkPair(rank, other);
    ranks_.push_back(std::move(rank));
  }
  // The member's process "ends".
  void Lose(size_t rank) { ranks_.erase(ranks_.begin() + static_cast<ptrdiff_t>(rank)); }
  void Relink() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      for (size_t j = i + 1; j < ranks_.size(); ++j) LinkPair(ranks_[i], ranks_[j]);
    }
  }
  // Everybody enters the next epoch.
  void Begin() {
    ++view_.epoch;
    view_.members.clear();
    for (const Rank& rank : ranks_) {
      ViewMember member;
      member.id = {"w" + std::to_string(rank.slot), 1};
      member.slot = rank.slot;
      member.memory = rank.communicator->memory();
      view_.members.push_back(member);
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const Status status = ranks_[i].communicator->Begin(view_, static_cast<int>(i), {});
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
  }
  void Abort() {
    for (Rank& rank : ranks_) rank.communicator->Abort(view_.epoch);
  }
  // Runs `body(rank, communicator)` on all ranks at once.
  void OnAll(const std::function<void(int, Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([&, i] { body(static_cast<int>(i), *ranks_[i].communicator); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // An all-reduce of distinct powers of two is exact, and shows who took part.
  void ExpectSums(size_t count = 1000) {
    OnAll([&](int rank, Communicator& communicator) {
      std::vector<float> data(count, static_cast<float>(1 << rank));
      const Status status =
          Reduce(communicator, data.data(), count, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(data, std::vector<float>(count, static_cast<float>((1 << size()) - 1)));
    });
  }

  [[nodiscard]] size_t size() const { return ranks_.size(); }
  [[nodiscard]] Epoch epoch() const { return view_.epoch; }
  [[nodiscard]] uint32_t slot(size_t rank) const { return ranks_[rank].slot; }
  Communicator& operator[](size_t rank) { return *ranks_[rank].communicator; }

 private:
  [[nodiscard]] std::string HostOf(uint32_t slot) const {
    switch (kind_) {
      case Kind::kMemory:
        return "h";
      case Kind::kLevels:
        return slot % 2 == 0 ? "even" : "odd";
      case Kind::kUneven:
        return slot == 0 ? "first" : "others";
      default:
        return "";
    }
  }
  void LinkPair(Rank& a, Rank& b) {
    const Result<std::string> from_a =
        a.communicator->Offer(a.slot, b.slot, b.communicator->memory());
    const Result<std::string> from_b =
        b.communicator->Offer(b.slot, a.slot, a.communicator->memory());
    ASSERT_TRUE(from_a.ok() && from_b.ok());
    if (on_offer_) {
      on_offer_(*from_a);
      on_offer_(*from_b);
    }
    Status linked_a;
    std::thread other([&] { linked_a = a.communicator->Link(b.slot, *from_b); });
    const Status linked_b = b.communicator->Link(a.slot, *from_a);
    other.join();
    EXPECT_TRUE(linked_a.ok()) << linked_a.error().message;
    EXPECT_TRUE(linked_b.ok()) << linked_b.error().message;
  }

  const Kind kind_;
  const Front front_;
  std::function<void(const std::string&)> on_offer_;
  const std::shared_ptr<LocalExchange> exchange_ = MakeLocalExchange();
  std::vector<Rank> ranks_;
  View view_;
  uint32_t next_slot_ = 0;
};

}  // namespace troupe::groups
