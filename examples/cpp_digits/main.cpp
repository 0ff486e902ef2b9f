// Handwritten digits in C++: a group of three actors trains a LibTorch module, one of them is
// killed with SIGKILL in the middle and comes back, and nothing is lost.
//
//   troupe-example-digits [FILE]     FILE: what scripts/export_digits.py writes
//
// The same executable is driver and actor: the cluster starts it again for every actor.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <troupe/training.h>
#include <troupe/troupe.h>
#include "examples/cpp_digits/trainer.h"

using troupe::Duration;
using troupe::Result;

class Trainer {
 public:
  Result<std::string> Train(const cpp_digits::Plan& plan) {
    return troupe::TrainIn("", [&](troupe::groups::GroupAgent& group) {
      return cpp_digits::Train(group, plan, progress_);
    });
  }
  // Both answer while it trains.
  int Pid() const { return ::getpid(); }
  // Data epochs done, members of the group; as this one sees it.
  std::vector<int64_t> Seen() const { return {progress_.epochs, progress_.size}; }

 private:
  cpp_digits::Progress progress_;
};
TROUPE_ACTOR(Trainer, (), Train, Pid, Seen);

namespace {

constexpr uint32_t kMembers = 3;
constexpr int kMinutes = 5;

int Fail(const troupe::Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  return 1;
}

// Waits until every member has seen this much; false if that takes too long.
bool AllSee(const troupe::ActorGroup<Trainer>& group, int64_t epochs, int64_t size) {
  const troupe::Time end = troupe::SteadyClock().Now() + troupe::seconds(kMinutes * 60);
  while (troupe::SteadyClock().Now() < end) {
    size_t those = 0;
    const auto seen = group.Call(&Trainer::Seen);
    for (size_t i = 0; seen.ok() && i < seen->size(); ++i) {
      const Result<std::vector<int64_t>> one = (*seen)[i].Get(troupe::seconds(10));
      those += one.ok() && (*one)[0] >= epochs && (*one)[1] == size ? 1 : 0;
    }
    if (those == static_cast<size_t>(size)) return true;
    std::this_thread::sleep_for(troupe::milliseconds(20));
  }
  return false;
}

int Drive(const troupe::Cluster& cluster, const std::string& data, const std::string& folder) {
  const std::string finish_file = folder + "/finish";
  const auto group = cluster.SpawnGroup<Trainer>({.name = "digits",
                                                  .min_size = 2,
                                                  .size = kMembers,
                                                  .resources = {{"CPU", 0.25}},
                                                  .max_concurrency = 2});
  if (!group.ok()) return Fail(group.error());
  const auto watch = group->OnEvent([](const troupe::GroupEvent& event) {
    std::printf("%s %d %s\n", troupe::GroupEventKindName(event.kind), event.member,
                event.detail.c_str());
    std::fflush(stdout);
  });
  if (!watch.ok()) return Fail(watch.error());
  const cpp_digits::Plan plan{std::filesystem::absolute(data), 20, finish_file};
  const auto run = group->Run(&Trainer::Train, plan);
  const auto late = [] {
    return Fail({troupe::ErrorCode::kDeadlineExceeded, "the training has not come so far in time"});
  };
  if (!AllSee(*group, 3, kMembers)) return late();
  const auto pids = group->Call(&Trainer::Pid);
  if (!pids.ok()) return Fail(pids.error());
  const Result<int> victim = (*pids)[1].Get();
  if (!victim.ok()) return Fail(victim.error());
  std::printf(">>> SIGKILL member 1, process %d\n", *victim);
  ::kill(*victim, SIGKILL);
  if (!AllSee(*group, 4, kMembers)) return late();
  std::ofstream(finish_file) << "training may end\n";
  const Result<std::vector<std::string>> results = run.Get();
  if (!results.ok()) return Fail(results.error());
  for (const std::string& line : *results) std::printf("%s\n", line.c_str());
  return results->size() == kMembers ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cluster = troupe::Init();
  if (!cluster.ok()) return Fail(cluster.error());
  char folder[] = "/tmp/troupe-digits-XXXXXX";
  if (::mkdtemp(folder) == nullptr)
    return Fail({troupe::ErrorCode::kUnavailable, "no folder can be made in /tmp"});
  const int rc = Drive(*cluster, argc > 1 ? argv[1] : TROUPE_EXAMPLE_DATA "/digits.bin", folder);
  std::filesystem::remove_all(folder);
  return rc;
}
