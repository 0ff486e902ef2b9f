// A member process that "trains" by counting samples: every step each rank leases samples from the
// ledger, the group sums one-hot counts, and everybody commits. However members come and go, every
// sample must end up counted exactly once on every member (GM-8, GM-9).
//
// TROUPE_TEST_FAULTS: "rank:step:phase;..." kills this member with SIGKILL when, being `rank` of
// epoch 1, it reaches the phase. Phases of a step: before_reduce, in_reduce, after_reduce,
// in_commit; of recovery (step is ignored): in_link, in_offer, in_sync. The phase "hang" of a step
// does not kill: the member's own code waits there for an event that never comes.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "collective_groups/membership/ledger.h"
#include "daemons/client/worker_client.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/worker_process.h"

namespace {

using namespace troupe;
using namespace troupe::groups;

struct Fault {
  int rank = -1;
  uint64_t step = 0;
  std::string phase;
};

class Faults {
 public:
  Faults() {
    const char* text = std::getenv("TROUPE_TEST_FAULTS");
    std::istringstream list(text == nullptr ? "" : text);
    for (std::string item; std::getline(list, item, ';');) {
      std::istringstream fields(item);
      Fault fault;
      char colon = 0;
      fields >> fault.rank >> colon >> fault.step >> colon >> fault.phase;
      faults_.push_back(fault);
    }
  }
  void SetFirstRank(int rank) { rank_ = rank; }
  [[nodiscard]] bool Armed(const std::string& phase, uint64_t step = 0) const {
    for (const Fault& f : faults_) {
      if (f.rank == rank_ && f.phase == phase && (f.step == 0 || f.step == step)) return true;
    }
    return false;
  }
  void Reach(const std::string& phase, uint64_t step = 0) const {
    if (Armed(phase, step)) ::raise(SIGKILL);
  }

 private:
  std::vector<Fault> faults_;
  int rank_ = -1;  // Only members of the first epoch have faults.
};

// Beside others the thread that is to kill this process may have to wait for its turn until all is
// over.
[[noreturn]] void AwaitDeath() {
  for (;;) ::pause();
}

// Passes everything on, dying where told.
class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, const Faults* faults)
      : ForwardingCommunicator(std::move(inner)), faults_(faults) {}
  Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot,
                            const std::string& peer_memory) override {
    faults_->Reach("in_offer");
    return ForwardingCommunicator::Offer(my_slot, peer_slot, peer_memory);
  }
  Status Link(uint32_t slot, const std::string& address) override {
    faults_->Reach("in_link");
    return ForwardingCommunicator::Link(slot, address);
  }
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    if (faults_->Armed("in_sync")) {
      std::thread([] {
        ::usleep(300);
        ::raise(SIGKILL);
      }).detach();
    }
    Result<uint64_t> bytes = ForwardingCommunicator::Transfer(sources, receivers, buffers);
    if (faults_->Armed("in_sync")) AwaitDeath();
    return bytes;
  }

 private:
  const Faults* const faults_;
};

struct State {
  std::vector<float> counts;
  SampleLedger ledger;
  uint64_t version = 0;
  bool has_state = false;
};

// State goes from the view's source to whoever lacks it; the ledger travels as fixed-size numbers.
bool Sync(GroupAgent& group, const ActiveView& active, State& state) {
  const int source = SourceRank(active.view);
  const std::vector<int> lacking = RanksWithoutState(active.view);
  const int rank = active.topology.rank;
  const bool lacks = std::find(lacking.begin(), lacking.end(), rank) != lacking.end();
  if (!lacking.empty() && (lacks || rank == source)) {
    std::string ledger = state.ledger.Save();
    uint64_t header[2] = {state.version, ledger.size()};
    auto handle =
        group.Transfer({source}, lacking,
                       {{header, sizeof header}, {state.counts.data(), state.counts.size() * 4}});
    if (!group.Wait(handle, seconds(60)).ok()) return false;
    ledger.resize(header[1]);
    handle = group.Transfer({source}, lacking, {{ledger.data(), ledger.size()}});
    if (!group.Wait(handle, seconds(60)).ok()) return false;
    if (!state.ledger.Load(ledger).ok()) return false;
    state.version = header[0];
  }
  state.has_state = true;
  group.SetVersion(state.version);
  return true;
}

// One step; false when the epoch is over.
bool Step(GroupAgent& group, const ActiveView& active, State& state, const Faults& faults,
          size_t per_rank) {
  const uint64_t step = state.version + 1;
  const auto size = static_cast<uint64_t>(active.topology.size);
  std::vector<uint64_t> sizes(size, per_rank);
  for (uint64_t left = state.ledger.remaining(), r = 0; r < size; ++r) {
    sizes[r] = std::min<uint64_t>(per_rank, left);
    left -= sizes[r];
  }
  const auto shares = state.ledger.Lease(step, sizes);
  if (!shares.ok()) return false;
  std::vector<float> one_hot(state.counts.size(), 0.0F);
  for (const auto& [begin, end] : (*shares)[static_cast<size_t>(active.topology.rank)]) {
    for (uint64_t i = begin; i < end; ++i) one_hot[i] = 1.0F;
  }
  faults.Reach("before_reduce", step);
  if (faults.Armed("hang", step)) AwaitDeath();
  if (faults.Armed("in_reduce", step)) {
    std::thread([] {
      ::usleep(150);
      ::raise(SIGKILL);
    }).detach();
  }
  const size_t bytes = one_hot.size() * sizeof(float);
  ReduceArguments arguments;
  arguments.count = one_hot.size();
  const auto handle =
      group.AllReduce({}, {{one_hot.data(), bytes}}, {{one_hot.data(), bytes}}, arguments);
  const Result<uint64_t> reduced = group.Wait(handle, seconds(60));
  if (faults.Armed("in_reduce", step)) AwaitDeath();
  if (!reduced.ok()) {
    state.ledger.Void(step);
    return false;
  }
  faults.Reach("after_reduce", step);
  for (size_t i = 0; i < one_hot.size(); ++i) state.counts[i] += one_hot[i];
  if (!state.ledger.Commit(step).ok()) return false;
  state.version = step;
  faults.Reach("in_commit", step);
  group.SetVersion(state.version);
  Result<bool> stop = group.Boundary();
  return stop.ok() && !*stop;
}

std::string Summary(const State& state) {
  size_t missing = 0;
  size_t doubled = 0;
  for (const float c : state.counts) {
    missing += c < 0.5F ? 1 : 0;
    doubled += c > 1.5F ? 1 : 0;
  }
  return "steps=" + std::to_string(state.version) + " missing=" + std::to_string(missing) +
         " doubled=" + std::to_string(doubled);
}

}  // namespace

int main() {
  Faults faults;
  auto client = testing::ConnectWorker("ledger", [&faults](std::unique_ptr<Communicator> made) {
    return std::make_unique<FaultyCommunicator>(std::move(made), &faults);
  });
  if (!client.ok()) {
    std::cerr << client.error().ToString() << std::endl;
    return 1;
  }
  daemons::WorkerClient& worker = **client;
  const std::optional<Assignment> assignment = testing::AwaitRun(worker);
  if (!assignment) return 0;
  size_t samples = 512;
  size_t per_rank = 2;
  int pace_us = 500;
  std::istringstream(assignment->payload) >> samples >> per_rank >> pace_us;
  State state;
  // Padding makes the reduce long enough (several TCP segments) to be hit in the middle.
  state.counts.assign(samples, 0.0F);
  state.ledger = SampleLedger(samples);
  state.ledger.BeginEpoch(0);
  GroupAgent& group = *worker.group();
  for (;;) {
    group.Ready(state.version, state.has_state);
    Result<ActiveView> active = group.WaitActive(seconds(60));
    if (!active.ok()) {
      if (active.error().code == ErrorCode::kDrained) {
        worker.Finish(true, "", seconds(10));
        return 0;
      }
      std::cerr << active.error().ToString() << std::endl;
      worker.Finish(false, active.error().ToString(), seconds(10));
      return 1;
    }
    if (active->view.epoch == 1) faults.SetFirstRank(active->topology.rank);
    if (!Sync(group, *active, state)) continue;
    while (state.ledger.remaining() > 0 && Step(group, *active, state, faults, per_rank)) {
      ::usleep(static_cast<useconds_t>(pace_us));
    }
    if (state.ledger.remaining() > 0) continue;
    // Nobody leaves before everybody has the last step.
    if (group.Wait(group.Barrier({}), seconds(60)).ok()) break;
  }
  worker.Finish(true, Summary(state), seconds(30));
  return 0;
}
