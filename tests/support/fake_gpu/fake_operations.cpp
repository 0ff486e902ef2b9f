// The NCCL half of the fake: operations, from their call to their end in a stream.
#include <algorithm>
#include <cstring>

#include "tests/support/fake_gpu/arithmetic.h"
#include "tests/support/fake_gpu/communicators.h"

namespace troupe::fake_gpu {
namespace {

struct Grouped {
  ncclComm* comm;
  Stream* stream;
  std::vector<Call> calls;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> grouped;

void Reduce(const std::vector<const Call*>& ranks, size_t from, size_t count, char* out) {
  const Call& first = *ranks[0];
  const size_t width = Width(first.type);
  for (size_t i = 0; i < count; ++i) {
    long double result = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      long double value = Get(ranks[r]->in + (from + i) * width, first.type);
      value *= ranks[r]->factor.value_or(1.0);
      result = r == 0 ? value : Combine(first.op, result, value);
    }
    Put(out + i * width, first.type, result);
  }
}

// One collective of all ranks, whose inputs are all read before an output is written.
void Compute(State& state, const std::vector<const Call*>& ranks) {
  const Call& first = *ranks[0];
  for (const Call* call : ranks) {
    if (call->Shape() != first.Shape()) state.Break("ranks call different collectives");
  }
  const size_t width = Width(first.type);
  const size_t size = ranks.size();
  std::vector<std::vector<char>> outs(size);
  for (size_t r = 0; r < size; ++r) {
    const bool scatter = first.kind == Call::Kind::kReduceScatter;
    switch (first.kind) {
      case Call::Kind::kReduce:
        if (static_cast<size_t>(first.root) != r) break;
        [[fallthrough]];
      case Call::Kind::kAllReduce:
      case Call::Kind::kReduceScatter:
        outs[r].resize(first.count * width);
        Reduce(ranks, scatter ? r * first.count : 0, first.count, outs[r].data());
        break;
      case Call::Kind::kBroadcast: {
        const char* data = ranks[static_cast<size_t>(first.root)]->in;
        outs[r].assign(data, data + first.count * width);
        break;
      }
      default:
        for (const Call* other : ranks) {
          outs[r].insert(outs[r].end(), other->in, other->in + first.count * width);
        }
    }
  }
  for (size_t r = 0; r < size; ++r) {
    if (!outs[r].empty()) std::memcpy(ranks[r]->out, outs[r].data(), outs[r].size());
  }
}

// In a stream: collectives of all ranks meet; the last one to come does the work.
void Meet(State& state, std::unique_lock<std::mutex>& lock, ncclComm* comm,
          const std::vector<Call>& calls, uint64_t number) {
  World& world = *comm->world;
  auto& ranks = world.meetings[number];
  ranks.resize(static_cast<size_t>(world.size));
  ranks[static_cast<size_t>(comm->rank)] = &calls;
  if (std::all_of(ranks.begin(), ranks.end(), [](const auto* c) { return c != nullptr; })) {
    for (size_t i = 0; i < calls.size(); ++i) {
      std::vector<const Call*> same;
      for (const std::vector<Call>* theirs : ranks) {
        if (theirs->size() != calls.size()) return state.Break("groups of different sizes");
        same.push_back(&(*theirs)[i]);
      }
      Compute(state, same);
    }
    world.done.insert(number);
    world.meetings.erase(number);
    state.changed.notify_all();
    return;
  }
  state.changed.wait(lock, [&] { return comm->over() || world.done.contains(number); });
  if (!world.done.contains(number))
    world.meetings[number][static_cast<size_t>(comm->rank)] = nullptr;
}

// In a stream: sends are offered, then everything is received, then waited for.
void Pass(State& state, std::unique_lock<std::mutex>& lock, ncclComm* comm,
          const std::vector<Call>& calls) {
  World& world = *comm->world;
  std::vector<std::pair<std::deque<const Call*>*, const Call*>> offered;
  for (const Call& call : calls) {
    if (call.kind != Call::Kind::kSend) continue;
    auto& line = world.sends[{comm->rank, call.root}];
    line.push_back(&call);
    offered.emplace_back(&line, &call);
  }
  state.changed.notify_all();
  for (const Call& call : calls) {
    if (call.kind != Call::Kind::kReceive) continue;
    auto& line = world.sends[{call.root, comm->rank}];
    state.changed.wait(lock, [&] { return comm->over() || !line.empty(); });
    if (comm->over()) break;
    if (line.front()->count != call.count) state.Break("a send and a receive of different sizes");
    std::memcpy(call.out, line.front()->in, std::min(call.count, line.front()->count));
    line.pop_front();
    state.changed.notify_all();
  }
  const auto taken = [](const auto& offer) {
    return std::find(offer.first->begin(), offer.first->end(), offer.second) == offer.first->end();
  };
  state.changed.wait(
      lock, [&] { return comm->over() || std::all_of(offered.begin(), offered.end(), taken); });
  for (const auto& [line, call] : offered) std::erase(*line, call);
}

void Enqueue(State& state, ncclComm* comm, Stream* stream, const std::vector<Call>& calls) {
  const uint64_t number = calls[0].PointToPoint() ? 0 : comm->meetings++;
  const bool breaks =
      comm->launched - 1 == state.faults.break_operation && comm->rank == state.faults.break_on;
  ++comm->running;
  stream->Enqueue([&state, comm, calls, number, breaks] {
    std::unique_lock lock(state.mu);
    if (breaks) {
      comm->error = ncclRemoteError;
      state.changed.wait(lock, [&] { return comm->over(); });
    } else if (calls[0].PointToPoint()) {
      Pass(state, lock, comm, calls);
    } else {
      Meet(state, lock, comm, calls, number);
    }
    --comm->running;
  });
}

// As the real one without blocking: the work is in the stream only some time after the call.
ncclResult_t Launch(State& state, ncclComm* comm, Stream* stream, std::vector<Call> calls) {
  ++state.counts.operations;
  ++comm->launched;
  comm->polls = 2;
  comm->then = [&state, comm, stream, calls = std::move(calls)] {
    Enqueue(state, comm, stream, calls);
  };
  return ncclInProgress;
}

ncclResult_t Add(const char* name, ncclComm* comm, cudaStream_t stream, Call call) {
  Entry entry(name, comm, false);
  if (entry.bad() || comm->revoked) {
    if (comm->revoked) entry.Refuse(name, "after ncclCommRevoke");
    return ncclInvalidUsage;
  }
  const auto size = static_cast<size_t>(comm->world->size);
  const size_t bytes = call.count * Width(call.type);
  const bool scatter = call.kind == Call::Kind::kReduceScatter;
  const bool gather = call.kind == Call::Kind::kAllGather;
  const bool writes = call.kind != Call::Kind::kReduce || call.root == comm->rank;
  if (call.in != nullptr && !entry.state().IsDevice(call.in, bytes * (scatter ? size : 1))) {
    entry.Refuse(name, "an input that is no device memory");
  }
  if (call.out != nullptr && writes &&
      !entry.state().IsDevice(call.out, bytes * (gather ? size : 1))) {
    entry.Refuse(name, "an output that is no device memory");
  }
  const auto scaled = comm->scaled.find(call.op);
  if (scaled != comm->scaled.end()) {
    call.op = ncclSum;
    call.factor = scaled->second;
  }
  if (entry.bad() || call.op >= ncclNumOps) return ncclInvalidArgument;
  if (group_depth == 0) return Launch(entry.state(), comm, StreamOf(stream), {call});
  for (Grouped& group : grouped) {
    if (group.comm == comm) {
      group.calls.push_back(call);
      return ncclSuccess;
    }
  }
  grouped.push_back({comm, StreamOf(stream), {call}});
  return ncclSuccess;
}

}  // namespace
}  // namespace troupe::fake_gpu

namespace fake = troupe::fake_gpu;
using fake::Call;
using fake::Entry;

extern "C" {
#pragma GCC visibility push(default)

ncclResult_t ncclGroupStart() {
  ++fake::group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--fake::group_depth > 0) return ncclSuccess;
  for (fake::Grouped& group : std::exchange(fake::grouped, {})) {
    Entry entry("ncclGroupEnd", group.comm, false);
    if (entry.bad()) return ncclInvalidUsage;
    const bool first = group.calls[0].PointToPoint();
    for (const Call& call : group.calls) {
      if (call.PointToPoint() != first) entry.Refuse("ncclGroupEnd", "a mixed group");
    }
    (void)fake::Launch(entry.state(), group.comm, group.stream, std::move(group.calls));
  }
  return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return fake::Add("ncclAllReduce", comm, stream,
                   {Call::Kind::kAllReduce,
                    static_cast<const char*>(in),
                    static_cast<char*>(out),
                    count,
                    type,
                    op,
                    0,
                    {}});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return fake::Add("ncclReduce", comm, stream,
                   {Call::Kind::kReduce,
                    static_cast<const char*>(in),
                    static_cast<char*>(out),
                    count,
                    type,
                    op,
                    root,
                    {}});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return fake::Add("ncclReduceScatter", comm, stream,
                   {Call::Kind::kReduceScatter,
                    static_cast<const char*>(in),
                    static_cast<char*>(out),
                    count,
                    type,
                    op,
                    0,
                    {}});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return fake::Add("ncclBroadcast", comm, stream,
                   {Call::Kind::kBroadcast,
                    static_cast<const char*>(in),
                    static_cast<char*>(out),
                    count,
                    type,
                    ncclSum,
                    root,
                    {}});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return fake::Add("ncclAllGather", comm, stream,
                   {Call::Kind::kAllGather,
                    static_cast<const char*>(in),
                    static_cast<char*>(out),
                    count,
                    type,
                    ncclSum,
                    0,
                    {}});
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return fake::Add(
      "ncclSend", comm, stream,
      {Call::Kind::kSend, static_cast<const char*>(data), nullptr, count, type, ncclSum, peer, {}});
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::Add(
      "ncclRecv", comm, stream,
      {Call::Kind::kReceive, nullptr, static_cast<char*>(data), count, type, ncclSum, peer, {}});
}

#pragma GCC visibility pop
}
