#include "daemons/autoscaler/supplier.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "autoscaler/exec_provider.h"
#include "autoscaler/process_provider.h"

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;

constexpr Duration kProcessesGrace = seconds(3);
constexpr Duration kExecGrace = seconds(20);
constexpr Duration kLease = seconds(300);  // A head that was restarted is back long before.

// Directories of the nodes: short names, since a socket's path has at most 107 bytes.
class NodeDirs {
 public:
  explicit NodeDirs(std::string root) : root_(std::move(root)) {}

  Result<std::string> Make(const std::string& id) {
    const std::string dir = root_ + "/n" + std::to_string(++last_);
    if (::mkdir(dir.c_str(), 0700) != 0)
      return Error{ErrorCode::kResourceExhausted,
                   "cannot create " + dir + ": " + std::strerror(errno)};
    dirs_[id] = dir;
    return dir;
  }
  // Puts the notice where the node looks; whole or not at all.
  Status Notice(const std::string& id, const std::string& reason, Duration left) const {
    const auto found = dirs_.find(id);
    if (found == dirs_.end()) return Error{ErrorCode::kNotFound, "no node " + id};
    const std::string path = found->second + "/notice";
    std::ofstream out(path + ".new");
    out << reason << "\n" << std::max(0.0, ToMilliseconds(left) / 1000) << "\n";
    out.close();
    if (!out.good() || ::rename((path + ".new").c_str(), path.c_str()) != 0)
      return Error{ErrorCode::kResourceExhausted,
                   "cannot write " + path + ": " + std::strerror(errno)};
    return Status::Ok();
  }
  void Remove(const std::string& id) {
    const auto found = dirs_.find(id);
    if (found == dirs_.end()) return;
    std::error_code ignored;
    fs::remove_all(found->second, ignored);
    dirs_.erase(found);
  }

 private:
  const std::string root_;
  std::map<std::string, std::string> dirs_;
  int last_ = 0;
};

// What every node of a pool is told, wherever it runs.
std::vector<std::string> NodeArguments(const PoolSpec& pool, const std::string& head,
                                       const std::string& id) {
  std::vector<std::string> arguments = {"--head", head, "--name", id};
  for (const auto& [name, amount] : pool.resources.ToMap())
    arguments.insert(arguments.end(), {"--resource", name + "=" + NumberText(amount)});
  for (const auto& [name, value] : pool.labels)
    arguments.insert(arguments.end(), {"--label", name + "=" + value});
  return arguments;
}

class ProcessSupplier final : public Supplier {
 public:
  explicit ProcessSupplier(const SupplierOptions& options)
      : options_(options),
        dirs_(options.client->run_dir()),
        provider_(options.clock, ProviderOptions()) {}

  NodeProvider& nodes() override { return provider_; }
  NoticeSource& notices() override { return provider_; }
  Status Drain(const std::string& id, const std::string& reason, Duration left) override {
    return dirs_.Notice(id, reason, left);
  }
  void Gone(const std::string& id) override { dirs_.Remove(id); }
  [[nodiscard]] Time next_wake() const override { return provider_.next_wake(); }
  [[nodiscard]] Duration grace() const override { return kProcessesGrace; }

 private:
  ProcessProviderOptions ProviderOptions() {
    ProcessProviderOptions options;
    options.schedule = SpotSchedule(options_.config->schedule);
    options.command = [this](const std::string& id, const std::string& pool) {
      return NodeCommand(id, pool);
    };
    return options;
  }

  Result<SpawnOptions> NodeCommand(const std::string& id, const std::string& pool) {
    const PoolSpec* spec = options_.config->FindPool(pool);
    if (spec == nullptr) return Error{ErrorCode::kNotFound, "no pool " + pool};
    Result<std::string> dir = dirs_.Make(id);
    if (!dir.ok()) return dir.error();
    SpawnOptions node;
    node.argv = NodeArguments(*spec, options_.client->address(), id);
    node.argv.insert(node.argv.begin(), options_.bin_dir + "/troupe-node");
    node.argv.insert(node.argv.end(), {"--run-dir", *dir, "--notice-file", *dir + "/notice",
                                       "--log-file", *dir + "/log"});
    node.env = options_.config->training.env;  // Workers inherit it from their node.
    node.output_path = *dir + "/out";
    return node;
  }

  const SupplierOptions options_;
  NodeDirs dirs_;
  ProcessProvider provider_;
};

class ExecSupplier final : public Supplier {
 public:
  explicit ExecSupplier(const SupplierOptions& options)
      : options_(options), provider_(options.clock, ProviderOptions()) {}

  NodeProvider& nodes() override { return provider_; }
  NoticeSource& notices() override { return provider_; }
  Status Drain(const std::string& id, const std::string& reason, Duration left) override {
    return options_.client->DrainNode(id, std::max<Duration>(left, milliseconds(1)));
  }
  [[nodiscard]] Time next_wake() const override { return provider_.next_wake(); }
  [[nodiscard]] Duration grace() const override {
    return options_.config->exec.timeout + kExecGrace;
  }
  std::string Strangers() override {
    if (!provider_.List().ok() || provider_.strangers().empty()) return "";
    std::string ids;
    for (const std::string& id : provider_.strangers()) ids += (ids.empty() ? "" : ", ") + id;
    return "nodes of cluster " + options_.config->name +
           " that another `troupe up` has made are left alone; end them if none runs: " + ids;
  }

 private:
  ExecProviderOptions ProviderOptions() {
    const ExecSpec& exec = options_.config->exec;
    ExecProviderOptions options;
    options.command.argv = exec.command;
    options.command.folder = options_.folder;
    options.command.limit = exec.timeout;
    options.interval = exec.interval;
    options.cluster = options_.config->name;
    options.life = options_.life;
    options.boot = [this](const std::string& id, const std::string& pool) {
      return BootScript(id, pool);
    };
    return options;
  }

  // The node makes a directory of its own, and ends by itself if this cluster is killed as a whole.
  Result<std::string> BootScript(const std::string& id, const std::string& pool) {
    const PoolSpec* spec = options_.config->FindPool(pool);
    if (spec == nullptr) return Error{ErrorCode::kNotFound, "no pool " + pool};
    std::string script = "#!/bin/sh\n";
    for (const auto& [name, value] : options_.config->training.env)
      script += "export " + name + "=" + ShellWord(value) + "\n";
    script += "exec " + ShellWord(options_.bin_dir + "/troupe-node");
    for (const std::string& word : NodeArguments(*spec, options_.client->address(), id))
      script += " " + ShellWord(word);
    return script + " --lease-s " + NumberText(ToSeconds(kLease)) + "\n";
  }

  const SupplierOptions options_;
  ExecProvider provider_;
};

}  // namespace

std::string Supplier::Left() {
  const Result<std::vector<ProviderNode>> listed = nodes().List();
  if (!listed.ok()) return "they cannot be listed: " + listed.error().message;
  std::string left;
  for (const ProviderNode& node : *listed)
    left += (left.empty() ? "" : ", ") + node.id + " (" + node.detail + ")";
  return left;
}

std::unique_ptr<Supplier> MakeSupplier(const SupplierOptions& options) {
  if (options.config->provider == "exec") return std::make_unique<ExecSupplier>(options);
  return std::make_unique<ProcessSupplier>(options);
}

std::string NumberText(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

std::string ShellWord(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace troupe::daemons
