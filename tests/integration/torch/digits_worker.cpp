// A run's worker in C++ that trains what the digits example trains: `digits-worker`, started by the
// cluster. Its payload is the number of data epochs, the file that lets it end, and the data.
#include <cstdio>
#include <optional>
#include <sstream>
#include <thread>

#include "daemons/client/worker_client.h"
#include "examples/cpp_digits/trainer.h"

namespace {

using namespace troupe;

Result<cpp_digits::Plan> Decode(const std::string& payload) {
  std::istringstream lines(payload);
  cpp_digits::Plan plan;
  lines >> plan.epochs >> std::ws;
  std::getline(lines, plan.finish_file);
  std::getline(lines, plan.data);
  if (!lines || plan.epochs < 1)
    return Error{ErrorCode::kInvalidArgument, "the run's payload is no plan: " + payload};
  return plan;
}

// Tells the driver of every data epoch.
Result<std::string> Train(daemons::WorkerClient& worker, const cpp_digits::Plan& plan) {
  cpp_digits::Progress progress;
  std::atomic<bool> over = false;
  std::thread reporter([&] {
    for (int64_t told = 0; !over; std::this_thread::sleep_for(milliseconds(1))) {
      if (progress.rank != 0 || progress.epochs <= told) continue;
      told = progress.epochs;
      (void)worker.Note(NoteKind::kReport, 0, "epoch=" + std::to_string(told - 1));
    }
  });
  Result<std::string> summary = cpp_digits::Train(*worker.group(), plan, progress);
  over = true;
  reporter.join();
  if (!summary.ok() && summary.error().code == ErrorCode::kDrained) return std::string();
  return summary;
}

}  // namespace

int main() {
  auto client = daemons::WorkerClient::FromEnvironment();
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.error().ToString().c_str());
    return 1;
  }
  daemons::WorkerClient& worker = **client;
  std::optional<Assignment> assignment;
  while (!assignment) {
    if (worker.released()) return 0;
    assignment = worker.WaitAssignment(seconds(1));
  }
  const Result<cpp_digits::Plan> plan = Decode(assignment->payload);
  const Result<std::string> summary =
      plan.ok() ? Train(worker, *plan) : Result<std::string>(plan.error());
  worker.Finish(summary.ok(), summary.ok() ? *summary : summary.error().ToString(), seconds(30));
  return summary.ok() ? 0 : 1;
}
