// A communicator that passes everything on, for tests that change what some operations do.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/collectives/communicator.h"

namespace troupe::groups {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  const std::string& memory() const override { return inner_->memory(); }
  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot,
                            const std::string& peer_memory) override {
    return inner_->Offer(my_slot, peer_slot, peer_memory);
  }
  Status Link(uint32_t slot, const std::string& address) override {
    return inner_->Link(slot, address);
  }
  void CancelLink(uint32_t slot) override { inner_->CancelLink(slot); }
  void CancelLinks() override { inner_->CancelLinks(); }
  uint64_t moved() override { return inner_->moved(); }
  Status Begin(const View& view, int rank, std::vector<Team> teams) override {
    return inner_->Begin(view, rank, std::move(teams));
  }
  void Abort(Epoch epoch) override { inner_->Abort(epoch); }
  Status AddTeam(Team team) override { return inner_->AddTeam(std::move(team)); }
  Team team(uint32_t id) const override { return inner_->team(id); }
  Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, const ReduceArguments& arguments) override {
    return inner_->AllReduce(operation, in, out, arguments);
  }
  Status ReduceScatter(const Operation& operation, const void* in, void* out,
                       std::span<const size_t> counts, const ReduceArguments& arguments) override {
    return inner_->ReduceScatter(operation, in, out, counts, arguments);
  }
  Status Broadcast(const Operation& operation, void* data, size_t bytes, int root) override {
    return inner_->Broadcast(operation, data, bytes, root);
  }
  Status Exchange(const Operation& operation, std::span<const OutgoingBlock> outgoing,
                  std::span<const IncomingBlock> incoming) override {
    return inner_->Exchange(operation, outgoing, incoming);
  }
  Status Barrier(const Operation& operation) override { return inner_->Barrier(operation); }
  Status Send(const Operation& operation, const void* data, size_t bytes, int to) override {
    return inner_->Send(operation, data, bytes, to);
  }
  Status Receive(const Operation& operation, void* data, size_t bytes, int from) override {
    return inner_->Receive(operation, data, bytes, from);
  }
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    return inner_->Transfer(sources, receivers, buffers);
  }

 private:
  const std::unique_ptr<Communicator> inner_;
};

}  // namespace troupe::groups
