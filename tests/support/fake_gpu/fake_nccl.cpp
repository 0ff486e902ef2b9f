// The NCCL half of the fake: how communicators are formed and end.
#include <algorithm>
#include <cstring>

#include "tests/support/fake_gpu/arithmetic.h"
#include "tests/support/fake_gpu/communicators.h"

namespace troupe::fake_gpu {
namespace {

std::map<uint64_t, std::shared_ptr<World>> ids;  // Of worlds that are being formed.
uint64_t next_id = 1;

// Communicators are never freed, so that a use after the end can be told.
std::vector<std::unique_ptr<ncclComm>>& Graveyard() {
  static auto* all = new std::vector<std::unique_ptr<ncclComm>>;
  return *all;
}

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

namespace fake = troupe::fake_gpu;
using fake::Entry;
using fake::World;
using FakeState = fake::State;

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
  if (abort) ++state.counts.shrinks_with_abort;
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
  int& most = entry.state().counts.most_scaled_sums;
  most = std::max(most, static_cast<int>(comm->scaled.size()));
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  Entry entry("ncclRedOpDestroy", comm, false);
  if (!entry.bad() && comm->scaled.erase(op) == 0) entry.Refuse("ncclRedOpDestroy", "unknown");
  return entry.bad() ? ncclInvalidUsage : ncclSuccess;
}

#pragma GCC visibility pop
}
