#include "daemons/troupe.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "actors/actor_host.h"
#include "daemons/driver_client.h"
#include "daemons/worker_client.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace troupe::internal {
namespace {

std::string SelfPath() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

Result<std::string> FindBinDir(const std::string& given) {
  const std::string self = SelfPath();
  const char* from_env = std::getenv("TROUPE_BIN_DIR");
  for (const std::string& dir : {given, from_env == nullptr ? std::string() : std::string(from_env),
                                 self.substr(0, self.rfind('/'))}) {
    if (!dir.empty() && ::access((dir + "/troupe-local").c_str(), X_OK) == 0) return dir;
  }
  Result<std::string> local = FindProgram("troupe-local");
  if (local.ok()) return local->substr(0, local->rfind('/'));
  return Error{ErrorCode::kNotFound,
               "troupe-local was found neither beside this program nor on PATH; set TROUPE_BIN_DIR "
               "or InitOptions::bin_dir to the folder of the daemons"};
}

Result<CurveKeys> WorkerKeys() {
  const char* path = std::getenv("TROUPE_WORKER_KEY_FILE");
  if (path == nullptr || *path == '\0') return CurveKeys{};
  return LoadCurveKeys(path);
}

// The life of a worker process that hosts one actor.
int Host(const actors::TypeTable& types) {
  InitLogging("actor");
  const auto fail = [](const Error& error) {
    std::cerr << "actor host: " << error.ToString() << std::endl;
    return 1;
  };
  Result<std::unique_ptr<daemons::WorkerClient>> client = daemons::WorkerClient::FromEnvironment();
  if (!client.ok()) return fail(client.error());
  daemons::WorkerClient& worker = **client;
  std::optional<Assignment> assignment;
  while (!assignment) {
    if (worker.released()) return 0;
    assignment = worker.WaitAssignment(seconds(1));
  }
  Result<actors::ActorBlueprint> blueprint =
      wire::Decode<actors::ActorBlueprint>(actors::kActorBlueprint, assignment->payload);
  Result<std::unique_ptr<actors::Instance>> instance =
      blueprint.ok() ? types.Make(blueprint->type, blueprint->arguments)
                     : Result<std::unique_ptr<actors::Instance>>(blueprint.error());
  if (!instance.ok()) {
    worker.Finish(false, instance.error().ToString(), seconds(10));
    return 1;
  }
  Result<CurveKeys> keys = WorkerKeys();
  if (!keys.ok()) return fail(keys.error());
  Result<std::unique_ptr<Transport>> transport =
      MakeZmqTransport({worker.process() + "-calls", *keys, {}, false});
  if (!transport.ok()) return fail(transport.error());
  actors::ActorHost host(transport->get(), std::move(*instance), *blueprint);
  (*transport)->SetHandler([&](const std::string& from, const std::string& frame) {
    host.OnFrame(from, frame);
  });
  const char* run_dir = std::getenv("TROUPE_WORKER_RUN_DIR");
  const char* data_address = std::getenv("TROUPE_WORKER_DATA_ADDRESS");
  const std::string endpoint =
      keys->secret_key.empty() ? "ipc://" + std::string(run_dir) + "/" + worker.process() + ".sock"
                               : "tcp://" + std::string(data_address) + ":*";
  Result<PeerAddress> address = (*transport)->Listen(endpoint);
  if (!address.ok()) return fail(address.error());
  worker.Announce(*address);
  while (!worker.released()) (void)worker.WaitAssignment(seconds(1));
  (*transport)->SetHandler(nullptr);
  (void)host.Stop(seconds(2));
  return 0;
}

}  // namespace

class RuntimeImpl {
 public:
  std::unique_ptr<daemons::DriverClient> driver;
  std::unique_ptr<actors::ActorClient> calls;
  std::mutex mu;
  std::condition_variable changed;
  struct Progress {
    std::optional<PeerAddress> address;
    std::optional<Error> ended;
  };
  std::map<std::string, Progress> jobs;

  ~RuntimeImpl() {
    if (driver) driver->Shutdown();
  }

  void OnEvent(const std::string& job, const JobEvent& event) {
    std::optional<PeerAddress> lost;
    std::string why;
    {
      std::lock_guard lock(mu);
      Progress& progress = jobs[job];
      if (event.kind == "worker" && !event.payload.empty()) {
        Result<PeerAddress> address = wire::Decode<PeerAddress>(kFrameWorkerHello, event.payload);
        if (address.ok()) progress.address = *address;
      } else if (event.kind == "log") {
        std::cerr << Text(event.json, "line") << "\n";
      } else if (event.kind == "done") {
        why = event.payload.empty() ? Text(event.json, "reason") : event.payload;
        progress.ended =
            Error{event.payload.empty() ? ErrorCode::kPeerGone : ErrorCode::kUserError, why};
        lost = progress.address;
      }
      changed.notify_all();
    }
    if (lost) calls->Lost(lost->peer, why.empty() ? "the actor has ended" : why);
  }

  // The text after "key": in a flat object whose texts hold no escaped quote before it.
  static std::string Text(const std::string& json, const std::string& key) {
    const size_t at = json.find("\"" + key + "\":\"");
    if (at == std::string::npos) return "";
    std::string text;
    for (size_t i = at + key.size() + 4; i < json.size() && json[i] != '"'; ++i) {
      if (json[i] == '\\' && i + 1 < json.size()) ++i;
      text.push_back(json[i]);
    }
    return text;
  }
};

void HostIfWorker(const actors::TypeTable& types) {
  std::signal(SIGPIPE, SIG_IGN);
  if (std::getenv("TROUPE_WORKER_PROCESS") == nullptr) return;
  std::_Exit(Host(types));
}

Result<std::shared_ptr<RuntimeImpl>> StartRuntime(const InitOptions& options) {
  daemons::DriverOptions driver;
  driver.address = options.address;
  driver.key_file = options.key_file;
  driver.resources = options.resources;
  if (options.address.empty()) {
    Result<std::string> bin_dir = FindBinDir(options.bin_dir);
    if (!bin_dir.ok()) return bin_dir.error();
    driver.bin_dir = *bin_dir;
  }
  auto impl = std::make_shared<RuntimeImpl>();
  ZmqTransportOptions transport_options{"caller-" + RandomId(), {}, {}, true};
  if (!options.key_file.empty()) {
    Result<CurveKeys> keys = LoadCurveKeys(options.key_file);
    if (!keys.ok()) return keys.error();
    transport_options.keys = *keys;
  }
  Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(transport_options);
  if (!transport.ok()) return transport.error();
  impl->calls = std::make_unique<actors::ActorClient>(std::move(*transport));
  Result<std::unique_ptr<daemons::DriverClient>> client = daemons::DriverClient::Connect(driver);
  if (!client.ok()) return client.error();
  impl->driver = std::move(*client);
  impl->driver->SetEventSink([raw = impl.get()](const std::string& job, const JobEvent& event) {
    raw->OnEvent(job, event);
  });
  return impl;
}

Result<SpawnedActor> SpawnActor(RuntimeImpl& runtime, const SpawnActorOptions& options,
                                const std::string& type, std::string arguments) {
  JobSpec spec;
  spec.name = type;
  spec.kind = "actor";
  spec.resources = options.resources;
  spec.worker_argv = {SelfPath()};
  spec.spares = 0;
  spec.start_timeout_s = ToSeconds(options.timeout);
  spec.payload =
      wire::Encode(actors::kActorBlueprint,
                   actors::ActorBlueprint{type, std::move(arguments), options.max_concurrency,
                                          options.mailbox_depth});
  Result<std::string> job = runtime.driver->Submit(std::move(spec));
  if (!job.ok()) return job.error();
  std::unique_lock lock(runtime.mu);
  runtime.changed.wait_for(lock, options.timeout, [&] {
    const RuntimeImpl::Progress& progress = runtime.jobs[*job];
    return progress.address || progress.ended;
  });
  const RuntimeImpl::Progress progress = runtime.jobs[*job];
  lock.unlock();
  if (progress.ended) return progress.ended->WithContext("cannot spawn " + type);
  if (!progress.address) {
    (void)runtime.driver->Cancel(*job);
    return Error{ErrorCode::kDeadlineExceeded, type + " did not start within its time-out"};
  }
  if (Status s = runtime.calls->Connect(*progress.address); !s.ok()) return s.error();
  return SpawnedActor{progress.address->peer, *job};
}

void CallActor(RuntimeImpl& runtime, const SpawnedActor& actor, const std::string& method,
               std::string arguments, Duration timeout, const actors::ActorClient::Callback& done) {
  runtime.calls->Call(actor.peer, method, std::move(arguments), timeout, done);
}

Status KillActor(RuntimeImpl& runtime, const SpawnedActor& actor) {
  Status cancelled = runtime.driver->Cancel(actor.job);
  // At once, not with the "done" event: a call after Kill must not reach the actor any more.
  if (cancelled.ok()) runtime.calls->Lost(actor.peer, "cancelled by the driver");
  return cancelled;
}

}  // namespace troupe::internal
