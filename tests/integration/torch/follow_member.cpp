// A worker that trains a large LibTorch module whose joiners follow. The founders wait in their
// second step until the file that is the payload exists. The result is that of LargeTraining, then
// "|" and how many of this member's batches were ghosts.
//
// TROUPE_TEST_FAULTS names who is killed with SIGKILL when the first state is sent beside training:
// "source" and "joiner" in the middle of sending, "other" when its gradients are on their way.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "collective_groups/membership/view.h"
#include "daemons/client/worker_client.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/worker_process.h"
#include "tests/unit/torch/large_training.h"

namespace {

using namespace troupe;
using namespace troupe::groups;

void KillSoon() {
  std::thread([] {
    ::usleep(2000);  // While chunks are under way, or just after.
    ::raise(SIGKILL);
  }).detach();
}

// Which member of a view is to die is the test's choice; that it is in the middle, the lane's.
class MortalCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Status Begin(const View& view, int rank, std::vector<Team> teams) override {
    epoch_ = view.epoch;
    size_ = view.members.size();
    rank_ = rank;
    return ForwardingCommunicator::Begin(view, rank, std::move(teams));
  }
  Status AllReduce(const Operation& operation, std::span<const ConstBuffer> in,
                   std::span<const MutableBuffer> out, const ReduceArguments& arguments) override {
    if (Doomed("other", rank_ == 1)) KillSoon();
    return ForwardingCommunicator::AllReduce(operation, in, out, arguments);
  }
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    const bool tensors = buffers.size() > 1;
    if (tensors && Doomed("source", rank_ == sources[0])) KillSoon();
    if (tensors && Doomed("joiner", rank_ == receivers[0])) KillSoon();
    return ForwardingCommunicator::Transfer(sources, receivers, buffers);
  }

 private:
  // The third and last member has joined in the second epoch.
  [[nodiscard]] bool Doomed(const char* who, bool me) const {
    const char* faults = std::getenv("TROUPE_TEST_FAULTS");
    return me && faults != nullptr && faults == std::string(who) && epoch_ == 2 && size_ == 3;
  }
  Epoch epoch_ = 0;
  size_t size_ = 0;
  int rank_ = 0;
};

Result<std::string> Train(daemons::WorkerClient& worker, const std::string& go_on_file) {
  using elastic::LargeTraining;
  LargeTraining training(worker.group(), static_cast<uint64_t>(::getpid()),
                         LargeTraining::kElements, true, 10 * LargeTraining::kSamples);
  int ghosts = 0;
  training.on_batch = [&](const elastic::Batch& batch) -> Status {
    if (batch.counted == 0) ++ghosts;
    if (worker.group()->Current().view.epoch > 1) return Status::Ok();
    while (training.state.version() == 1 && ::access(go_on_file.c_str(), F_OK) != 0) ::usleep(1000);
    ::usleep(50'000);  // The joiner is in the group long before the samples end.
    return Status::Ok();
  };
  (void)worker.Note(NoteKind::kReport, 0, "ready");
  const Result<elastic::Ending> ending = training.Run();
  if (!ending.ok()) return ending.error();
  if (*ending == elastic::Ending::kDrained) return std::string();  // It came too late to train.
  return training.Summary() + "|ghosts=" + std::to_string(ghosts);
}

}  // namespace

int main() {
  auto client = testing::ConnectWorker("follow", [](std::unique_ptr<Communicator> made) {
    return std::make_unique<MortalCommunicator>(std::move(made));
  });
  if (!client.ok()) {
    std::cerr << client.error().ToString() << std::endl;
    return 1;
  }
  daemons::WorkerClient& worker = **client;
  const std::optional<Assignment> assignment = testing::AwaitRun(worker);
  if (!assignment) return 0;
  const Result<std::string> summary = Train(worker, assignment->payload);
  worker.Finish(summary.ok(), summary.ok() ? *summary : summary.error().ToString(), seconds(30));
  if (!summary.ok()) std::cerr << summary.error().ToString() << std::endl;
  return summary.ok() ? 0 : 1;
}
