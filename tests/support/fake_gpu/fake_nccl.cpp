// The NCCL half of the fake.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/arithmetic.h"
#include "tests/support/fake_gpu/state.h"

namespace troupe::fake_gpu {
namespace {

struct Call {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const char* in = nullptr;
  char* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // Or peer.
  std::optional<double> factor;

  // What must be equal on all ranks; a factor is each rank's own, but all have one or none.
  [[nodiscard]] auto Shape() const {
    return std::tuple(kind, count, type, op, root, factor.has_value());
  }
  [[nodiscard]] bool PointToPoint() const { return kind == Kind::kSend || kind == Kind::kReceive; }
};

// The ranks of one communicator. Guarded by State::mu, as all here.
struct World {
  int size = 0;
  std::vector<ncclComm*> comms;  // By rank; null: not arrived.
  int arrived = 0;
  std::map<uint64_t, std::vector<const std::vector<Call>*>> meetings;  // By number; by rank.
  std::set<uint64_t> done;
  std::map<std::pair<int, int>, std::deque<const Call*>> sends;  // From, to.
  std::map<std::vector<int>, std::shared_ptr<World>> shrunk;     // By whom it excludes.
  std::shared_ptr<World> growing;
};

std::map<uint64_t, std::shared_ptr<World>> ids;  // Of worlds that are being formed.
uint64_t next_id = 1;

}  // namespace
}  // namespace troupe::fake_gpu

namespace fake = troupe::fake_gpu;
using fake::Call;
using fake::World;
using FakeState = fake::State;

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int polls = 0;  // Until what is in progress is done.
  bool forming = false;
  ncclResult_t error = ncclSuccess;
  bool aborted = false;
  bool revoked = false;
  int running = 0;  // Pieces of work in streams.
  uint64_t meetings = 0;
  int launched = 0;
  std::function<void()> then;  // When `polls` have gone by.
  std::map<int, double> scaled;
  bool inside = false;  // A thread is.

  [[nodiscard]] bool over() const { return aborted || revoked; }
};

namespace troupe::fake_gpu {
namespace {

// Communicators are never freed, so that a use after the end can be told.
std::vector<std::unique_ptr<ncclComm>>& Graveyard() {
  static auto* all = new std::vector<std::unique_ptr<ncclComm>>;
  return *all;
}

struct Grouped {
  ncclComm* comm;
  Stream* stream;
  std::vector<Call> calls;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> grouped;

// A call on a communicator. Checks that it may come now.
class Entry {
 public:
  Entry(const char* name, ncclComm* comm, bool anytime, int since = 0)
      : state_(State::Get()), lock_(state_.mu), comm_(comm) {
    if (state_.faults.version < since) Refuse(name, "this version does not have it");
    if (comm == nullptr) return;
    if (comm->aborted) Refuse(name, "after ncclCommAbort");
    if (comm->inside) Refuse(name, "while another thread is inside a call");
    if (!anytime && (comm->polls > 0 || comm->forming))
      Refuse(name, "while something is in progress");
    comm->inside = true;
  }
  ~Entry() {
    if (comm_ != nullptr) comm_->inside = false;
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  void Refuse(const char* name, const std::string& why) {
    state_.Break(std::string(name) + ": " + why);
    bad_ = true;
  }
  [[nodiscard]] bool bad() const { return bad_; }
  State& state() { return state_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  State& state_;
  std::unique_lock<std::mutex> lock_;
  ncclComm* comm_;
  bool bad_ = false;
};

void CheckConfig(Entry& entry, const ncclConfig_t* config) {
  if (config == nullptr || config->magic != NCCL_API_MAGIC) {
    return entry.Refuse("configuration", "not initialised");
  }
  if (config->blocking != 0) entry.Refuse("configuration", "blocking");
  const int version = entry.state().faults.version;
  if (static_cast<int>(config->version) > version) entry.Refuse("configuration", "too new");
  if (version < 21700 && config->size > 24) entry.Refuse("configuration", "too large");
}

ncclComm* NewComm(State& state) {
  Graveyard().push_back(std::make_unique<ncclComm>());
  ++state.counts.communicators;
  return Graveyard().back().get();
}

// One more rank has come to a world that is being formed.
void Arrive(State& state, const std::shared_ptr<World>& world, ncclComm* comm, int rank) {
  comm->world = world;
  comm->rank = rank;
  comm->forming = true;
  comm->polls = state.faults.polls_to_form;
  world->comms.resize(static_cast<size_t>(world->size));
  auto& place = world->comms[static_cast<size_t>(rank)];
  if (place != nullptr) state.Break("two communicators of one rank");
  place = comm;
  ++world->arrived;
}

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

uint64_t NumberOf(const ncclUniqueId& id) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  return number;
}

ncclUniqueId NewId(const std::shared_ptr<World>& world) {
  ncclUniqueId id{};
  const uint64_t number = next_id++;
  std::memcpy(id.internal, &number, sizeof number);
  ids[number] = world;
  return id;
}

}  // namespace
}  // namespace troupe::fake_gpu

using fake::Entry;

extern "C" {
#pragma GCC visibility push(default)

ncclResult_t ncclGetVersion(int* version) {
  *version = FakeState::Get().faults.version;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a fake error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Entry entry("ncclGetUniqueId", nullptr, true);
  *id = fake::NewId(std::make_shared<World>());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  Entry entry("ncclCommInitRankConfig", nullptr, true);
  fake::CheckConfig(entry, config);
  if (!fake::HasContext()) entry.Refuse("ncclCommInitRankConfig", "without a context");
  FakeState& state = entry.state();
  const auto found = fake::ids.find(fake::NumberOf(id));
  if (found == fake::ids.end()) entry.Refuse("ncclCommInitRankConfig", "an id that was used");
  if (entry.bad()) return ncclInvalidArgument;
  ++state.counts.inits;
  *comm = fake::NewComm(state);
  if (state.faults.init_fails_on == rank) {
    (*comm)->world = std::make_shared<World>();
    (*comm)->error = ncclSystemError;
    return ncclInProgress;
  }
  const std::shared_ptr<World> world = found->second;
  world->size = ranks;
  fake::Arrive(state, world, *comm, rank);
  if (world->arrived == ranks) fake::ids.erase(found);
  return ncclInProgress;
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* child,
                            ncclConfig_t* config, int flags) {
  Entry entry("ncclCommShrink", parent, false, 22703);
  fake::CheckConfig(entry, config);
  FakeState& state = entry.state();
  const std::vector<int> without(excluded, excluded + count);
  if (without.empty()) entry.Refuse("ncclCommShrink", "nobody is excluded");
  int rank = parent->rank;
  for (const int other : without) {
    if (other == parent->rank) entry.Refuse("ncclCommShrink", "called by an excluded rank");
    if (other < parent->rank) --rank;
  }
  const bool abort = flags == NCCL_SHRINK_ABORT;
  if (parent->running > 0 && !abort) entry.Refuse("ncclCommShrink", "operations are outstanding");
  if (entry.bad()) return ncclInvalidUsage;
  ++state.counts.shrinks;
  if (state.faults.shrink_fails) return ncclInternalError;
  if (abort) parent->revoked = true;
  state.changed.notify_all();
  std::shared_ptr<World>& world = parent->world->shrunk[without];
  if (!world) world = std::make_shared<World>();
  world->size = parent->world->size - count;
  ncclComm* comm = fake::NewComm(state);
  fake::Arrive(state, world, comm, rank);
  // The handle appears when the parent is done with it.
  parent->polls = 2;
  parent->then = [child, comm] { __atomic_store_n(child, comm, __ATOMIC_RELEASE); };
  return ncclInProgress;
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  Entry entry("ncclCommGetUniqueId", comm, false, 22902);
  if (comm->world->growing) entry.Refuse("ncclCommGetUniqueId", "the one before is unused");
  if (entry.bad()) return ncclInvalidUsage;
  comm->world->growing = std::make_shared<World>();
  *id = fake::NewId(comm->world->growing);
  return ncclSuccess;
}

ncclResult_t ncclCommGrow(ncclComm_t parent, int ranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* child, ncclConfig_t* config) {
  Entry entry("ncclCommGrow", parent, false, 22902);
  fake::CheckConfig(entry, config);
  FakeState& state = entry.state();
  const bool is_new = parent == nullptr;
  if (is_new == (rank == -1)) entry.Refuse("ncclCommGrow", "a rank for who has one, or none");
  if (!is_new && (parent->running > 0 || parent->revoked)) {
    entry.Refuse("ncclCommGrow", "operations are outstanding");
  }
  if (is_new && id == nullptr) entry.Refuse("ncclCommGrow", "a new rank without an id");
  if (!is_new && ranks <= parent->world->size) entry.Refuse("ncclCommGrow", "it does not grow");
  if (entry.bad()) return ncclInvalidUsage;
  ++state.counts.grows;
  if (state.faults.grow_fails) return ncclInternalError;
  std::shared_ptr<World> world = is_new ? nullptr : parent->world->growing;
  if (id != nullptr) {
    const auto found = fake::ids.find(fake::NumberOf(*id));
    if (found == fake::ids.end() || (world && world != found->second)) {
      entry.Refuse("ncclCommGrow", "an id of another communicator, or used");
      return ncclInvalidUsage;
    }
    world = found->second;
  }
  if (!world) {
    entry.Refuse("ncclCommGrow", "before anybody made an id");
    return ncclInvalidUsage;
  }
  world->size = ranks;
  ncclComm* comm = fake::NewComm(state);
  fake::Arrive(state, world, comm, is_new ? rank : parent->rank);
  if (world->arrived == ranks) {
    for (auto it = fake::ids.begin(); it != fake::ids.end();) {
      it = it->second == world ? fake::ids.erase(it) : std::next(it);
    }
  }
  if (is_new) {
    *child = comm;
  } else {
    parent->polls = 2;
    parent->then = [child, comm] { __atomic_store_n(child, comm, __ATOMIC_RELEASE); };
  }
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Entry entry("ncclCommGetAsyncError", comm, true);
  if (entry.bad()) return ncclInvalidUsage;
  *error = comm->error;
  if (comm->error != ncclSuccess) return ncclSuccess;
  if (comm->forming) {
    const World& world = *comm->world;
    const bool all = world.arrived == world.size && !entry.state().faults.init_never_ends;
    if (all && comm->polls > 0) --comm->polls;
    comm->forming = !all || comm->polls > 0;
  } else if (comm->polls > 0 && --comm->polls == 0 && comm->then) {
    std::exchange(comm->then, nullptr)();
  }
  if (comm->forming || comm->polls > 0) *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  Entry entry("ncclCommRevoke", comm, true, 22807);
  if (flags != 0) entry.Refuse("ncclCommRevoke", "unknown flags");
  if (entry.bad()) return ncclInvalidUsage;
  ++entry.state().counts.revokes;
  comm->revoked = true;
  comm->then = nullptr;
  comm->polls = 2;
  entry.state().changed.notify_all();
  return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Entry entry("ncclCommAbort", comm, true);
  if (entry.bad()) return ncclInvalidUsage;
  FakeState& state = entry.state();
  state.changed.wait(entry.lock(), [&] { return !state.faults.stuck_abort; });
  ++state.counts.aborts;
  --state.counts.communicators;
  comm->aborted = true;
  comm->then = nullptr;
  state.changed.notify_all();
  // What it runs ends before it is freed.
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  Entry entry("ncclRedOpCreatePreMulSum", comm, false);
  if (residence != ncclScalarHostImmediate) entry.Refuse("a scalar", "on a device");
  if (entry.bad()) return ncclInvalidUsage;
  int number = ncclNumOps;
  while (comm->scaled.contains(number)) ++number;
  comm->scaled[number] = static_cast<double>(fake::Get(scalar, type));
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  Entry entry("ncclRedOpDestroy", comm, false);
  if (!entry.bad() && comm->scaled.erase(op) == 0) entry.Refuse("ncclRedOpDestroy", "unknown");
  return entry.bad() ? ncclInvalidUsage : ncclSuccess;
}

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
