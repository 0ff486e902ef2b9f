// Handwritten digits in C++: three workers train a LibTorch module, one of them is killed with
// SIGKILL in the middle, a replacement joins, and nothing is lost.
//
//   troupe-example-digits [FILE]     FILE: what scripts/export_digits.py writes
//
// The same executable is driver and worker: the cluster starts it again for every worker.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemons/driver_client.h"
#include "daemons/worker_client.h"
#include "examples/cpp_digits/trainer.h"

namespace {

using namespace troupe;

constexpr uint32_t kWorkers = 3;
constexpr Duration kLimit = seconds(300);

int Fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  return 1;
}

int Work() {
  auto client = daemons::WorkerClient::FromEnvironment();
  if (!client.ok()) return Fail(client.error());
  daemons::WorkerClient& worker = **client;
  std::optional<Assignment> assignment;
  while (!assignment || assignment->job.empty()) {  // A spare waits here, its libraries loaded.
    if (worker.released()) return 0;
    assignment = worker.WaitAssignment(seconds(1));
    if (assignment && assignment->job.empty()) worker.Preloaded();
  }
  Result<std::string> summary = [&]() -> Result<std::string> {
    Result<cpp_digits::Plan> plan = cpp_digits::Decode(assignment->payload);
    if (!plan.ok()) return plan.error();
    return cpp_digits::Train(worker, *plan);
  }();
  worker.Finish(summary.ok(), summary.ok() ? *summary : summary.error().ToString(), seconds(30));
  return summary.ok() ? 0 : Fail(summary.error());
}

// The number after "key": from `at` on; 0 if there is none.
int Number(const std::string& json, const std::string& key, size_t at = 0) {
  at = json.find("\"" + key + "\":", at);
  return at == std::string::npos ? 0 : std::atoi(json.c_str() + at + key.size() + 3);
}

// Follows the job to its end. When the third data epoch is done it kills rank 1, and when the group
// is complete again it lets training end.
int Follow(daemons::DriverClient& client, const std::string& job, const std::string& finish_file) {
  const Time deadline = SteadyClock().Now() + kLimit;
  int victim = 0;
  bool killed = false;
  while (SteadyClock().Now() < deadline) {
    auto event = client.NextEvent(job, milliseconds(100));
    if (!event.ok()) return Fail(event.error());
    if (!event->has_value()) continue;
    const std::string& json = (*event)->json;
    if ((*event)->kind == "log") {
      std::printf("%s\n", json.c_str());
    } else if ((*event)->kind == "epoch") {
      std::printf("%s\n", json.c_str());
      const size_t rank_1 = json.find("\"rank\":1");
      if (!killed) victim = Number(json, "pid", json.rfind('{', rank_1));
      if (killed && Number(json, "size") == static_cast<int>(kWorkers))
        std::ofstream(finish_file) << "training may end\n";
    } else if ((*event)->kind == "report" && (*event)->payload == "epoch=2" && victim > 0) {
      std::printf(">>> SIGKILL worker of process %d\n", victim);
      killed = true;
      ::kill(victim, SIGKILL);
      victim = 0;
    } else if ((*event)->kind == "result") {
      std::printf("%s\n", (*event)->payload.c_str());
    } else if ((*event)->kind == "done") {
      std::printf("%s\n", json.c_str());
      return json.find("\"state\":\"succeeded\"") == std::string::npos ? 1 : 0;
    }
    std::fflush(stdout);
  }
  return Fail({ErrorCode::kDeadlineExceeded, "the training has not ended in time"});
}

int Drive(const std::string& data) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  char folder[] = "/tmp/troupe-digits-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return Fail({ErrorCode::kUnavailable, "no folder in /tmp"});
  daemons::DriverOptions options;
  options.bin_dir = self.parent_path();
  auto client = daemons::DriverClient::Connect(options);
  if (!client.ok()) return Fail(client.error());
  const std::string finish_file = std::string(folder) + "/finish";
  JobSpec spec;
  spec.name = "digits";
  spec.workers = spec.max_workers = kWorkers;
  spec.resources = {{"CPU", 0.25}};
  spec.worker_argv = {self};
  spec.payload = cpp_digits::Encode({std::filesystem::absolute(data), 20, finish_file});
  Result<std::string> job = (*client)->Submit(spec);
  const int rc = job.ok() ? Follow(**client, *job, finish_file) : Fail(job.error());
  (*client)->Shutdown();
  std::filesystem::remove_all(folder);
  return rc;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("TROUPE_WORKER_PROCESS") != nullptr) return Work();
  return Drive(argc > 1 ? argv[1] : TROUPE_EXAMPLE_DATA "/digits.bin");
}
