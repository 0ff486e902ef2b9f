#include <troupe/troupe.h>

#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "daemons/client/actor_process.h"
#include "daemons/client/driver_client.h"
#include "daemons/client/head_client.h"
#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/process.h"

namespace troupe::internal {
namespace {

constexpr Duration kStopLimit = seconds(2);

std::string SelfPath() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The file that this code was linked into: the program, or libtroupe_c.so.
std::string OwnFile() {
  Dl_info info{};
  static const char here = 0;
  const bool known = ::dladdr(&here, &info) != 0 && info.dli_fname != nullptr;
  std::error_code error;
  return known ? std::filesystem::canonical(info.dli_fname, error).string() : "";
}

Result<std::string> FindBinDir(const std::string& given, const std::string& installed) {
  for (const std::string& dir : {given, Env("TROUPE_BIN_DIR"), FolderOf(SelfPath()),
                                 FolderOf(FolderOf(OwnFile())) + "/bin", installed}) {
    if (!dir.empty() && ::access((dir + "/troupe-local").c_str(), X_OK) == 0) return dir;
  }
  Result<std::string> local = FindProgram("troupe-local");
  if (local.ok()) return local->substr(0, local->rfind('/'));
  return Error{
      ErrorCode::kNotFound,
      "troupe-local was found neither beside this program, nor in its prefix, nor on PATH; set "
      "TROUPE_BIN_DIR "
      "or InitOptions::bin_dir to the folder of the daemons"};
}

// The same rule as Python's and the command line's.
std::string KeyFile(const std::string& given) {
  std::string named = given.empty() ? Env("TROUPE_KEY_FILE") : given;
  if (!named.empty()) return named;
  const std::string home =
      Env("TROUPE_HOME").empty() ? Env("HOME") + "/.troupe" : Env("TROUPE_HOME");
  return home + "/cluster.key";
}

// A driver's part of the cluster, in the order in which it is to be taken down.
struct Driver {
  std::unique_ptr<daemons::DriverClient> client;
  std::shared_ptr<daemons::HeadClient> link;
  std::shared_ptr<actors::ActorSystem> system;

  ~Driver() {
    if (link) link->Stop();
    if (system) system->Stop(kStopLimit);
    if (client) {
      client->SetOther(nullptr);
      client->Shutdown();
    }
  }
};

void Print(const actors::ActorOutput& output) {
  const std::string prefix =
      "(" + output.type + " pid=" + std::to_string(output.pid) + " node=" + output.node + ") ";
  std::string text;
  if (output.dropped > 0)
    text += prefix + "[" + std::to_string(output.dropped) +
            " lines dropped: printed faster than they could be sent]\n";
  for (const std::string& line : output.lines) text += prefix + line + "\n";
  std::cerr << text;
}

}  // namespace

void HostIfWorker(const actors::TypeTable& types) {
  std::signal(SIGPIPE, SIG_IGN);
  if (daemons::InActorProcess()) daemons::HostAssigned({types, {{SelfPath()}, {}}});
}

Result<Cluster> Start(const InitOptions& options, actors::TypeTable types,
                      const std::string& installed) {
  daemons::DriverOptions driver_options;
  driver_options.address = options.address.empty() ? Env("TROUPE_ADDRESS") : options.address;
  driver_options.key_file = KeyFile(options.key_file);
  driver_options.silence_s = ToSeconds(options.driver_silence);
  driver_options.resources = options.resources;
  driver_options.log_dir = options.log_dir;
  const bool embedded = driver_options.address.empty();
  Result<std::string> bin_dir = FindBinDir(options.bin_dir, installed);
  if (embedded && !bin_dir.ok()) return bin_dir.error();
  if (bin_dir.ok()) driver_options.bin_dir = *bin_dir;
  const bool remote = !embedded && !driver_options.address.starts_with("ipc://");
  CurveKeys keys;
  if (remote) {
    const Result<ClientKeys> loaded = LoadClientKeys(driver_options.key_file);
    if (!loaded.ok()) return loaded.error();
    keys = loaded->own;
  }
  auto driver = std::make_shared<Driver>();
  Result<std::unique_ptr<daemons::DriverClient>> client =
      daemons::DriverClient::Connect(driver_options);
  if (!client.ok()) return client.error();
  driver->client = std::move(*client);
  daemons::DriverClient* const raw = driver->client.get();
  driver->link = std::make_shared<daemons::HeadClient>(
      &raw->loop(), [raw](std::string frame) { return raw->SendToHead(std::move(frame)); },
      "driver/" + raw->id());
  Result<std::unique_ptr<Transport>> transport =
      MakeZmqTransport({raw->id() + actors::kCallsSuffix, keys, {}, true, true});
  if (!transport.ok()) return transport.error();
  actors::ActorSystem::Options system_options;
  system_options.node = "driver";
  system_options.types = std::move(types);
  system_options.program = {{SelfPath()}, {}};
  system_options.directory_client = driver->link;
  system_options.actors_run_loop = false;
  system_options.on_waiting = [](const std::string& line) { LogWarning(line); };
  driver->system = actors::ActorSystem::Create(std::move(*transport), std::move(system_options));
  std::string endpoint = "ipc://" + raw->socket_dir() + "/" + raw->id() + ".sock";
  if (remote) {
    Result<std::string> address = options.data_address.empty()
                                      ? raw->LocalAddress()
                                      : Result<std::string>(options.data_address);
    if (!address.ok()) return address.error();
    endpoint = "tcp://" + *address + ":*";
  }
  if (Status s = driver->system->Listen(endpoint); !s.ok()) return s.error();
  driver->link->SetSystem(driver->system);
  if (options.print_output) driver->link->SetOutput(Print);
  raw->SetOther([link = driver->link](const std::string& frame) { (void)link->OnFrame(frame); });
  driver->link->Start();
  return Cluster(driver->system, driver);
}

}  // namespace troupe::internal
