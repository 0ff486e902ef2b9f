// All-reduce over a channel: three algorithms by size. Every element of the result is summed up on
// one rank or by an order that all ranks share, so that all get the same bits.
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "collective_groups/collectives/algorithms.h"
#include "collective_groups/collectives/internal/tickets.h"

namespace troupe::groups {

Status Algorithms::AllReduce(const void* in, void* out, size_t count, Elements elements,
                             const AllReduceHooks& hooks) {
  const size_t bytes = count * ElementBytes(elements.type);
  if (count == 0) return Status::Ok();
  const bool power = std::has_single_bit(static_cast<unsigned>(team_->size()));
  const size_t whole = power ? kMediumAllReduceBytes : kSmallAllReduceBytes;
  if (team_->size() > 1 && bytes > whole) return Ring(in, out, count, elements, hooks);
  if (hooks.fill) hooks.fill(0, bytes);
  if (Status s = WholeAllReduce(in, out, count, elements); !s.ok()) return s;
  ScaleInPlace(out, count, elements.type, hooks.scale);
  if (hooks.drain) hooks.drain(0, bytes);
  return Status::Ok();
}

// All of it at a time: what travels is too short to be worked on in parts.
Status Algorithms::WholeAllReduce(const void* in, void* out, size_t count, Elements elements) {
  const size_t bytes = count * ElementBytes(elements.type);
  const bool halves = team_->size() > 1 && bytes > kSmallAllReduceBytes;
  if (halves) return Halving(in, out, count, elements);
  if (in != out) std::memcpy(out, in, bytes);
  return team_->size() == 1 ? Status::Ok() : Doubling(out, count, elements);
}

// Ranks beyond the largest power of two first fold into a partner and get the result back. The
// operands of a pair are combined in rank order.
Status Algorithms::Doubling(void* data, size_t count, Elements elements) {
  const ReduceFunction reduce = GetReduceFunction(elements.type, elements.op);
  const size_t bytes = count * ElementBytes(elements.type);
  const auto n = static_cast<unsigned>(team_->size());
  const int power = static_cast<int>(std::bit_floor(n));
  const int rounds = std::countr_zero(std::bit_floor(n));
  const int extra = team_->size() - power;
  const int me = team_->me;
  if (me >= power) {
    const Channel::Ticket result = Receive(me - power, kUnfold, data, bytes);
    if (Status s = channel_->Wait(Send(me - power, kFold, data, bytes)); !s.ok()) return s;
    return channel_->Wait(result);
  }
  char* const landings = workspace_->Get((rounds + 1) * bytes);
  std::vector<Channel::Ticket> receiving;
  for (int round = 0; round < rounds; ++round) {
    receiving.push_back(
        Receive(me ^ (1 << round), kDoubling + round, landings + round * bytes, bytes));
  }
  if (me < extra) {
    char* const theirs = landings + rounds * bytes;
    if (Status s = channel_->Wait(Receive(me + power, kFold, theirs, bytes)); !s.ok()) return s;
    reduce(data, data, theirs, count);
  }
  for (int round = 0; round < rounds; ++round) {
    const int peer = me ^ (1 << round);
    const char* const theirs = landings + round * bytes;
    const Channel::Ticket sending = Send(peer, kDoubling + round, data, bytes);
    if (Status s = channel_->Wait(receiving[round]); !s.ok()) return s;
    if (Status s = channel_->Wait(sending); !s.ok()) return s;
    const bool first = me < peer;
    reduce(data, first ? data : theirs, first ? theirs : data, count);
  }
  if (me >= extra) return Status::Ok();
  return channel_->Wait(Send(me + power, kUnfold, data, bytes));
}

// Reduce-scatter by halves, then the way back. In each round the two ranks of a pair split what
// both have partial sums of, and combine them in rank order. The first round reads `in`. What is
// gathered may land where something was sent from: it comes from who has received that.
Status Algorithms::Halving(const void* in, void* out, size_t count, Elements elements) {
  const ReduceFunction reduce = GetReduceFunction(elements.type, elements.op);
  const size_t width = ElementBytes(elements.type);
  const int n = team_->size();
  const int me = team_->me;
  const int rounds = std::countr_zero(static_cast<unsigned>(n));
  const auto* from = static_cast<const char*>(in);
  auto* const base = static_cast<char*>(out);
  const auto offset = [&](int block) { return count * block / n * width; };
  // The blocks that `rank` has to do with after the round that splits groups of 2 * mask.
  const auto length = [&](int rank, int mask) {
    const int begin = rank & ~(mask - 1);
    return offset(begin + mask) - offset(begin);
  };
  char* landing = workspace_->Get((count + static_cast<size_t>(n)) * width);
  std::vector<std::pair<Channel::Ticket, const char*>> halves;
  std::vector<Channel::Ticket> gathered;
  for (int round = 0; round < rounds; ++round) {
    const int mask = n >> (round + 1);
    const size_t bytes = length(me, mask);
    halves.emplace_back(Receive(me ^ mask, kHalving + round, landing, bytes), landing);
    landing += bytes;
  }
  for (int round = 0; round < rounds; ++round) {
    const int peer = me ^ (1 << round);
    char* const target = base + offset(peer & ~((1 << round) - 1));
    gathered.push_back(Receive(peer, kGathering + round, target, length(peer, 1 << round)));
  }
  Tickets sending(channel_);
  for (int round = 0; round < rounds; ++round) {
    const int mask = n >> (round + 1);
    const int peer = me ^ mask;
    const size_t given = offset(peer & ~(mask - 1));
    const size_t kept = offset(me & ~(mask - 1));
    sending.Add(Send(peer, kHalving + round, from + given, length(peer, mask)));
    if (Status s = channel_->Wait(halves[round].first); !s.ok()) return s;
    const char* const theirs = halves[round].second;
    const char* const mine = from + kept;
    const bool first = me < peer;
    reduce(base + kept, first ? mine : theirs, first ? theirs : mine, length(me, mask) / width);
    from = base;
  }
  for (int round = 0; round < rounds; ++round) {
    const int mask = 1 << round;
    const char* const held = base + offset(me & ~(mask - 1));
    sending.Add(Send(me ^ mask, kGathering + round, held, length(me, mask)));
    if (Status s = channel_->Wait(gathered[round]); !s.ok()) return s;
  }
  return sending.Shrink();
}

// 2(n-1) steps around the ring: in the first half partial sums of one block each travel and grow,
// in the second the finished blocks. Message t is segment t % segments of step t / segments; what
// arrives as message t leaves, reduced, as message t + segments. What `in` holds is read once. Who
// finishes a block scales it.
Status Algorithms::Ring(const void* in, void* out, size_t count, Elements elements,
                        const AllReduceHooks& hooks) {
  const int n = team_->size();
  const int me = team_->me;
  const size_t width = ElementBytes(elements.type);
  const ReduceFunction reduce = GetReduceFunction(elements.type, elements.op);
  const size_t largest = (count + static_cast<size_t>(n) - 1) / static_cast<size_t>(n);
  // Of two segments one is reduced while the other travels; small ones cost more than that saves.
  const size_t segment =
      std::clamp(largest / 2, std::min(largest, kSegmentBytesLeast / width), kSegmentBytes / width);
  const size_t segments = (largest + segment - 1) / segment;
  const size_t total = 2 * (static_cast<size_t>(n) - 1) * segments;
  const size_t reducing = total / 2;
  struct Piece {
    size_t begin;  // Bytes.
    size_t bytes;
  };
  const auto piece = [&](int block, size_t index) {
    const size_t end = count * (block + 1) / n;
    const size_t from = std::min(end, count * block / n + index * segment);
    return Piece{from * width, std::min(segment, end - from) * width};
  };
  const auto incoming = [&](size_t t) {
    return piece(Wrap(me - static_cast<int>(t / segments) - 1, n), t % segments);
  };
  const auto* const inputs = static_cast<const char*>(in);
  auto* const outputs = static_cast<char*>(out);
  // What is gathered has its place already.
  const size_t window = std::min(kWindow, reducing);
  char* const scratch = workspace_->Get(window * segment * width);
  const auto landing = [&](size_t t) {
    return t < reducing ? scratch + (t % window) * segment * width : outputs + incoming(t).begin;
  };
  Tickets sending(channel_);
  std::deque<Channel::Ticket> receiving;
  const int right = Wrap(me + 1, n);
  const int left = Wrap(me - 1, n);
  size_t posted = 0;
  for (size_t i = 0; i < segments; ++i) {
    const Piece mine = piece(me, i);
    if (hooks.fill) hooks.fill(mine.begin, mine.bytes);
    if (mine.bytes > 0) sending.Add(Send(right, kRing, inputs + mine.begin, mine.bytes));
  }
  for (size_t t = 0; t < total; ++t) {
    for (; posted < total && (posted >= reducing || posted < t + window); ++posted) {
      const size_t bytes = incoming(posted).bytes;
      receiving.push_back(bytes == 0 ? 0 : Receive(left, kRing, landing(posted), bytes));
    }
    const Piece target = incoming(t);
    const Channel::Ticket ticket = receiving.front();
    receiving.pop_front();
    if (target.bytes == 0) continue;
    if (t < reducing && hooks.fill) hooks.fill(target.begin, target.bytes);
    if (Status s = channel_->Wait(ticket); !s.ok()) return s;
    char* const result = outputs + target.begin;
    const size_t elements_here = target.bytes / width;
    const bool finished = t + segments >= reducing;
    if (t < reducing) {
      reduce(result, landing(t), inputs + target.begin, elements_here);
      if (finished) ScaleInPlace(result, elements_here, elements.type, hooks.scale);
    }
    if (t + segments < total) sending.Add(Send(right, kRing, result, target.bytes));
    if (finished && hooks.drain) hooks.drain(target.begin, target.bytes);
    if (Status s = sending.Shrink(segments + window); !s.ok()) return s;
  }
  return sending.Shrink();
}

}  // namespace troupe::groups
