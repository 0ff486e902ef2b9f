// How a driver finds its cluster: one of its own, or a head that is there.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "daemons/client/driver_client.h"
#include "runtime/curve_key_files.h"
#include "runtime/host_address.h"
#include "runtime/link_probe.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kProbeLimit = seconds(2);
constexpr Duration kRepeatPing = milliseconds(10);  // While the head comes up.

// The first line of troupe-local: "ready ENDPOINT PIDS" or "error WHY".
Result<std::string> ReadLine(int fd, Duration limit, const ChildProcess& child) {
  const Time deadline = SteadyClock().Now() + limit;
  std::string line;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - SteadyClock().Now()).count();
    if (left <= 0)
      return Error{ErrorCode::kDeadlineExceeded, "the embedded cluster did not start in time"};
    pollfd item{fd, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(std::min<int64_t>(left, 200))) <= 0) continue;
    char c = 0;
    const ssize_t got = ::read(fd, &c, 1);
    if (got == 0)
      return Error{ErrorCode::kUnavailable, "the embedded cluster ended while it started: " + line};
    if (got < 0) continue;
    if (c == '\n') return line;
    line.push_back(c);
  }
}

}  // namespace

Status DriverClient::Start() {
  ZmqTransportOptions transport_options;
  transport_options.name = id_;
  PeerAddress head{kHeadName, "", ""};
  if (options_.address.empty()) {
    if (Status s = StartEmbedded(); !s.ok()) return s;
  } else if (options_.address.starts_with("ipc://")) {
    endpoint_ = options_.address;
  } else {
    key_file_ = options_.key_file;
    const bool has_scheme = options_.address.find("://") != std::string::npos;
    endpoint_ = has_scheme ? options_.address : "tcp://" + options_.address;
  }
  if (!endpoint_.starts_with("ipc://")) {
    const Result<ClientKeys> keys = LoadClientKeys(key_file_);
    if (!keys.ok()) return keys.error();
    transport_options.keys = keys->own;
    head.public_key = keys->head_key;
  }
  head.endpoint = endpoint_;
  Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(transport_options);
  if (!transport.ok()) return transport.error();
  transport_ = std::move(*transport);
  transport_->SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  if (Status s = transport_->Connect(head); !s.ok()) return s;
  if (Status s = AwaitHead(transport_options.keys, head); !s.ok()) return s;
  transport_->loop().Post([this] { Beat(); });
  return Status::Ok();
}

Status DriverClient::AwaitHead(const CurveKeys& keys, const PeerAddress& head) {
  const Time deadline = SteadyClock().Now() + options_.start_timeout;
  const auto ping = [&](Time until) {
    Result<std::string> pong = Error{ErrorCode::kUnavailable, ""};
    while (!pong.ok() && pong.error().code == ErrorCode::kUnavailable &&
           SteadyClock().Now() < until) {
      // "kUnavailable" is the head's answer while the node of an embedded cluster still starts.
      ::usleep(5'000);
      pong = Request(
          kFrameQuery,
          [](uint64_t request) {
            return wire::Encode(kFrameQuery, Query{request, QueryVerb::kPing, "", "", 0});
          },
          until - SteadyClock().Now(), kRepeatPing);
    }
    return pong;
  };
  // Who closes every connection may also be a proxy whose head is not up yet, so that a stranger
  // gets half of the time.
  const Time begun = SteadyClock().Now();
  LinkState state = LinkState::kOpen;
  Result<std::string> pong = Error{ErrorCode::kUnavailable, "it has just been started"};
  for (const Time until : {std::min(deadline, begun + options_.start_timeout / 2), deadline}) {
    if (SteadyClock().Now() < until) pong = ping(until);
    if (pong.ok()) return Status::Ok();
    if (pong.error().code == ErrorCode::kDeadlineExceeded)
      state = ProbeLink(keys, head, kProbeLimit);
    if (state == LinkState::kStranger) break;
  }
  const bool silent = pong.error().code == ErrorCode::kDeadlineExceeded;
  const ErrorCode code =
      state == LinkState::kStranger ? ErrorCode::kPermissionDenied : pong.error().code;
  return Error{code, "no head answers at " + endpoint_ + ": " +
                         (silent ? ExplainLink(state, key_file_) : pong.error().message)};
}

std::string DriverClient::socket_dir() const {
  constexpr std::string_view kScheme = "ipc://";
  const std::string path = endpoint_.substr(std::min(endpoint_.size(), kScheme.size()));
  return path.substr(0, path.rfind('/'));
}

Result<std::string> DriverClient::LocalAddress() const {
  const std::string host_port = endpoint_.substr(endpoint_.find("://") + 3);
  Result<std::string> address = AddressTowards(host_port.substr(0, host_port.rfind(':')));
  if (address.ok()) return address;
  return Error{ErrorCode::kUnavailable,
               "cannot tell by which address the cluster reaches this host (" +
                   address.error().message + "); set InitOptions::data_address"};
}

Status DriverClient::StartEmbedded() {
  std::error_code error;
  const auto temp = std::filesystem::temp_directory_path(error);
  std::string pattern = (error ? std::string("/tmp") : temp.string()) + "/troupe-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    return Error{ErrorCode::kResourceExhausted, "cannot create a directory in " + temp.string() +
                                                    ": " + std::strerror(errno) +
                                                    "; set TMPDIR to a writable place"};
  }
  run_dir_ = pattern;
  if (!options_.listen.empty()) {
    const Result<HostPort> at = ParseHostPort(options_.listen);
    if (!at.ok()) return at.error();
    // A head that cannot listen is started again and again.
    if (const Status free = CanListen(*at); !free.ok()) return free;
    key_file_ = run_dir_ + "/cluster.key";
  }
  if (run_dir_.size() > 80) {  // A unix socket's path has at most 107 bytes.
    return Error{ErrorCode::kInvalidArgument, "TMPDIR is too long for socket files: " + run_dir_};
  }
  Result<std::string> local = FindProgram(options_.bin_dir + "/troupe-local");
  if (!local.ok()) return local.error().WithContext("the daemons of this installation are missing");
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return Error{ErrorCode::kResourceExhausted, std::strerror(errno)};
  lifeline_ = fds[1];
  (void)CloseOnFork(lifeline_);  // Else a forked child would keep the cluster of a dead driver.
  SpawnOptions spawn;
  spawn.argv = {*local, "--run-dir", run_dir_, "--bin-dir", options_.bin_dir};
  if (!options_.with_node) spawn.argv.emplace_back("--no-node");
  if (!options_.listen.empty())
    spawn.argv.insert(spawn.argv.end(),
                      {"--listen", "tcp://" + options_.listen, "--key-file", key_file_});
  if (!options_.redis_server.empty())
    spawn.argv.insert(spawn.argv.end(), {"--redis-server", options_.redis_server});
  if (!options_.log_dir.empty())
    spawn.argv.insert(spawn.argv.end(), {"--log-dir", options_.log_dir});
  if (options_.metrics_port > 0) {
    const std::string address = "127.0.0.1:" + std::to_string(options_.metrics_port);
    spawn.argv.insert(spawn.argv.end(), {"--head-arg=--metrics-address", "--head-arg=" + address});
  }
  const auto node_arg = [&](const std::string& arg) { spawn.argv.push_back("--node-arg=" + arg); };
  for (const auto& [name, amount] : options_.resources) {
    std::ostringstream text;
    text.precision(17);
    text << amount;
    if (name == "CPU" || name == "GPU" || name == "memory") {
      node_arg(name == "CPU" ? "--cpus" : name == "GPU" ? "--gpus" : "--memory");
      node_arg(text.str());
    } else {
      node_arg("--resource");
      node_arg(name + "=" + text.str());
    }
  }
  spawn.capture_output = true;
  spawn.stdin_fd = fds[0];
  spawn.parent_death_signal = 0;  // The lifeline tells it, so that it can clean up.
  Result<ChildProcess> child = Spawn(spawn);
  ::close(fds[0]);
  if (!child.ok()) return child.error();
  local_ = std::move(*child);
  Result<std::string> line = ReadLine(local_.stdout_fd(), options_.start_timeout, local_);
  if (!line.ok()) return line.error();
  std::istringstream words(*line);
  std::string word;
  words >> word >> endpoint_;
  if (word != "ready")
    return Error{ErrorCode::kUnavailable,
                 "the embedded cluster cannot start: " + line->substr(line->find(' ') + 1)};
  return Status::Ok();
}

}  // namespace troupe::daemons
