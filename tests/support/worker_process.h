// What the programs that are workers under test begin with.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemons/client/worker_client.h"

namespace troupe::testing {

using Wrap =
    std::function<std::unique_ptr<groups::Communicator>(std::unique_ptr<groups::Communicator>)>;

// Connects to the node. Members share memory under `name`, unless TROUPE_SHARED_MEMORY is 0; `wrap`
// stands in front of their communicator.
inline Result<std::unique_ptr<daemons::WorkerClient>> ConnectWorker(const std::string& name,
                                                                    const Wrap& wrap) {
  return daemons::WorkerClient::FromEnvironment(
      [name, wrap](const std::string& address) -> Result<std::unique_ptr<groups::Communicator>> {
        const char* share = std::getenv("TROUPE_SHARED_MEMORY");
        const bool alone = share != nullptr && std::string(share) == "0";
        auto made = groups::MakeCommunicator({{address}, alone ? "" : name});
        if (!made.ok()) return made.error();
        return wrap(std::move(*made));
      });
}

// Empty if the head lets the worker go without a run.
inline std::optional<Assignment> AwaitRun(daemons::WorkerClient& worker) {
  std::optional<Assignment> assignment;
  while (!assignment && !worker.released()) assignment = worker.WaitAssignment(seconds(1));
  return assignment;
}

}  // namespace troupe::testing
