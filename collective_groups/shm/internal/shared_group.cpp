#include "collective_groups/shm/internal/shared_group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "collective_groups/collectives/communicator.h"
#include "runtime/assert.h"

namespace troupe::groups {
namespace {

constexpr size_t kSmallBytes = size_t{32} << 10;  // Everybody computes everything: one wait less.
constexpr size_t kAlign = 64;
constexpr Duration kSleepSlice = milliseconds(200);
// A member that is about to publish does so within microseconds, if it has a core.
constexpr int kSpinsWithCores = 200;
constexpr int kSpinsWithout = 50;
constexpr uint64_t kCountMask = (uint64_t{1} << 48) - 1;

struct Head {  // Of a message in a ring.
  uint64_t key;
  uint64_t bytes;
};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int Cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

// Element where part `index` of `parts` begins; parts begin at multiples of a cache line.
size_t PartBegin(size_t elements, size_t width, int index, int parts) {
  if (index >= parts) return elements;
  const size_t step = kAlign / width;
  return elements * static_cast<size_t>(index) / static_cast<size_t>(parts) / step * step;
}

void CopyIn(char* ring, uint64_t at, const void* data, size_t bytes) {
  const size_t offset = at % kRingBytes;
  const size_t first = std::min(bytes, kRingBytes - offset);
  std::memcpy(ring + offset, data, first);
  std::memcpy(ring, static_cast<const char*>(data) + first, bytes - first);
}

void CopyOut(const char* ring, uint64_t at, void* data, size_t bytes) {
  const size_t offset = at % kRingBytes;
  const size_t first = std::min(bytes, kRingBytes - offset);
  std::memcpy(data, ring + offset, first);
  std::memcpy(static_cast<char*>(data) + first, ring, bytes - first);
}

void Combine(void* out, const std::vector<const void*>& inputs, size_t count, Elements elements) {
  GetReduceManyFunction(elements.type, elements.op)(out, inputs.data(), inputs.size(), count);
}

Error EpochOver(const char* what) {
  return {ErrorCode::kEpochChanged, std::string(what) + ": the epoch was aborted"};
}

}  // namespace

SharedGroup::SharedGroup(Epoch epoch, std::vector<Peer> peers, size_t me)
    : epoch_bits_((epoch & 0xffff) << 48),
      peers_(std::move(peers)),
      me_(me),
      spins_(static_cast<int>(peers_.size()) <= Cores() ? kSpinsWithCores : kSpinsWithout),
      lines_(peers_.size()) {
  SharedHeader& header = Mine().own_header();
  for (size_t team = 0; team < kTeamsMax; ++team) {
    header.staged[team].value.store(Stamp(0));
    header.reduced[team].value.store(Stamp(0));
  }
  for (size_t peer = 0; peer < kPeersMax; ++peer) {
    header.written[peer].value.store(Stamp(0));
    header.consumed[peer].value.store(Stamp(0));
  }
}

// ---- waiting ----

SharedGroup::Seen SharedGroup::Reached(uint64_t word, uint64_t count) const {
  const auto ahead = static_cast<int16_t>((word >> 48) - (epoch_bits_ >> 48));
  if (ahead > 0) return Seen::kNever;
  return ahead < 0 || (word & kCountMask) < count ? Seen::kNotYet : Seen::kYes;
}

// Who is in another operation in this place has put nothing for this member; it may be further, if
// it waits for nobody. If they do not mean the same this member goes nowhere, and the group's
// coordinator sees who waits in what. The signature stays as long as the chunk that it is of.
SharedGroup::Seen SharedGroup::Staged(const LocalTeam& team, int peer, uint64_t chunk) const {
  const SharedHeader& header = peers_[static_cast<size_t>(peer)].segment->header();
  const uint64_t word = header.staged[team.id].value.load(std::memory_order_acquire);
  const Seen seen = Reached(word, chunk + 1);
  if (seen != Seen::kYes) return seen;
  const auto& there = header.signatures[team.id].of_chunk[chunk % kStages];
  return there.load(std::memory_order_relaxed) == team.signature ? Seen::kYes : Seen::kNotYet;
}

// Of the other side of a ring; nothing yet if it has not entered this epoch, and nothing any more
// if it has gone on to a later one.
uint64_t SharedGroup::CountOf(uint64_t word) {
  if ((word & ~kCountMask) == epoch_bits_) return word & kCountMask;
  left_behind_ = left_behind_ || Reached(word, 0) == Seen::kNever;
  return 0;
}

// `missed`, if given, is the member whose news `check` needs next.
Status SharedGroup::WaitUntil(const std::function<Seen()>& check, const char* what,
                              const std::function<uint32_t()>& missed) {
  const auto awaited = [&] {
    return missed ? SharedSegment::NewsOf(missed()) : SharedSegment::kAnything;
  };
  const auto finished = [&](Seen seen) { return seen != Seen::kNotYet; };
  Seen seen = check();
  for (int i = 0; !finished(seen) && i < spins_ && !dead_.load(std::memory_order_relaxed); ++i) {
    Pause();
    seen = check();
  }
  SharedHeader& header = Mine().own_header();
  const SteadyClock clock;
  const Time deadline = finished(seen) ? Time::Never() : clock.Now() + kCollectiveTimeout;
  while (!finished(seen) && !dead_.load()) {
    const uint32_t bell = Mine().doorbell().load();
    const uint32_t wanted = awaited();
    header.sleeping.store(wanted);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    seen = check();
    const bool same = !finished(seen) && awaited() == wanted;  // Else look for the next.
    if (same && !dead_.load()) Mine().Sleep(bell, kSleepSlice);
    header.sleeping.store(SharedSegment::kAwake);
    if (same) seen = check();
    if (!finished(seen) && clock.Now() >= deadline) {
      return Error{ErrorCode::kPeerGone,
                   std::string(what) + ": a member of this host made no progress in time"};
    }
  }
  if (seen == Seen::kYes) return Status::Ok();
  return EpochOver(what);
}

void SharedGroup::Publish(const LocalTeam& team, Words words, uint64_t count) {
  (Mine().own_header().*words)[team.id].value.store(Stamp(count), std::memory_order_release);
  for (const int peer : team.peers) {
    if (peer != static_cast<int>(me_)) peers_[peer].segment->Ring(static_cast<uint32_t>(me_));
  }
}

void SharedGroup::PublishStaged(const LocalTeam& team, uint64_t chunk) {
  auto& signature = Mine().own_header().signatures[team.id].of_chunk[chunk % kStages];
  signature.store(team.signature, std::memory_order_relaxed);
  Publish(team, &SharedHeader::staged, chunk + 1);
}

template <class Check>
Status SharedGroup::WaitForEach(const LocalTeam& team, const char* what, const Check& check) {
  size_t next = 0;  // All before it have been seen.
  return WaitUntil(
      [&] {
        for (; next < team.peers.size(); ++next) {
          const Seen seen = check(team.peers[next]);
          if (seen != Seen::kYes) return seen;
        }
        return Seen::kYes;
      },
      what,
      [&] { return static_cast<uint32_t>(team.peers[std::min(next, team.peers.size() - 1)]); });
}

Status SharedGroup::WaitForAll(const LocalTeam& team, Words words, uint64_t count,
                               const char* what) {
  return WaitForEach(team, what, [&](int peer) {
    const SharedHeader& header = peers_[static_cast<size_t>(peer)].segment->header();
    return Reached((header.*words)[team.id].value.load(std::memory_order_acquire), count);
  });
}

Status SharedGroup::WaitForStaged(const LocalTeam& team, uint64_t chunk, const char* what) {
  return WaitForEach(team, what, [&](int peer) { return Staged(team, peer, chunk); });
}

// A member that was stopped for a while and evicted may have read what a later epoch wrote.
Status SharedGroup::StillCurrent(const LocalTeam& team) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (const int peer : team.peers) {
    const uint64_t word = peers_[peer].segment->header().staged[team.id].value.load();
    if ((word & ~kCountMask) != epoch_bits_) return EpochOver("shared memory");
  }
  return Status::Ok();
}

// A member's stage and signature of a chunk are read until all have left the operation that it was
// of: who has put the chunk after it has. Only then may the chunk kStages later take its place. In
// a row of all-reduces that is so by itself; a broadcast lets its root and the quick ones go ahead.
Status SharedGroup::WaitForPlace(const LocalTeam& team, uint64_t chunk, const char* what) {
  if (chunk < kStages) return Status::Ok();
  return WaitForAll(team, &SharedHeader::staged, chunk - kStages + 2, what);
}

// ---- all-reduce ----

// Nobody else reads this member's input to its own part: it stays where it is, if it can.
const char* SharedGroup::PutChunk(LocalTeam& team, uint64_t chunk, SegmentReader& in,
                                  size_t elements, const Reduction& reduction) {
  const size_t width = ElementBytes(reduction.elements.type);
  const int owners = reduction.owners > 0 ? reduction.owners : team.size();
  const size_t begin = PartBegin(elements, width, team.me, owners) * width;
  const size_t end = PartBegin(elements, width, team.me + 1, owners) * width;
  char* stage = Mine().stage(team.id, chunk);
  in.Read(stage, begin);
  const char* own = reduction.prescale == 1.0 ? in.Take(end - begin) : nullptr;
  if (own == nullptr) {
    own = stage + begin;
    in.Read(stage + begin, end - begin);
  }
  in.Read(stage + end, elements * width - end);
  if (reduction.prescale != 1.0) {
    ScaleInPlace(stage, elements, reduction.elements.type, reduction.prescale);
  }
  PublishStaged(team, chunk);
  return own;
}

Status SharedGroup::ComputePart(LocalTeam& team, uint64_t chunk, size_t elements, const char* own,
                                const Reduction& reduction) {
  Status all = WaitForStaged(team, chunk, "all-reduce");
  if (!all.ok()) return all;
  const int owners = reduction.owners > 0 ? reduction.owners : team.size();
  if (team.me < owners) {
    const size_t width = ElementBytes(reduction.elements.type);
    const size_t begin = PartBegin(elements, width, team.me, owners);
    const size_t count = PartBegin(elements, width, team.me + 1, owners) - begin;
    char* result = Mine().result(team.id, chunk) + begin * width;
    std::vector<const void*> inputs;
    for (const int peer : team.peers) {
      inputs.push_back(peers_[peer].segment->stage(team.id, chunk) + begin * width);
    }
    inputs[static_cast<size_t>(team.me)] = own;
    Combine(result, inputs, count, reduction.elements);
    if (reduction.across && count > 0) {
      if (Status s = reduction.across(result, count); !s.ok()) return s;
    }
    if (reduction.postscale != 1.0) {
      ScaleInPlace(result, count, reduction.elements.type, reduction.postscale);
    }
  }
  Publish(team, &SharedHeader::reduced, chunk + 1);
  return Status::Ok();
}

Status SharedGroup::CopyParts(LocalTeam& team, uint64_t chunk, SegmentWriter* out, size_t elements,
                              const Reduction& reduction) {
  Status all = WaitForAll(team, &SharedHeader::reduced, chunk + 1, "all-reduce");
  if (!all.ok()) return all;
  if (out == nullptr) return Status::Ok();
  const size_t width = ElementBytes(reduction.elements.type);
  const int owners = reduction.owners > 0 ? reduction.owners : team.size();
  for (int part = 0; part < owners; ++part) {
    const size_t begin = PartBegin(elements, width, part, owners);
    const size_t end = PartBegin(elements, width, part + 1, owners);
    out->Write(peers_[team.peers[part]].segment->result(team.id, chunk) + begin * width,
               (end - begin) * width);
  }
  return Status::Ok();
}

// Not less than four chunks, so that putting, computing and copying overlap. Two members seldom
// wait, and do best with what their caches hold; more of them pay for every wait.
size_t SharedGroup::ChunkElements(size_t count, size_t width, int members) {
  const size_t wanted = (count * width / 4 + kAlign - 1) / kAlign * kAlign;
  const size_t most = members <= 2 ? kStageBytes / 4 : kStageBytes;
  return std::clamp(wanted, kSmallBytes, most) / width;
}

Status SharedGroup::AllReduce(LocalTeam& team, std::span<const ConstBuffer> in,
                              std::span<const MutableBuffer> out, size_t count,
                              const Reduction& reduction) {
  const size_t width = ElementBytes(reduction.elements.type);
  if (count * width <= kSmallBytes && !reduction.across) {
    return AllReduceSmall(team, in, out, count, reduction);
  }
  const size_t per_chunk = ChunkElements(count, width, reduction.members);
  const uint64_t chunks = (count + per_chunk - 1) / per_chunk;
  const uint64_t first = team.chunk;
  const auto size_of = [&](uint64_t i) { return std::min(per_chunk, count - i * per_chunk); };
  SegmentReader reader(in);
  SegmentWriter writer(out, count * width >= kStreamBytes);
  const char* own[2] = {};
  for (uint64_t i = 0; i < chunks + 2; ++i) {
    Status s;
    if (i < chunks) {
      s = WaitForPlace(team, first + i, "all-reduce");
      if (!s.ok()) return s;
      own[i % 2] = PutChunk(team, first + i, reader, size_of(i), reduction);
    }
    if (i >= 1 && i - 1 < chunks) {
      s = ComputePart(team, first + i - 1, size_of(i - 1), own[(i - 1) % 2], reduction);
    }
    if (s.ok() && i >= 2) {
      s = CopyParts(team, first + i - 2, out.empty() ? nullptr : &writer, size_of(i - 2),
                    reduction);
    }
    if (!s.ok()) return s;
  }
  team.chunk += chunks;
  return StillCurrent(team);
}

Status SharedGroup::AllReduceSmall(LocalTeam& team, std::span<const ConstBuffer> in,
                                   std::span<const MutableBuffer> out, size_t count,
                                   const Reduction& reduction) {
  const uint64_t chunk = team.chunk;
  if (Status place = WaitForPlace(team, chunk, "all-reduce"); !place.ok()) return place;
  SegmentReader reader(in);
  const size_t bytes = count * ElementBytes(reduction.elements.type);
  char* stage = Mine().stage(team.id, chunk);
  reader.Read(stage, bytes);
  if (reduction.prescale != 1.0) {
    ScaleInPlace(stage, count, reduction.elements.type, reduction.prescale);
  }
  PublishStaged(team, chunk);
  Status all = WaitForStaged(team, chunk, "all-reduce");
  if (!all.ok()) return all;
  if (!out.empty() && count > 0) {
    std::vector<const void*> inputs;
    for (const int peer : team.peers) {
      inputs.push_back(peers_[peer].segment->stage(team.id, chunk));
    }
    // Into the own result area: nobody else reads it in this chunk.
    char* result = Mine().result(team.id, chunk);
    Combine(result, inputs, count, reduction.elements);
    if (reduction.postscale != 1.0) {
      ScaleInPlace(result, count, reduction.elements.type, reduction.postscale);
    }
    SegmentWriter(out).Write(result, bytes);
  }
  team.chunk += 1;
  return StillCurrent(team);
}

Status SharedGroup::Barrier(LocalTeam& team) {
  return AllReduceSmall(team, {}, {}, 0, Reduction{});
}

Status SharedGroup::Broadcast(LocalTeam& team, void* data, size_t bytes, int root,
                              const Fetch& fetch) {
  auto* at = static_cast<char*>(data);
  for (size_t left = bytes; left > 0;) {
    const size_t piece = std::min(left, kStageBytes);
    const uint64_t chunk = team.chunk;
    if (team.me == root) {
      if (Status place = WaitForPlace(team, chunk, "broadcast"); !place.ok()) return place;
      if (fetch) {
        if (Status s = fetch(at, piece); !s.ok()) return s;
      }
      std::memcpy(Mine().stage(team.id, chunk), at, piece);
      PublishStaged(team, chunk);
    } else {
      const SharedSegment& source = *peers_[team.peers[root]].segment;
      Status there = WaitUntil([&] { return Staged(team, team.peers[root], chunk); }, "broadcast",
                               [&] { return static_cast<uint32_t>(team.peers[root]); });
      if (!there.ok()) return there;
      std::memcpy(at, source.stage(team.id, chunk), piece);
      PublishStaged(team, chunk);
    }
    team.chunk += 1;
    at += piece;
    left -= piece;
  }
  return StillCurrent(team);
}

// ---- messages ----

size_t SharedGroup::IndexOf(int rank) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].rank == rank) return i;
  }
  TROUPE_ASSERT(false, "a rank of another host");
}

Channel::Ticket SharedGroup::Send(int to, uint64_t key, const void* data, size_t bytes) {
  const size_t peer = IndexOf(to);
  auto* source = const_cast<char*>(static_cast<const char*>(data));
  lines_[peer].sending.push_back({next_ticket_, key, source, bytes, false, 0});
  open_.insert(next_ticket_);
  if (!dead_.load()) MoveOut(peer, lines_[peer]);
  return next_ticket_++;
}

Channel::Ticket SharedGroup::Receive(int from, uint64_t key, void* data, size_t bytes) {
  lines_[IndexOf(from)].receiving.push_back(
      {next_ticket_, key, static_cast<char*>(data), bytes, false, 0});
  open_.insert(next_ticket_);
  return next_ticket_++;
}

Status SharedGroup::Wait(Ticket ticket) {
  return WaitUntil(
      [&] {
        MoveMessages();
        if (left_behind_) return Seen::kNever;
        return open_.contains(ticket) ? Seen::kNotYet : Seen::kYes;
      },
      "message");
}

void SharedGroup::Clear() {
  for (Line& line : lines_) {
    line.sending.clear();
    line.receiving.clear();
  }
  open_.clear();
}

bool SharedGroup::MoveMessages() {
  bool moved = false;
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    if (!lines_[peer].sending.empty()) moved |= MoveOut(peer, lines_[peer]);
    if (!lines_[peer].receiving.empty()) moved |= MoveIn(peer, lines_[peer]);
  }
  return moved;
}

bool SharedGroup::MoveOut(size_t peer, Line& line) {
  SharedSegment& theirs = *peers_[peer].segment;
  char* ring = Mine().ring(peer);
  const uint64_t before = line.written;
  const uint64_t consumed =
      CountOf(theirs.header().consumed[me_].value.load(std::memory_order_acquire));
  if (left_behind_) return false;
  while (!line.sending.empty()) {
    Message& message = line.sending.front();
    const uint64_t room = kRingBytes - (line.written - consumed);
    if (!message.begun) {
      if (room < sizeof(Head)) break;
      const Head head{message.key, message.bytes};
      CopyIn(ring, line.written, &head, sizeof head);
      line.written += sizeof head;
      message.begun = true;
      continue;
    }
    const uint64_t piece = std::min(room, message.bytes - message.done);
    CopyIn(ring, line.written, message.data + message.done, piece);
    line.written += piece;
    message.done += piece;
    if (message.done < message.bytes) break;
    open_.erase(message.ticket);
    line.sending.pop_front();
  }
  if (line.written == before) return false;
  Mine().own_header().written[peer].value.store(Stamp(line.written), std::memory_order_release);
  theirs.Ring(static_cast<uint32_t>(me_));
  return true;
}

bool SharedGroup::MoveIn(size_t peer, Line& line) {
  SharedSegment& theirs = *peers_[peer].segment;
  const char* ring = theirs.ring(me_);
  const uint64_t before = line.consumed;
  const SharedWord& word = theirs.header().written[me_];
  const uint64_t written = CountOf(word.value.load(std::memory_order_acquire));
  if (left_behind_) return false;
  while (!line.receiving.empty()) {
    Message& message = line.receiving.front();
    const uint64_t there = written - line.consumed;
    if (!message.begun) {
      if (there < sizeof(Head)) break;
      Head head{};
      CopyOut(ring, line.consumed, &head, sizeof head);
      // Another operation's: the ranks disagree about the order. Nobody takes it; the group's
      // coordinator sees who waits in what and ends it for all.
      if (head.key != message.key || head.bytes != message.bytes) break;
      line.consumed += sizeof head;
      message.begun = true;
      continue;
    }
    const uint64_t piece = std::min(there, message.bytes - message.done);
    CopyOut(ring, line.consumed, message.data + message.done, piece);
    std::atomic_thread_fence(std::memory_order_acquire);
    CountOf(word.value.load());  // Or the peer may have written over it meanwhile.
    if (left_behind_) return false;
    line.consumed += piece;
    message.done += piece;
    if (message.done < message.bytes) break;
    open_.erase(message.ticket);
    line.receiving.pop_front();
  }
  if (line.consumed == before) return false;
  Mine().own_header().consumed[peer].value.store(Stamp(line.consumed), std::memory_order_release);
  theirs.Ring(static_cast<uint32_t>(me_));
  return true;
}

void SharedGroup::Abort() {
  dead_.store(true);
  Mine().RingAlways();
}

}  // namespace troupe::groups
