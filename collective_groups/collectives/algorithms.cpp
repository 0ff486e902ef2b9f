#include "collective_groups/collectives/algorithms.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "collective_groups/collectives/internal/tickets.h"
#include "runtime/assert.h"

namespace troupe::groups {
namespace {

constexpr size_t kTransferChunkBytes = size_t{4} << 20;

}  // namespace

Status Algorithms::ReduceScatter(const void* in, void* out, std::span<const size_t> counts,
                                 Elements elements) {
  const int n = team_->size();
  const int me = team_->me;
  TROUPE_ASSERT(static_cast<int>(counts.size()) == n, "one count per rank");
  const size_t width = ElementBytes(elements.type);
  const ReduceFunction reduce = GetReduceFunction(elements.type, elements.op);
  std::vector<size_t> begins(n);
  for (int r = 1; r < n; ++r) begins[r] = begins[r - 1] + counts[r - 1];
  const auto* const base = static_cast<const char*>(in);
  if (n == 1) {
    std::memmove(out, in, counts[0] * width);
    return Status::Ok();
  }
  const size_t largest = std::max<size_t>(1, *std::max_element(counts.begin(), counts.end()));
  const size_t segment = std::min(largest, kSegmentBytes / width);
  const size_t segments = (largest + segment - 1) / segment;
  const size_t total = (static_cast<size_t>(n) - 1) * segments;
  const auto piece = [&](int block, size_t index) {
    const size_t from = std::min(counts[block], index * segment);
    return ConstBuffer{base + (begins[block] + from) * width,
                       std::min(segment, counts[block] - from) * width};
  };
  char* const scratch = workspace_->Get(2 * kWindow * segment * width);
  const auto slot = [&](size_t t) { return scratch + (t % (2 * kWindow)) * segment * width; };
  const auto incoming = [&](size_t t) {
    return piece(Wrap(me - 2 - static_cast<int>(t / segments), n), t % segments);
  };
  const int right = Wrap(me + 1, n);
  const int left = Wrap(me - 1, n);
  Tickets first(channel_);
  Tickets passed(channel_);
  for (size_t i = 0; i < segments; ++i) {
    const ConstBuffer mine = piece(left, i);
    if (mine.bytes > 0) first.Add(Send(right, kScatter, mine.data, mine.bytes));
  }
  std::deque<Channel::Ticket> receiving;
  size_t posted = 0;
  for (size_t t = 0; t < total; ++t) {
    for (; posted < total && posted < t + kWindow; ++posted) {
      const size_t bytes = incoming(posted).bytes;
      receiving.push_back(bytes == 0 ? 0 : Receive(left, kScatter, slot(posted), bytes));
    }
    const ConstBuffer mine = incoming(t);
    const Channel::Ticket ticket = receiving.front();
    receiving.pop_front();
    if (mine.bytes > 0) {
      if (Status s = channel_->Wait(ticket); !s.ok()) return s;
      if (t + segments < total) {
        reduce(slot(t), slot(t), mine.data, mine.bytes / width);
        passed.Add(Send(right, kScatter, slot(t), mine.bytes));
      } else {
        char* target = static_cast<char*>(out) + (t % segments) * segment * width;
        reduce(target, slot(t), mine.data, mine.bytes / width);
      }
    }
    // A slot is received into again only when what it held has left.
    if (Status s = passed.Shrink(kWindow - 1); !s.ok()) return s;
  }
  if (Status s = first.Shrink(); !s.ok()) return s;
  return passed.Shrink();
}

Status Algorithms::Broadcast(void* data, size_t bytes, int root) {
  const int n = team_->size();
  if (n == 1 || bytes == 0) return Status::Ok();
  const int me = Wrap(team_->me - root, n);  // Relative to the root.
  const auto absolute = [&](int relative) { return (relative + root) % n; };
  int mask = 1;
  while (mask < n && (me & mask) == 0) mask <<= 1;
  const int parent = me == 0 ? -1 : absolute(me - mask);
  std::vector<int> children;
  for (mask >>= 1; mask > 0; mask >>= 1) {
    if (me + mask < n) children.push_back(absolute(me + mask));
  }
  auto* const base = static_cast<char*>(data);
  const size_t segments = (bytes + kSegmentBytes - 1) / kSegmentBytes;
  const auto length = [&](size_t i) { return std::min(kSegmentBytes, bytes - i * kSegmentBytes); };
  Tickets sending(channel_);
  Tickets receiving(channel_);
  size_t posted = 0;
  for (size_t i = 0; i < segments; ++i) {
    for (; parent >= 0 && posted < segments && posted < i + kWindow; ++posted) {
      receiving.Add(Receive(parent, kTree, base + posted * kSegmentBytes, length(posted)));
    }
    if (parent >= 0) {
      if (Status s = receiving.Shrink(posted - i - 1); !s.ok()) return s;
    }
    for (const int child : children) {
      sending.Add(Send(child, kTree, base + i * kSegmentBytes, length(i)));
    }
    if (Status s = sending.Shrink(kWindow * children.size()); !s.ok()) return s;
  }
  return sending.Shrink();
}

Status Algorithms::Exchange(std::span<const OutgoingBlock> outgoing,
                            std::span<const IncomingBlock> incoming) {
  Tickets tickets(channel_);
  for (const IncomingBlock& block : incoming) {
    if (block.bytes > 0) tickets.Add(Receive(block.peer, kBlock, block.data, block.bytes));
  }
  for (const OutgoingBlock& block : outgoing) {
    if (block.bytes > 0) tickets.Add(Send(block.peer, kBlock, block.data, block.bytes));
  }
  return tickets.Shrink();
}

namespace {

// Who is before and after this rank on the way of a stream; -1: nobody, -2: not on the way.
struct Neighbours {
  int from = -2;
  int to = -2;
};

std::vector<Neighbours> NeighboursOf(int me, std::span<const int> sources,
                                     std::span<const int> receivers) {
  const int lanes = static_cast<int>(receivers.size());
  const auto position = [&](std::span<const int> list) {
    const auto it = std::find(list.begin(), list.end(), me);
    return it == list.end() ? -1 : static_cast<int>(it - list.begin());
  };
  const int source = position(sources);
  const int receiver = position(receivers);
  std::vector<Neighbours> ways(sources.size());
  for (int k = 0; k < static_cast<int>(sources.size()); ++k) {
    const auto stop = [&](int index) { return receivers[(k + index) % lanes]; };
    if (source == k) ways[k] = {-1, stop(0)};
    if (receiver < 0) continue;
    const int index = Wrap(receiver - k, lanes);
    ways[k] = {index == 0 ? sources[k] : stop(index - 1), index + 1 < lanes ? stop(index + 1) : -1};
  }
  return ways;
}

std::vector<MutableBuffer> ChunksOf(std::span<const MutableBuffer> buffers) {
  std::vector<MutableBuffer> chunks;
  for (const MutableBuffer& buffer : buffers) {
    for (size_t at = 0; at < buffer.bytes; at += kTransferChunkBytes) {
      chunks.push_back(
          {static_cast<char*>(buffer.data) + at, std::min(kTransferChunkBytes, buffer.bytes - at)});
    }
  }
  return chunks;
}

}  // namespace

// Chunk i comes from source i % sources and visits the receivers one after another, beginning with
// receiver i % sources % receivers, so that the streams of different sources enter at different
// places. Hashes of a stream follow it along the same way.
Result<uint64_t> Algorithms::Transfer(std::span<const int> sources, std::span<const int> receivers,
                                      std::span<const MutableBuffer> buffers) {
  if (sources.empty() || receivers.empty()) return uint64_t{0};
  const size_t streams = sources.size();
  const std::vector<Neighbours> ways = NeighboursOf(team_->me, sources, receivers);
  const std::vector<MutableBuffer> chunks = ChunksOf(buffers);
  std::vector<std::vector<uint64_t>> hashes(streams);
  uint64_t sent = 0;
  Tickets sending(channel_);
  std::deque<Channel::Ticket> receiving;
  size_t posted = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (; posted < chunks.size() && posted < i + kWindow * streams; ++posted) {
      const Neighbours& way = ways[posted % streams];
      receiving.push_back(
          way.from < 0 ? 0 : Receive(way.from, kChunk, chunks[posted].data, chunks[posted].bytes));
    }
    const Channel::Ticket ticket = receiving.front();
    receiving.pop_front();
    const Neighbours& way = ways[i % streams];
    if (way.from == -2) continue;
    if (way.from >= 0) {
      if (Status s = channel_->Wait(ticket); !s.ok()) return s.error();
    }
    if (way.to >= 0) {
      sending.Add(Send(way.to, kChunk, chunks[i].data, chunks[i].bytes));
      sent += chunks[i].bytes;
    }
    hashes[i % streams].push_back(XXH3_64bits(chunks[i].data, chunks[i].bytes));
    if (Status s = sending.Shrink(kWindow); !s.ok()) return s.error();
  }
  if (Status s = sending.Shrink(); !s.ok()) return s.error();
  bool same = true;
  for (size_t k = 0; k < streams; ++k) {
    Result<bool> equal = PassHashes(ways[k].from, ways[k].to, hashes[k]);
    if (!equal.ok()) return equal.error();
    same = same && *equal;
  }
  if (!same) return Error{ErrorCode::kCorrupt, "state transfer: a chunk's hash does not match"};
  return sent;
}

// Receives the source's hashes of a stream, passes them on, and compares. What is cut short is
// forgotten before its memory goes.
Result<bool> Algorithms::PassHashes(int from, int to, const std::vector<uint64_t>& mine) {
  const size_t bytes = mine.size() * sizeof(uint64_t);
  if (bytes == 0) return true;
  std::vector<uint64_t> expected = mine;
  if (from >= 0) {
    const Status s = channel_->Wait(Receive(from, kHashes, expected.data(), bytes));
    if (!s.ok()) channel_->Clear();
    if (!s.ok()) return s.error();
  }
  if (to >= 0) {
    const Status s = channel_->Wait(Send(to, kHashes, expected.data(), bytes));
    if (!s.ok()) channel_->Clear();
    if (!s.ok()) return s.error();
  }
  return expected == mine;
}

}  // namespace troupe::groups
