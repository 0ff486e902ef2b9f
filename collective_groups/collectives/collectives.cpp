#include "collective_groups/collectives/collectives.h"

#include <cstring>
#include <vector>

#include "collective_groups/collectives/adasum.h"
#include "collective_groups/collectives/internal/segments.h"

namespace troupe::groups {

Status AllGather(Communicator& communicator, const Operation& operation, const void* in, void* out,
                 std::span<const size_t> bytes_per_rank) {
  const Team team = communicator.team(operation.team);
  if (team.size() != static_cast<int>(bytes_per_rank.size())) {
    return Error{ErrorCode::kInvalidArgument,
                 operation.text + ": " + std::to_string(bytes_per_rank.size()) +
                     " block sizes for " + std::to_string(team.size()) + " ranks"};
  }
  if (operation.device.used()) {
    return communicator.AllGatherOnDevice(operation, in, out, bytes_per_rank);
  }
  std::vector<char*> blocks;
  auto* at = static_cast<char*>(out);
  for (const size_t bytes : bytes_per_rank) {
    blocks.push_back(at);
    at += bytes;
  }
  const auto me = static_cast<size_t>(team.me);
  if (bytes_per_rank[me] > 0) std::memmove(blocks[me], in, bytes_per_rank[me]);
  std::vector<OutgoingBlock> outgoing;
  std::vector<IncomingBlock> incoming;
  // Everybody begins with another peer.
  for (int step = 1; step < team.size(); ++step) {
    const int to = (team.me + step) % team.size();
    const int from = (team.me + team.size() - step) % team.size();
    outgoing.push_back({to, blocks[me], bytes_per_rank[me]});
    incoming.push_back(
        {from, blocks[static_cast<size_t>(from)], bytes_per_rank[static_cast<size_t>(from)]});
  }
  return communicator.Exchange(operation, outgoing, incoming);
}

// Doubles: in each round two ranks swap what they have and combine it in the order of their ranks,
// so that both get the same bits. Ranks beyond the largest power of two fold into a partner first
// and get the result back. Everybody calls every exchange, to stay in step.
Status Adasum(Communicator& communicator, const Operation& operation,
              std::span<const MutableBuffer> tensors, DataType type) {
  if (!IsAdasumType(type)) {
    return Error{ErrorCode::kInvalidArgument, operation.text + ": Adasum is for floating types, " +
                                                  "not " + std::string(DataTypeName(type))};
  }
  const Team team = communicator.team(operation.team);
  size_t bytes = 0;
  for (const MutableBuffer& tensor : tensors) bytes += tensor.bytes;
  std::vector<ConstBuffer> sources;
  for (const MutableBuffer& tensor : tensors) sources.push_back({tensor.data, tensor.bytes});
  std::vector<char> mine(bytes);
  std::vector<char> theirs(bytes);
  SegmentReader(sources).Read(mine.data(), bytes);
  const auto combine = [&](bool mine_first) {
    const size_t width = ElementBytes(type);
    size_t at = 0;
    for (const MutableBuffer& tensor : tensors) {
      char* a = mine_first ? mine.data() + at : theirs.data() + at;
      char* b = mine_first ? theirs.data() + at : mine.data() + at;
      AdasumCombine(mine.data() + at, a, b, tensor.bytes / width, type);
      at += tensor.bytes;
    }
  };
  int power = 1;
  while (power * 2 <= team.size()) power *= 2;
  const int extra = team.size() - power;
  const int me = team.me;
  const OutgoingBlock none_out{};
  const IncomingBlock none_in{};
  const auto exchange = [&](int to, int from, void* target) {
    const OutgoingBlock out{to, mine.data(), bytes};
    const IncomingBlock in{from, target, bytes};
    return communicator.Exchange(operation, {&(to < 0 ? none_out : out), size_t{to >= 0}},
                                 {&(from < 0 ? none_in : in), size_t{from >= 0}});
  };
  const bool folds = me >= power;
  const bool takes = me < extra;
  Status s = exchange(folds ? me - power : -1, takes ? me + power : -1, theirs.data());
  if (s.ok() && takes) combine(true);
  for (int mask = 1; s.ok() && mask < power; mask <<= 1) {
    const int peer = folds ? -1 : me ^ mask;
    s = exchange(peer, peer, theirs.data());
    if (s.ok() && !folds) combine(me < peer);
  }
  if (s.ok()) s = exchange(takes ? me + power : -1, folds ? me - power : -1, mine.data());
  if (s.ok()) SegmentWriter(tensors).Write(mine.data(), bytes);
  return s;
}

}  // namespace troupe::groups
