#include "daemons/client/actor_process.h"

#include <cstdlib>
#include <iostream>
#include <utility>

#include "daemons/client/head_client.h"
#include "daemons/client/process_groups.h"
#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace troupe::daemons {
namespace {

constexpr Duration kStopLimit = seconds(2);
constexpr Duration kFailLimit = seconds(10);  // For the head to hear why the actor cannot be made.

struct Assigned {
  std::unique_ptr<WorkerClient> client;
  Assignment assignment;
};

// Ends the process if there is nothing to do, or nobody to ask.
Assigned AwaitAssigned() {
  InitLogging("actor");
  Result<std::unique_ptr<WorkerClient>> client = WorkerClient::FromEnvironment();
  if (!client.ok()) {
    std::cerr << "actor host: " << client.error().ToString() << std::endl;
    std::_Exit(1);
  }
  // As long as its node wants it: it ends with the node.
  std::optional<Assignment> assignment;
  while (!assignment && !(*client)->released()) assignment = (*client)->WaitAssignment(seconds(1));
  if (!assignment) std::_Exit(0);
  return {std::move(*client), std::move(*assignment)};
}

int Refuse(WorkerClient& worker, const Error& why) {
  const actors::ActorSaved failure{"", 0, actors::ToChain(why)};
  worker.Finish(false, wire::Encode(actors::kFrameActorSaved, failure), kFailLimit);
  return 1;
}

}  // namespace

bool InActorProcess() { return std::getenv("TROUPE_WORKER_PROCESS") != nullptr; }

void HostAssigned(const ActorProcessOptions& options) {
  const Assigned assigned = AwaitAssigned();
  const int code = RunActorProcess(*assigned.client, assigned.assignment, options);
  std::cout.flush();
  std::_Exit(code);
}

void RefuseAssigned(const Error& why) {
  const Assigned assigned = AwaitAssigned();
  std::_Exit(Refuse(*assigned.client, why.WithContext("node " + assigned.client->node())));
}

Result<std::shared_ptr<actors::ActorSystem>> JoinCluster(WorkerClient& worker,
                                                         const std::string& owner,
                                                         ActorProcessOptions options) {
  CurveKeys keys;
  if (const std::string path = Env("TROUPE_WORKER_KEY_FILE"); !path.empty()) {
    const Result<ClientKeys> loaded = LoadClientKeys(path);
    if (!loaded.ok()) return loaded.error();
    keys = loaded->own;
  }
  Result<std::unique_ptr<Transport>> transport =
      MakeZmqTransport({worker.process() + actors::kCallsSuffix, keys, {}, true, true});
  if (!transport.ok()) return transport.error();
  const auto link = std::make_shared<HeadClient>(
      &worker.loop(), [&worker](std::string frame) { return worker.SendToHead(std::move(frame)); },
      owner);
  actors::ActorSystem::Options system_options;
  system_options.node = worker.node();
  system_options.types = std::move(options.types);
  system_options.program = std::move(options.program);
  system_options.directory_client = link;
  // What it prints goes to its owner.
  system_options.on_waiting = [](const std::string& line) { LogWarning(line); };
  if (options.has_cpu) {
    system_options.loan = std::make_shared<actors::CpuLoan>(
        &worker.loop(), [&worker](uint64_t number, bool lent) { worker.SetLoan(number, lent); });
  }
  std::shared_ptr<actors::ActorSystem> system =
      actors::ActorSystem::Create(std::move(*transport), std::move(system_options));
  const std::string endpoint =
      keys.secret_key.empty()
          ? "ipc://" + Env("TROUPE_WORKER_RUN_DIR") + "/" + worker.process() + ".sock"
          : "tcp://" + Env("TROUPE_WORKER_DATA_ADDRESS") + ":*";
  if (Status s = system->Listen(endpoint); !s.ok()) return s.error();
  link->SetSystem(system);
  worker.SetOther([link](const std::string& frame) { (void)link->OnFrame(frame); });
  link->Start();
  return system;
}

int RunActorProcess(WorkerClient& worker, const Assignment& assignment,
                    ActorProcessOptions options) {
  const auto fail = [&](const Error& error) { return Refuse(worker, error); };
  Result<actors::ActorAssignment> actor =
      wire::Decode<actors::ActorAssignment>(actors::kActorAssignment, assignment.payload);
  if (!actor.ok()) return fail(actor.error());
  Result<actors::ActorBlueprint> blueprint =
      wire::Decode<actors::ActorBlueprint>(actors::kActorBlueprint, actor->blueprint);
  if (!blueprint.ok()) return fail(blueprint.error());
  options.has_cpu = actor->has_cpu;
  Result<std::shared_ptr<actors::ActorSystem>> system =
      JoinCluster(worker, "actor/" + actor->actor, std::move(options));
  if (!system.ok()) return fail(system.error());
  const auto groups =
      std::make_shared<ProcessGroups>(&worker, *system, actor->actor, actor->incarnation);
  ProcessGroups::SetHere(groups);
  const Result<actors::ActorAddress> hosted =
      (*system)->Host(*blueprint, actor->actor, actor->incarnation, actor->saved);
  if (!hosted.ok()) {
    (*system)->Stop(kStopLimit);
    return fail(hosted.error());
  }
  worker.Announce((*system)->self());
  while (!worker.released()) (void)worker.WaitAssignment(seconds(1));
  groups->Stop();
  worker.SetOther(nullptr);
  (*system)->Stop(kStopLimit);
  return 0;
}

}  // namespace troupe::daemons
