// A communicator that plays the other member of a group of two.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/collectives/communicator.h"

namespace troupe::elastic {

using namespace troupe::groups;

// All-reduces of floats: adds `peer_value` times `peer_samples` to each gradient and `peer_samples`
// to the count, which is the last element of the last bucket. Transfers go through a mailbox.
class PlayedPeer final : public Communicator {
 public:
  double peer_value = 0;
  double peer_samples = 0;
  std::string fail_at;                   // An all-reduce whose text has this fails.
  std::vector<std::string> all_reduces;  // Texts, in order.
  std::deque<std::string>* mailbox = nullptr;
  std::function<void()> before_large;  // Called before the first large transfer.

  const std::string& memory() const override { return memory_; }
  Result<std::string> Offer(uint32_t, uint32_t, const std::string&) override { return memory_; }
  Status Link(uint32_t, const std::string&) override { return Status::Ok(); }
  void CancelLinks() override {}
  void CancelLink(uint32_t) override {}
  Status Begin(const View&, int, std::vector<Team>) override { return Status::Ok(); }
  void Abort(Epoch) override {}
  Status AddTeam(Team) override { return Status::Ok(); }
  Team team(uint32_t) const override { return {}; }
  Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, const ReduceArguments& arguments) override {
    all_reduces.push_back(operation.text);
    if (!fail_at.empty() && operation.text.find(fail_at) != std::string::npos)
      return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
    std::string bytes;
    for (const ConstBuffer& piece : in)
      bytes.append(static_cast<const char*>(piece.data), piece.bytes);
    EXPECT_EQ(bytes.size(), arguments.count * sizeof(float));
    std::vector<float> values(arguments.count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (float& v : values)
      v = static_cast<float>(v * arguments.prescale + peer_value * peer_samples);
    if (IsLast(operation.text))
      values.back() += static_cast<float>(peer_samples - peer_value * peer_samples);
    std::memcpy(out[0].data, values.data(), out[0].bytes);
    return Status::Ok();
  }
  Status ReduceScatter(const Operation&, const void*, void*, std::span<const size_t>,
                       const ReduceArguments&) override {
    return Status::Ok();
  }
  Status Broadcast(const Operation&, void*, size_t, int) override { return Status::Ok(); }
  Status Exchange(const Operation&, std::span<const OutgoingBlock>,
                  std::span<const IncomingBlock>) override {
    return Status::Ok();
  }
  Status Barrier(const Operation&) override { return Status::Ok(); }
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int>,
                            std::span<const MutableBuffer> buffers) override {
    for (const MutableBuffer& buffer : buffers) {
      if (before_large && buffer.bytes > (size_t{1} << 20)) std::exchange(before_large, nullptr)();
      if (sources[0] == rank) {
        mailbox->emplace_back(static_cast<const char*>(buffer.data), buffer.bytes);
        continue;
      }
      if (mailbox->empty()) return Error{ErrorCode::kEpochChanged, "the source is gone"};
      EXPECT_EQ(mailbox->front().size(), buffer.bytes);
      std::memcpy(buffer.data, mailbox->front().data(), buffer.bytes);
      mailbox->pop_front();
    }
    return uint64_t{0};
  }
  int rank = 0;

 private:
  // "gradients, bucket 2 of 2, ..."
  static bool IsLast(const std::string& text) {
    const size_t number = text.find("bucket ") + 7;
    const size_t of = text.find(" of ", number);
    return text.substr(number, of - number) == text.substr(of + 4, text.find(',', of) - of - 4);
  }
  const std::string memory_;
};

}  // namespace troupe::elastic
