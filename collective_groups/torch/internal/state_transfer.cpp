#include "collective_groups/torch/internal/state_transfer.h"

#include <torch/types.h>
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <string>

#include "runtime/wire.h"

namespace troupe::elastic::internal {
namespace {

using groups::MutableBuffer;

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

std::vector<int> RanksOf(uint64_t bits, int first) {
  std::vector<int> ranks = {first};
  for (int rank = 0; rank < 64; ++rank) {
    if (rank != first && (bits & Bit(rank)) != 0) ranks.push_back(rank);
  }
  return ranks;
}

size_t BytesOf(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.element_size();
}

std::vector<MutableBuffer> BuffersOf(const std::vector<at::Tensor>& tensors) {
  std::vector<MutableBuffer> buffers;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) buffers.push_back({tensor.data_ptr(), BytesOf(tensor)});
  }
  return buffers;
}

uint64_t HashOf(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 0;
  for (const MutableBuffer& buffer : BuffersOf(tensors))
    hash = XXH3_64bits_withSeed(buffer.data, buffer.bytes, hash);
  return hash;
}

// Memory for tensors of these layouts; kCorrupt for a layout that cannot be.
Result<std::vector<at::Tensor>> Allocate(const std::vector<TensorLayout>& layouts) {
  std::vector<at::Tensor> tensors;
  for (const TensorLayout& layout : layouts) {
    const bool known =
        layout.type >= 0 && layout.type < static_cast<int64_t>(at::ScalarType::Undefined);
    const bool sizes =
        std::all_of(layout.sizes.begin(), layout.sizes.end(), [](int64_t n) { return n >= 0; });
    if (!known || !sizes) return Error{ErrorCode::kCorrupt, "a state of impossible tensors"};
    tensors.push_back(at::empty(layout.sizes, static_cast<at::ScalarType>(layout.type)));
  }
  return tensors;
}

}  // namespace

size_t BytesOf(const std::vector<at::Tensor>& tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += BytesOf(tensor);
  return bytes;
}

Route RouteOf(const groups::View& view) {
  Route route;
  route.source = groups::SourceRank(view);
  route.receivers = groups::RanksWithoutState(view);
  const auto member = [&](int rank) -> const groups::ViewMember& {
    return view.members[static_cast<size_t>(rank)];
  };
  route.newcomers = member(route.source).has_state && !route.receivers.empty() &&
                    std::none_of(route.receivers.begin(), route.receivers.end(),
                                 [&](int rank) { return member(rank).has_state; });
  std::set<std::string> hosts = {member(route.source).host};
  for (int rank = 0; rank < static_cast<int>(view.members.size()); ++rank) {
    if (Contains(route.receivers, rank)) continue;
    if (hosts.insert(member(rank).host).second) route.helpers.push_back(rank);
  }
  return route;
}

StateTransfer::StateTransfer(groups::GroupAgent* group, const groups::ActiveView& active,
                             Duration limit)
    : group_(group), rank_(active.topology.rank), route_(RouteOf(active.view)), limit_(limit) {}

bool StateTransfer::receives() const { return Contains(route_.receivers, rank_); }

Status StateTransfer::Move(const std::vector<int>& sources, const std::vector<int>& receivers,
                           void* data, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const Handle handle = group_->Transfer(sources, receivers, {{data, bytes}});
  Result<uint64_t> moved = group_->Wait(handle, limit_);
  if (!moved.ok() && moved.error().code == ErrorCode::kDeadlineExceeded)
    (void)group_->Wait(handle, 2 * groups::kCollectiveTimeout);  // The memory is in use until then.
  return moved.ok() ? Status::Ok() : Status(moved.error());
}

Result<uint64_t> StateTransfer::ChooseSources(const Snapshot& snapshot) {
  uint64_t chosen = Bit(route_.source);
  if (route_.helpers.empty() || BytesOf(snapshot.tensors) < kLargeStateBytes) return chosen;
  uint64_t mine = HashOf(snapshot.tensors);
  if (rank_ == route_.source) {
    for (const int helper : route_.helpers) {
      uint64_t other = 0;
      if (Status s = Move({helper}, {rank_}, &other, sizeof other); !s.ok()) return s.error();
      // Buffers such as running statistics may differ; then the source sends in its stead.
      if (other == mine) chosen |= Bit(helper);
    }
  } else if (Status s = Move({rank_}, {route_.source}, &mine, sizeof mine); !s.ok()) {
    return s.error();
  }
  if (Status s = Move({route_.source}, route_.helpers, &chosen, sizeof chosen); !s.ok())
    return s.error();
  return chosen;
}

Result<std::optional<StateTransfer::Handle>> StateTransfer::Send(uint64_t version,
                                                                 const Snapshot& snapshot,
                                                                 bool beside_training) {
  const bool sends = rank_ == route_.source || Contains(route_.helpers, rank_);
  if (route_.receivers.empty() || !sends) return std::optional<Handle>();
  const Result<uint64_t> chosen = ChooseSources(snapshot);
  if (!chosen.ok()) return chosen.error();
  if (rank_ == route_.source) {
    std::string plain = wire::Encode(kPlainType, snapshot.plain);
    Lead lead{version, plain.size(), *chosen, beside_training ? uint64_t{1} : 0};
    if (Status s = Move({rank_}, route_.receivers, &lead, sizeof lead); !s.ok()) return s.error();
    if (Status s = Move({rank_}, route_.receivers, plain.data(), plain.size()); !s.ok())
      return s.error();
  }
  std::vector<MutableBuffer> buffers = BuffersOf(snapshot.tensors);
  if ((*chosen & Bit(rank_)) == 0 || buffers.empty()) return std::optional<Handle>();
  return std::optional<Handle>(
      group_->Transfer(RanksOf(*chosen, route_.source), route_.receivers, std::move(buffers)));
}

Result<Incoming> StateTransfer::ReceivePlain() {
  Incoming incoming;
  Lead& lead = incoming.lead;
  if (Status s = Move({route_.source}, route_.receivers, &lead, sizeof lead); !s.ok())
    return s.error();
  uint64_t holders = Bit(route_.source);
  for (const int helper : route_.helpers) holders |= Bit(helper);
  if (lead.plain_bytes > wire::kWireFrameBytesMax || (lead.sources & ~holders) != 0)
    return Error{ErrorCode::kCorrupt, "a state of impossible size or origin"};
  std::string bytes(lead.plain_bytes, '\0');
  if (Status s = Move({route_.source}, route_.receivers, bytes.data(), bytes.size()); !s.ok())
    return s.error();
  Result<Plain> plain = wire::Decode<Plain>(kPlainType, bytes);
  if (!plain.ok()) return plain.error().WithContext("the group's state");
  incoming.snapshot.plain = std::move(*plain);
  return incoming;
}

Result<StateTransfer::Handle> StateTransfer::StartTensors(Incoming& incoming) {
  Result<std::vector<at::Tensor>> tensors = Allocate(incoming.snapshot.plain.layout);
  if (!tensors.ok()) return tensors.error();
  incoming.snapshot.tensors = std::move(*tensors);
  return group_->Transfer(RanksOf(incoming.lead.sources, route_.source), route_.receivers,
                          BuffersOf(incoming.snapshot.tensors));
}

}  // namespace troupe::elastic::internal
