#include "daemons/autoscaler/supplier.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "autoscaler/boot_script.h"
#include "autoscaler/ec2/ec2_machines.h"
#include "autoscaler/exec_machines.h"
#include "autoscaler/gce/gce_machines.h"
#include "autoscaler/joined_machines.h"
#include "autoscaler/kubernetes/kube_machines.h"
#include "autoscaler/machine_provider.h"
#include "autoscaler/process_provider.h"
#include "autoscaler/slurm_machines.h"
#include "autoscaler/ssh_census.h"
#include "autoscaler/ssh_provider.h"
#include "runtime/host_address.h"

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;

constexpr Duration kProcessesGrace = seconds(3);
constexpr Duration kExecGrace = seconds(20);
// Of a job that Slurm takes back: it has KillWait, by default 30 s, before it is killed.
constexpr Duration kJobEnds = seconds(25);

// What is left of a pod's grace when its node has been emptied, to end in.
constexpr Duration kPodEnds = seconds(5);

// How long a pod that is ended may empty its node. Zero: it ends at once.
Duration PodDrains(const PodTemplate& pod) {
  return std::max<Duration>(Duration::zero(),
                            pod.grace - std::min<Duration>(kPodEnds, pod.grace / 3));
}

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

// Where nodes on `host` find the head; empty: anywhere.
Result<std::string> AdvertisedTo(const SupplierOptions& options, const std::string& host) {
  const HeadSpec& head = options.config->head;
  if (head.listen.empty()) return options.client->address();
  if (!head.advertise.empty()) return "tcp://" + head.advertise;
  Result<std::string> address = EndpointTowards(head.listen, host);
  // A host that only SSH knows by this name.
  if (!address.ok() && !host.empty()) address = EndpointTowards(head.listen, "");
  if (!address.ok()) return address.error().WithContext("name it with head.advertise");
  return address;
}

// How a machine becomes the node: it makes a directory of its own, and ends by itself if this
// cluster is killed as a whole.
Result<std::string> BootOf(const SupplierOptions& options, const PoolSpec& pool,
                           const std::string& id, const Result<std::string>& head) {
  if (!head.ok()) return head.error();
  const ClusterConfig& config = *options.config;
  BootPlan plan;
  plan.env = config.training.env;
  plan.setup = config.nodes.setup;
  plan.program = config.nodes.program;
  plan.here = options.bin_dir;
  plan.arguments = NodeArguments(pool, *head, id);
  plan.arguments.insert(plan.arguments.end(), {"--lease-s", NumberText(ToSeconds(kLease))});
  if (config.provider == "slurm")
    plan.arguments.insert(plan.arguments.end(), {"--term-notice", NumberText(ToSeconds(kJobEnds))});
  if (config.provider == "kubernetes" && PodDrains(pool.pod) > Duration::zero())
    plan.arguments.insert(plan.arguments.end(),
                          {"--term-notice", NumberText(ToSeconds(PodDrains(pool.pod)))});
  if (config.provider == "gce")
    plan.arguments.insert(plan.arguments.end(),
                          {"--term-notice", NumberText(ToSeconds(gce::kGceDrains))});
  // Each has a cloud's notices to itself, and nobody else hears of them.
  if (config.provider == "ec2") plan.env.emplace("TROUPE_NOTICES", "aws");
  if (config.provider == "gce") plan.env.emplace("TROUPE_NOTICES", "gcp");
  if (!config.head.listen.empty()) {
    Result<JoinOffer> offer = options.client->OfferJoin(id, config.limits.launch_timeout);
    if (!offer.ok()) return offer.error();
    plan.join_token = std::move(offer->token);
  }
  return BootScript(plan);
}

class ProcessSupplier final : public Supplier {
 public:
  explicit ProcessSupplier(const SupplierOptions& options)
      : options_(options),
        dirs_(options.client == nullptr ? "" : options.client->run_dir()),
        provider_(options.clock, ProviderOptions()) {}

  NodeProvider& nodes() override { return provider_; }
  NoticeSource& notices() override { return provider_; }
  Status Drain(const std::string& id, const std::string& reason, Duration left) override {
    return dirs_.Notice(id, reason, left);
  }
  void Gone(const std::string& id) override { dirs_.Remove(id); }
  [[nodiscard]] Time next_wake() const override { return provider_.next_wake(); }
  [[nodiscard]] Duration grace() const override { return kProcessesGrace; }
  FleetCensus& census() override { return census_; }
  [[nodiscard]] Duration interval() const override { return Duration::zero(); }

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
    node.argv = NodeArguments(*spec, EndpointHere(options_.config->head, *options_.client), id);
    node.argv.insert(node.argv.begin(), options_.bin_dir + "/troupe-node");
    node.argv.insert(node.argv.end(), {"--run-dir", *dir, "--notice-file", *dir + "/notice",
                                       "--log-file", *dir + "/log"});
    if (!options_.client->key_file().empty())
      node.argv.insert(node.argv.end(), {"--key-file", options_.client->key_file()});
    node.env = options_.config->training.env;  // Workers inherit it from their node.
    node.output_path = *dir + "/out";
    return node;
  }

  const SupplierOptions options_;
  NodeDirs dirs_;
  EmptyCensus census_;
  ProcessProvider provider_;
};

// Whoever makes machines, and nodes of them.
class MachineSupplier final : public Supplier {
 public:
  // `limit`: of one request. `counted`: a source of the same machines that has whole lists only;
  // null: `source` has.
  MachineSupplier(const SupplierOptions& options, std::unique_ptr<MachineSource> source,
                  Duration interval, Duration limit, MachineSource* counted = nullptr)
      : options_(options),
        source_(std::move(source)),
        interval_(interval),
        limit_(limit),
        census_(counted == nullptr ? source_.get() : counted, options.config->name),
        provider_(options.clock, source_.get(), ProviderOptions(interval)) {}

  NodeProvider& nodes() override { return provider_; }
  NoticeSource& notices() override { return provider_; }
  Status Drain(const std::string& id, const std::string& reason, Duration left) override {
    return options_.client->DrainNode(id, std::max<Duration>(left, milliseconds(1)));
  }
  [[nodiscard]] Time next_wake() const override { return provider_.next_wake(); }
  [[nodiscard]] Duration grace() const override { return limit_ + kExecGrace; }
  FleetCensus& census() override { return census_; }
  [[nodiscard]] Duration interval() const override { return interval_; }

 private:
  MachineProviderOptions ProviderOptions(Duration interval) {
    MachineProviderOptions options;
    options.interval = interval;
    options.cluster = options_.config->name;
    options.life = options_.life;
    options.boot = [this](const std::string& id, const std::string& pool) -> Result<std::string> {
      const PoolSpec* spec = options_.config->FindPool(pool);
      if (spec == nullptr) return Error{ErrorCode::kNotFound, "no pool " + pool};
      return BootOf(options_, *spec, id, AdvertisedTo(options_, ""));
    };
    return options;
  }

  const SupplierOptions options_;
  const std::unique_ptr<MachineSource> source_;
  const Duration interval_;
  const Duration limit_;
  MachineCensus census_;
  MachineProvider provider_;
};

std::unique_ptr<Supplier> MakeExecSupplier(const SupplierOptions& options) {
  const ExecSpec& exec = options.config->exec;
  ExecCommand command;
  command.argv = exec.command;
  command.folder = options.folder;
  command.limit = exec.timeout;
  return std::make_unique<MachineSupplier>(
      options, std::make_unique<ExecMachines>(std::move(command), nullptr, exec.price_interval),
      exec.interval, exec.timeout);
}

std::unique_ptr<Supplier> MakeSlurmSupplier(const SupplierOptions& options) {
  const SlurmSpec& slurm = options.config->slurm;
  SlurmOptions slurm_options;
  slurm_options.options = slurm.options;
  for (const PoolSpec& pool : options.config->pools)
    slurm_options.of_offer[pool.limits.name] = pool.sbatch;
  slurm_options.folder = options.folder;
  slurm_options.limit = slurm.timeout;
  slurm_options.notice = slurm.notice;
  return std::make_unique<MachineSupplier>(
      options, std::make_unique<SlurmMachines>(std::move(slurm_options)), slurm.interval,
      slurm.timeout);
}

// Of the pools in that region.
ec2::Ec2Options Ec2OptionsOf(const SupplierOptions& options, const Ec2Region& region) {
  const Ec2Spec& spec = options.config->ec2;
  ec2::Ec2Options ec2_options;
  ec2_options.aws = {spec.profile, region.name, spec.endpoint};
  ec2_options.image = region.image;
  ec2_options.key_name = region.key_name;
  ec2_options.security_groups = region.security_groups;
  ec2_options.subnets = region.subnets;
  ec2_options.instance_profile = spec.instance_profile;
  ec2_options.launch_template = region.launch_template;
  ec2_options.strategy = spec.strategy;
  ec2_options.tags = spec.tags;
  ec2_options.cluster = options.config->name;
  ec2_options.limit = spec.timeout;
  ec2_options.price_interval = spec.price_interval;
  for (const PoolSpec& pool : options.config->pools) {
    if ((pool.region.empty() ? spec.region : pool.region) != region.name) continue;
    ec2_options.offers[pool.limits.name] = {
        pool.limits.market == Market::kSpot, pool.instance_types, pool.zones,
        pool.max_price > 0 ? NumberText(pool.max_price) : "", pool.image};
  }
  return ec2_options;
}

std::unique_ptr<Supplier> MakeEc2Supplier(const SupplierOptions& options) {
  const Ec2Spec& spec = options.config->ec2;
  std::vector<Ec2Region> regions = {{spec.region, spec.image, spec.key_name, spec.security_groups,
                                     spec.subnets, spec.launch_template}};
  regions.insert(regions.end(), spec.regions.begin(), spec.regions.end());
  for (const PoolSpec& pool : options.config->pools) {
    const bool named = std::ranges::count(regions, pool.region, &Ec2Region::name) > 0;
    if (!pool.region.empty() && !named) regions.push_back({pool.region, "", "", {}, {}, ""});
  }
  std::vector<JoinedMachines::Part> parts;
  for (const Ec2Region& region : regions) {
    ec2::Ec2Options of_region = Ec2OptionsOf(options, region);
    std::set<std::string> offers;
    for (const auto& [name, offer] : of_region.offers) offers.insert(name);
    // Those of ec2.regions may hold machines of an earlier life, whose pools are gone.
    if (offers.empty() && region.name == spec.region) continue;
    parts.push_back({"EC2 in " + (region.name.empty() ? "its region" : region.name),
                     std::move(offers),
                     std::make_unique<ec2::Ec2Machines>(std::move(of_region),
                                                        ec2::RealEc2Tools(options.clock))});
  }
  if (parts.size() == 1)
    return std::make_unique<MachineSupplier>(options, std::move(parts.front().source),
                                             spec.interval, spec.timeout);
  auto all = std::make_unique<JoinedMachines>(std::move(parts));
  MachineSource* const whole = &all->whole();
  return std::make_unique<MachineSupplier>(options, std::move(all), spec.interval, spec.timeout,
                                           whole);
}

std::unique_ptr<Supplier> MakeGceSupplier(const SupplierOptions& options) {
  const GceSpec& spec = options.config->gce;
  gce::GceOptions gce_options;
  gce_options.image = spec.image;
  gce_options.network = spec.network;
  gce_options.subnetwork = spec.subnetwork;
  gce_options.external_ip = spec.external_ip;
  gce_options.service_account = spec.service_account;
  gce_options.instance_template = spec.instance_template;
  gce_options.disk_type = spec.disk_type;
  gce_options.disk_gb = spec.disk_gb;
  gce_options.target_shape = spec.target_shape;
  gce_options.labels = spec.labels;
  gce_options.cluster = options.config->name;
  gce_options.limit = spec.timeout;
  for (const PoolSpec& pool : options.config->pools)
    gce_options.offers[pool.limits.name] = {pool.limits.market == Market::kSpot,
                                            pool.instance_types, pool.zones, pool.image,
                                            pool.resources.ToMap().contains("GPU")};
  gce::GceChoice choice{"", spec.project, spec.endpoint};
  if (!spec.credentials.empty())
    choice.credentials = (fs::path(options.folder) / spec.credentials).string();
  return std::make_unique<MachineSupplier>(
      options,
      std::make_unique<gce::GceMachines>(std::move(gce_options), choice,
                                         gce::RealGceTools(options.clock)),
      spec.interval, spec.timeout + gce::kGceOperationLimit);
}

std::unique_ptr<Supplier> MakeKubernetesSupplier(const SupplierOptions& options) {
  const KubernetesSpec& spec = options.config->kubernetes;
  kubernetes::KubeOptions kube;
  if (!spec.kubeconfig.empty())
    kube.choice.kubeconfig = (fs::path(options.folder) / spec.kubeconfig).string();
  kube.choice.context = spec.context;
  kube.choice.kube_namespace = spec.kube_namespace;
  kube.cluster = options.config->name;
  kube.life = options.life;
  kube.limit = spec.timeout;
  kube.schedule_within = spec.schedule_within;
  Duration grace = Duration::zero();
  for (const PoolSpec& pool : options.config->pools) {
    kube.offers[pool.limits.name] = {pool.pod.json, pool.pod.container, pool.pod.grace,
                                     pool.resources.ToMap()};
    grace = std::max(grace, pool.pod.grace);
  }
  return std::make_unique<MachineSupplier>(
      options,
      std::make_unique<kubernetes::KubeMachines>(std::move(kube),
                                                 kubernetes::RealKubeTools(options.clock)),
      spec.interval, spec.timeout + grace);
}

class SshSupplier final : public Supplier {
 public:
  explicit SshSupplier(const SupplierOptions& options)
      : options_(options),
        census_({SshCommand(), Hosts(), options.config->name, {}}),
        provider_(options.clock, ProviderOptions()) {}

  NodeProvider& nodes() override { return provider_; }
  NoticeSource& notices() override { return provider_; }
  bool Step(Time now) override {
    const bool moved = census_.Step(now);
    return provider_.Step(now) || moved;
  }
  Status Drain(const std::string& id, const std::string& reason, Duration left) override {
    return options_.client->DrainNode(id, std::max<Duration>(left, milliseconds(1)));
  }
  [[nodiscard]] Time next_wake() const override { return Time::Never(); }
  [[nodiscard]] Duration grace() const override {
    return options_.config->ssh.timeout + kExecGrace;
  }
  FleetCensus& census() override { return census_; }
  [[nodiscard]] Duration interval() const override { return options_.config->ssh.interval; }

 private:
  [[nodiscard]] ExecCommand SshCommand() const {
    const SshSpec& ssh = options_.config->ssh;
    ExecCommand command;
    // Nobody is there to be asked, and a connection that hangs is as good as none.
    command.argv = {"ssh", "-T",
                    "-o",  "BatchMode=yes",
                    "-o",  "ConnectTimeout=10",
                    "-o",  "ServerAliveInterval=5",
                    "-o",  "ServerAliveCountMax=2"};
    command.argv.insert(command.argv.end(), ssh.options.begin(), ssh.options.end());
    command.folder = options_.folder;
    command.limit = ssh.timeout;
    return command;
  }
  [[nodiscard]] HostSourceOptions Hosts() const {
    const SshSpec& ssh = options_.config->ssh;
    HostSourceOptions hosts;
    hosts.lines = ssh.hosts;
    if (!ssh.hosts_file.empty()) hosts.file = (fs::path(options_.folder) / ssh.hosts_file).string();
    hosts.discovery.argv = ssh.discovery;
    hosts.discovery.folder = options_.folder;
    hosts.discovery.limit = ssh.timeout;
    hosts.default_slots = ssh.slots;
    hosts.interval = ssh.discovery_interval;
    return hosts;
  }
  SshProviderOptions ProviderOptions() {
    const SshSpec& ssh = options_.config->ssh;
    SshProviderOptions options;
    options.ssh = SshCommand();
    options.hosts = Hosts();
    options.interval = ssh.interval;
    options.cooldown = ssh.cooldown;
    options.cooldown_max = ssh.cooldown_max;
    options.drain = options_.config->limits.drain_timeout;
    options.lease = kLease;
    options.fleet = options_.config->name + "-" + options_.life;
    options.boot = [this](const std::string& id, const std::string& pool,
                          const std::string& host) -> Result<std::string> {
      const PoolSpec* spec = options_.config->FindPool(pool);
      if (spec == nullptr) return Error{ErrorCode::kNotFound, "no pool " + pool};
      return BootOf(options_, *spec, id, AdvertisedTo(options_, host.substr(host.rfind('@') + 1)));
    };
    return options;
  }

  const SupplierOptions options_;
  SshCensus census_;
  SshProvider provider_;
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
  if (options.config->provider == "exec") return MakeExecSupplier(options);
  if (options.config->provider == "slurm") return MakeSlurmSupplier(options);
  if (options.config->provider == "ec2") return MakeEc2Supplier(options);
  if (options.config->provider == "gce") return MakeGceSupplier(options);
  if (options.config->provider == "kubernetes") return MakeKubernetesSupplier(options);
  if (options.config->provider == "ssh") return std::make_unique<SshSupplier>(options);
  return std::make_unique<ProcessSupplier>(options);
}

Result<std::string> EndpointTowards(const std::string& listen, const std::string& host) {
  const Result<HostPort> at = ParseHostPort(listen);
  if (!at.ok()) return at.error();
  const bool any = at->host == "0.0.0.0" || at->host == "*";
  const Result<std::string> address = any ? AddressTowards(host) : at->host;
  if (!address.ok()) return address.error();
  return "tcp://" + *address + ":" + std::to_string(at->port);
}

std::string EndpointHere(const HeadSpec& head, const DriverClient& client) {
  if (head.listen.empty()) return client.address();
  Result<std::string> endpoint = EndpointTowards(head.listen, "");
  if (!endpoint.ok()) endpoint = EndpointTowards(head.listen, "127.0.0.1");
  return endpoint.ok() ? *endpoint : client.address();
}

std::string NumberText(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace troupe::daemons
