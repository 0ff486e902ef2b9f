#include "tests/integration/cluster.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iostream>

namespace troupe::testing {
namespace {

std::string SelfDir() {
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  return path.substr(0, path.rfind('/'));
}

}  // namespace

std::string JsonField(const std::string& json, size_t from, const std::string& key) {
  const size_t at = json.find("\"" + key + "\":", from);
  if (at == std::string::npos) return "";
  size_t begin = at + key.size() + 3;
  const bool text = json[begin] == '"';
  if (text) ++begin;
  return json.substr(begin, json.find_first_of(text ? "\"" : ",}]", begin) - begin);
}

Cluster::Cluster(daemons::DriverOptions options) {
  if (options.bin_dir.empty()) options.bin_dir = SelfDir() + "/../bin";
  auto client = daemons::DriverClient::Connect(options);
  if (!client.ok()) ADD_FAILURE() << client.error().ToString();
  if (client.ok()) client_ = std::move(*client);
}

Cluster::~Cluster() {
  if (client_) client_->Shutdown();
}

void Cluster::Start(const RunOptions& options) {
  RunSpec spec;
  spec.name = "test";
  spec.min_workers = options.min_workers;
  spec.max_workers = options.max_workers;
  spec.workers = options.workers;
  spec.resources = {{"CPU", options.cpu_each}};
  spec.worker_argv =
      options.argv.empty() ? std::vector<std::string>{SelfDir() + "/ledger-member"} : options.argv;
  spec.payload = std::to_string(options.samples) + " " + std::to_string(options.per_rank) + " " +
                 std::to_string(options.pace_us);
  if (!options.payload.empty()) spec.payload = options.payload;
  spec.env = {{"TROUPE_TEST_FAULTS", options.faults},
              {"TROUPE_SHARED_MEMORY", options.share_memory ? "1" : "0"}};
  spec.lease_ms = options.lease_ms;
  spec.elastic_timeout_s = options.elastic_timeout_s;
  spec.start_timeout_s = 20;
  spec.stall_report_s = options.stall_report_s;
  spec.stall_remove_s = options.stall_remove_s;
  Result<std::string> run = client_->Submit(spec);
  ASSERT_TRUE(run.ok()) << run.error().ToString();
  run_ = *run;
}

void Cluster::Handle(const RunEvent& event) {
  const std::string& json = event.json;
  if (event.kind == "log") {
    std::cerr << json.substr(json.find("\"lines\":")) << "\n";
  } else if (event.kind == "done") {
    state_ = JsonField(json, 0, "state");
    reason_ = JsonField(json, 0, "reason");
  } else if (event.kind == "result") {
    results_.push_back(event.payload);
  } else if (event.kind == "parked") {
    parked_.push_back(JsonField(json, 0, "reason"));
    members_.clear();
  } else if (event.kind == "report") {
    ++reports_;
  } else if (event.kind == "stalled") {
    stalled_.push_back(json);
  } else if (event.kind == "worker") {
    if (JsonField(json, 0, "state") == "died") ++deaths_;
    if (JsonField(json, 0, "state") == "drained") drained_.push_back(JsonField(json, 0, "detail"));
  } else if (event.kind == "epoch") {
    members_.clear();
    epoch_ = std::stoull(JsonField(json, 0, "epoch"));
    const size_t list = json.find("\"members\":[");
    const size_t end = json.find(']', list);
    for (size_t at = json.find('{', list); at != std::string::npos && at < end;
         at = json.find('{', at + 1)) {
      members_.push_back({JsonField(json, at, "id"), std::stoi(JsonField(json, at, "pid"))});
    }
  }
}

bool Cluster::WaitFor(const std::string& what, const std::function<bool()>& condition,
                      Duration limit) {
  const Time deadline = SteadyClock().Now() + limit;
  while (!condition()) {
    if (SteadyClock().Now() >= deadline) {
      Result<std::string> status = client_->RunJson(run_);
      ADD_FAILURE() << "waited in vain for: " << what << "; run "
                    << (status.ok() ? *status : status.error().ToString());
      return false;
    }
    auto event = client_->NextEvent(run_, milliseconds(20));
    if (event.ok() && event->has_value()) Handle(**event);
  }
  return true;
}

bool Cluster::WaitActive(size_t size, Duration limit) {
  return WaitFor(
             std::to_string(size) + " members",
             [&] { return members_.size() == size || !state_.empty(); }, limit) &&
         members_.size() == size;
}

bool Cluster::WaitDone(Duration limit) {
  return WaitFor(
      "the end of the run", [&] { return !state_.empty(); }, limit);
}

int Cluster::PidOf(const std::string& program) const {
  // The run directory names this cluster's processes apart from others'.
  const std::string endpoint = client_->address();
  const std::string run_dir = endpoint.substr(6, endpoint.rfind('/') - 6);
  DIR* proc = ::opendir("/proc");
  int found = -1;
  while (const dirent* entry = ::readdir(proc)) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/cmdline");
    std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::string first = command.substr(0, command.find('\0'));
    const bool named = first.find(program) != std::string::npos;
    if (named && command.find(run_dir) != std::string::npos) found = pid;
  }
  ::closedir(proc);
  return found;
}

}  // namespace troupe::testing
