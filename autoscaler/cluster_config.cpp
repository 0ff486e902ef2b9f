#include "autoscaler/cluster_config.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "autoscaler/host_list.h"
#include "runtime/config.h"
#include "runtime/host_address.h"

namespace troupe {
namespace {

constexpr Range<int64_t> kWorkers{0, kClusterWorkersMax};
constexpr Range<Duration> kSpan{milliseconds(1), seconds(7 * 86400)};
constexpr Range<double> kPrice{0, 1e6};
// Of EC2's 50 some are ours.
constexpr size_t kTagsMax = 40;
constexpr size_t kGceLabelsMax = 50;
constexpr size_t kNumberMax = 8;  // Of a node, behind the name of its pool.
constexpr size_t kTagNameMax = 128;
constexpr size_t kTagValueMax = 256;

int Workers(const ConfigMap& map, std::string_view key, std::optional<int64_t> fallback) {
  return static_cast<int>(map.Int(key, fallback, kWorkers));
}

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

std::string Name(const ConfigMap& map, std::string_view key,
                 const std::optional<std::string>& fallback) {
  std::string name = map.String(key, fallback);
  if (map.Has(key) && !IsName(name)) map.Fail(key, "a name has 1 to 64 letters, digits, - or _");
  return name;
}

std::map<std::string, std::string> Words(const ConfigMap& map) {
  std::map<std::string, std::string> words;
  for (const std::string& key : map.Keys()) words[key] = map.String(key);
  return words;
}

ResourceSet Resources(const ConfigMap& parent, std::string_view key) {
  const ConfigMap map = parent.Map(key);
  std::map<std::string, double> amounts;
  for (const std::string& name : map.Keys()) {
    const bool memory = name == "memory";
    amounts[name] = memory ? static_cast<double>(map.Bytes(name)) : map.Double(name);
  }
  if (!parent.Has(key)) amounts["CPU"] = 1;
  Result<ResourceSet> resources = ResourceSet::FromMap(amounts);
  if (resources.ok()) return *resources;
  parent.Fail(key, resources.error().message);
  return {};
}

void ReadSsh(const ConfigMap& root, ClusterConfig& config) {
  const ConfigMap map = root.Map("ssh");
  SshSpec& ssh = config.ssh;
  ssh.hosts = map.Strings("hosts");
  ssh.hosts_file = map.String("hosts_file", "");
  const ConfigMap discovery = map.Map("discovery");
  ssh.discovery = discovery.Strings("command");
  ssh.discovery_interval = discovery.Span("interval", ssh.discovery_interval, kSpan);
  ssh.slots = static_cast<int>(map.Int("slots", ssh.slots, {1, kHostSlotsMax}));
  ssh.options = map.Strings("options");
  ssh.timeout = map.Span("timeout", ssh.timeout, kSpan);
  ssh.interval = map.Span("interval", ssh.interval, kSpan);
  ssh.cooldown = map.Span("cooldown", ssh.cooldown, kSpan);
  ssh.cooldown_max = map.Span("cooldown_max", std::max(ssh.cooldown_max, ssh.cooldown), kSpan);
  if (ssh.cooldown > ssh.cooldown_max) map.Fail("cooldown", "is over cooldown_max");
  if (config.provider != "ssh") {
    if (root.Has("ssh")) root.Fail("ssh", "is of no use without provider: ssh");
    return;
  }
  const int told = (ssh.hosts.empty() ? 0 : 1) + (ssh.hosts_file.empty() ? 0 : 1) +
                   (ssh.discovery.empty() ? 0 : 1);
  if (told != 1)
    root.Fail("ssh",
              "provider: ssh needs one of ssh.hosts, ssh.hosts_file and "
              "ssh.discovery.command");
  std::string lines;
  for (const std::string& line : ssh.hosts) lines += line + "\n";
  if (const auto hosts = ParseHosts(lines, ssh.slots, "host"); !hosts.ok())
    map.Fail("hosts", hosts.error().message);
}

void ReadSlurm(const ConfigMap& root, ClusterConfig& config) {
  const ConfigMap map = root.Map("slurm");
  SlurmSpec& slurm = config.slurm;
  slurm.options = map.Strings("options");
  slurm.timeout = map.Span("timeout", slurm.timeout, kSpan);
  slurm.interval = map.Span("interval", slurm.interval, kSpan);
  slurm.notice = map.Span("notice", slurm.notice, {Duration::zero(), kSpan.max});
  if (config.provider != "slurm" && root.Has("slurm"))
    root.Fail("slurm", "is of no use without provider: slurm");
}

// Another region, and what is there.
Ec2Region ReadEc2Region(const ConfigMap& map, const Ec2Spec& ec2) {
  Ec2Region region;
  region.name = map.String("name");
  region.image = map.String("image", "");
  region.key_name = map.String("key_name", "");
  region.security_groups = map.Strings("security_groups");
  region.subnets = map.Strings("subnets");
  region.launch_template = map.String("launch_template", "");
  if (region.name == ec2.region && map.Has("name"))
    map.Fail("name", "is ec2.region; what is there is said in ec2");
  for (const Ec2Region& other : ec2.regions) {
    if (other.name == region.name) map.Fail("name", "another one is called " + region.name);
  }
  return region;
}

void ReadEc2(const ConfigMap& root, ClusterConfig& config) {
  const ConfigMap map = root.Map("ec2");
  Ec2Spec& ec2 = config.ec2;
  ec2.region = map.String("region", "");
  ec2.profile = map.String("profile", "");
  ec2.endpoint = map.String("endpoint", "");
  ec2.image = map.String("image", "");
  ec2.key_name = map.String("key_name", "");
  ec2.security_groups = map.Strings("security_groups");
  ec2.subnets = map.Strings("subnets");
  ec2.instance_profile = map.String("instance_profile", "");
  ec2.launch_template = map.String("launch_template", "");
  for (const ConfigMap& region : map.List("regions"))
    ec2.regions.push_back(ReadEc2Region(region, ec2));
  ec2.strategy = map.Choice("strategy",
                            {"price-capacity-optimized", "capacity-optimized",
                             "capacity-optimized-prioritized", "diversified", "lowest-price"},
                            "price-capacity-optimized");
  ec2.tags = Words(map.Map("tags"));
  ec2.timeout = map.Span("timeout", ec2.timeout, kSpan);
  ec2.interval = map.Span("interval", ec2.interval, kSpan);
  ec2.price_interval =
      map.Span("price_interval", ec2.price_interval, {Duration::zero(), seconds(86400)});
  if (config.provider != "ec2" && root.Has("ec2"))
    root.Fail("ec2", "is of no use without provider: ec2");
  if (!ec2.endpoint.empty() && !ec2.endpoint.starts_with("http://") &&
      !ec2.endpoint.starts_with("https://"))
    map.Fail("endpoint", "expected https://HOST or http://HOST:PORT, got \"" + ec2.endpoint + "\"");
  for (const auto& [name, value] : ec2.tags) {
    if (name.starts_with("troupe-") || name.starts_with("aws:"))
      map.Map("tags").Fail(name, "tags that begin with troupe- or aws: are not yours");
    if (name.size() > kTagNameMax || value.size() > kTagValueMax)
      map.Map("tags").Fail(name, "a tag has up to 128 bytes, its value up to 256");
  }
  if (ec2.tags.size() > kTagsMax) map.Fail("tags", "at most 40 tags can be given");
}

bool IsGceLabel(const std::string& text, bool is_name) {
  const bool plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  const bool begins = !is_name || (!text.empty() && text.front() >= 'a' && text.front() <= 'z');
  return plain && begins && text.size() <= kGceLabelMax;
}

void ReadGce(const ConfigMap& root, ClusterConfig& config) {
  const ConfigMap map = root.Map("gce");
  GceSpec& gce = config.gce;
  gce.project = map.String("project", "");
  gce.credentials = map.String("credentials", "");
  gce.endpoint = map.String("endpoint", "");
  gce.image = map.String("image", "");
  gce.network = map.String("network", "");
  gce.subnetwork = map.String("subnetwork", "");
  gce.external_ip = map.Bool("external_ip", gce.external_ip);
  gce.service_account = map.String("service_account", "");
  gce.instance_template = map.String("instance_template", "");
  gce.disk_type = map.String("disk_type", "");
  gce.disk_gb = map.Int("disk_gb", 0, {0, 65536});
  gce.target_shape = map.Choice("target_shape", {"ANY", "ANY_SINGLE_ZONE", "BALANCED"}, "ANY");
  gce.labels = Words(map.Map("labels"));
  gce.timeout = map.Span("timeout", gce.timeout, kSpan);
  gce.interval = map.Span("interval", gce.interval, kSpan);
  if (config.provider != "gce") {
    if (root.Has("gce")) root.Fail("gce", "is of no use without provider: gce");
    return;
  }
  if (!gce.endpoint.empty() && !gce.endpoint.starts_with("http://") &&
      !gce.endpoint.starts_with("https://"))
    map.Fail("endpoint", "expected https://HOST or http://HOST:PORT, got \"" + gce.endpoint + "\"");
  for (const auto& [name, value] : gce.labels) {
    if (name.starts_with("troupe-"))
      map.Map("labels").Fail(name, "labels that begin with troupe- are not yours");
    if (!IsGceLabel(name, true) || !IsGceLabel(value, false))
      map.Map("labels").Fail(name,
                             "labels have up to 63 lower-case letters, digits, - and _, and "
                             "their names begin with a letter");
  }
  if (gce.labels.size() > kGceLabelsMax) map.Fail("labels", "at most 50 labels can be given");
  if (GceLabelOf(config.name).size() > kGceLabelMax)
    root.Fail("name",
              "is too long for a label of Compute Engine: 63 characters, and each but "
              "lower-case letters, digits and - counts three");
}

// What a pool of Compute Engine has to have, and where.
void CheckPoolOfGce(const ConfigMap& map, const GceSpec& gce, const PoolSpec& pool) {
  if (pool.zones.empty()) map.Fail("zones", "which ones? Such as [us-central1-a, us-central1-b]");
  for (const std::string& zone : pool.zones) {
    if (GceRegionOf(zone) != GceRegionOf(pool.zones.front()))
      map.Fail("zones", zone + " and " + pool.zones.front() +
                            " are of two regions: make a pool for each region");
  }
  if (pool.instance_types.empty() && gce.instance_template.empty())
    map.Fail("instance_types", "which ones? Such as [g2-standard-4, n1-standard-8]");
  if (pool.image.empty() && gce.image.empty() && gce.instance_template.empty())
    map.Fail("image",
             "give gce.image, or an image of this pool, such as "
             "projects/debian-cloud/global/images/family/debian-12");
  if (GceLabelOf(pool.limits.name).size() > kGceLabelMax - kNumberMax)
    map.Fail("name",
             "is too long for a label of Compute Engine: 55 characters, and each but "
             "lower-case letters, digits and - counts three");
}

void ReadProvider(const ConfigMap& root, ClusterConfig& config) {
  config.provider = root.Choice(
      "provider", {"process", "exec", "ssh", "slurm", "ec2", "gce", "kubernetes"}, "process");
  const ConfigMap map = root.Map("exec");
  ExecSpec& exec = config.exec;
  exec.command = map.Strings("command");
  exec.timeout = map.Span("timeout", exec.timeout, kSpan);
  exec.interval = map.Span("interval", exec.interval, kSpan);
  exec.price_interval =
      map.Span("price_interval", exec.price_interval, {Duration::zero(), seconds(86400)});
  const bool chosen = config.provider == "exec";
  if (chosen && exec.command.empty()) root.Fail("exec", "provider: exec needs exec.command");
  if (!chosen && root.Has("exec")) root.Fail("exec", "is of no use without provider: exec");
}

// Empty, and told, if it is none.
std::string Place(const ConfigMap& map, std::string_view key) {
  std::string text = map.String(key, "");
  if (text.empty()) return text;
  const Result<HostPort> place = ParseHostPort(text);
  if (place.ok()) return text;
  map.Fail(key, place.error().message);
  return "";
}

void ReadHead(const ConfigMap& map, ClusterConfig& config) {
  config.head.listen = Place(map, "listen");
  // As `troupe start --head` does: its nodes are of other hosts.
  if (!map.Has("listen") &&
      (config.provider == "ssh" || config.provider == "slurm" || config.provider == "ec2" ||
       config.provider == "gce" || config.provider == "kubernetes"))
    config.head.listen = "0.0.0.0:6380";
  config.head.advertise = Place(map, "advertise");
  if (config.head.listen.empty() && map.Has("advertise") && !map.Has("listen"))
    map.Fail("advertise", "is of no use without head.listen");
}

void ReadNodes(const ConfigMap& root, ClusterConfig& config) {
  const ConfigMap map = root.Map("nodes");
  config.nodes.setup = map.Strings("setup");
  config.nodes.program = map.String("program", "");
  if (config.provider == "process" && root.Has("nodes"))
    root.Fail("nodes", "is of no use with provider: process, whose nodes are of this host");
}

void ReadTraining(const ConfigMap& map, ClusterConfig& config) {
  TrainingSpec& training = config.training;
  training.command = map.Strings("command");
  training.entrypoint = map.String("entrypoint", "");
  training.working_dir = map.String("working_dir", "");
  training.env = Words(map.Map("env"));
  training.resources = Resources(map, "resources");
  training.elastic_timeout = map.Span("elastic_timeout", training.elastic_timeout, kSpan);
  if (!training.command.empty() && !training.entrypoint.empty()) {
    map.Fail("entrypoint", "give either command or entrypoint, not both");
  }
  if (map.Has("command") && training.command.empty()) map.Fail("command", "must not be empty");
  const size_t colon = training.entrypoint.find(':');
  if (map.Has("entrypoint") &&
      (colon == std::string::npos || colon == 0 || colon + 1 == training.entrypoint.size())) {
    map.Fail("entrypoint", "expected module:function, got \"" + training.entrypoint + "\"");
  }
  FleetLimits& limits = config.limits;
  limits.min_workers = Workers(map, "min_workers", 1);
  limits.max_workers = Workers(map, "max_workers", std::max(1, limits.min_workers));
  if (limits.min_workers > limits.max_workers) {
    map.Fail("min_workers", "is over max_workers, which is " + std::to_string(limits.max_workers));
    limits.min_workers = limits.max_workers;
  }
}

void ReadAutoscaler(const ConfigMap& map, ClusterConfig& config) {
  FleetLimits& limits = config.limits;
  config.tick = map.Span("tick", config.tick, {milliseconds(10), seconds(3600)});
  config.metrics_port = static_cast<int>(map.Int("metrics_port", 0, {0, 65535}));
  // A quarter more than max_workers, so that replacements can start before their predecessors end.
  const int surge = std::max(1, (limits.max_workers + 3) / 4);
  limits.max_nodes = Workers(map, "max_nodes", limits.max_workers + surge);
  limits.max_concurrent_launches =
      static_cast<int>(map.Int("max_concurrent_launches", 10, {1, 1000}));
  limits.on_demand_base = Workers(map, "on_demand_base_capacity", 0);
  limits.on_demand_percent_above_base =
      static_cast<int>(map.Int("on_demand_percentage_above_base", 0, {0, 100}));
  limits.budget_per_hour = map.Double("budget_per_hour", 0, kPrice);
  limits.min_marginal_efficiency = map.Double("min_marginal_efficiency", 0, {0, 1});
  limits.max_fraction_per_zone = map.Map("hedge").Double("max_fraction_per_zone", 1, {0.01, 1});
  limits.rebuild_time =
      map.Span("rebuild_time", limits.rebuild_time, {Duration::zero(), seconds(3600)});
  limits.fallback_after = map.Span("fallback_after", limits.fallback_after);
  limits.idle_timeout = map.Span("idle_timeout", limits.idle_timeout);
  // A job may wait for hours until it is its turn.
  if (config.provider == "slurm") limits.launch_timeout = seconds(86400);
  limits.launch_timeout = map.Span("launch_timeout", limits.launch_timeout, kSpan);
  limits.drain_timeout = map.Span("drain_timeout", limits.drain_timeout, kSpan);
  limits.cooldown = map.Span("cooldown", limits.cooldown, kSpan);
  limits.cooldown_max =
      map.Span("cooldown_max", std::max(limits.cooldown_max, limits.cooldown), kSpan);
  if (limits.cooldown > limits.cooldown_max) map.Fail("cooldown", "is over cooldown_max");
}

void ReadPoolOfCloud(const ConfigMap& map, const std::string& provider, PoolSpec& pool) {
  pool.instance_types = map.Strings("instance_types");
  pool.zones = map.Strings("zones");
  pool.max_price = map.Double("max_price", 0, kPrice);
  pool.image = map.String("image", "");
  pool.region = map.String("region", "");
  for (const char* key : {"instance_types", "zones", "max_price", "image", "region"}) {
    const std::string_view name = key;
    const bool of_pods = provider == "kubernetes" && name == "image";
    const bool of_gce = provider == "gce" && name != "max_price" && name != "region";
    if (map.Has(key) && provider != "ec2" && !of_pods && !of_gce)
      map.Fail(key, "is of no use without provider: ec2");
  }
  if (map.Has("max_price") && pool.limits.market == Market::kOnDemand)
    map.Fail("max_price", "is of no use with market: on_demand, whose price is fixed");
  if (map.Has("zones") && map.Has("zone")) map.Fail("zones", "give either zone or zones, not both");
  if (pool.zones.empty() && (provider == "ec2" || provider == "gce") && !pool.limits.zone.empty())
    pool.zones = {pool.limits.zone};
}

// What a pool of EC2 has to have, and where.
void CheckPoolOfEc2(const ConfigMap& map, const Ec2Spec& ec2, const PoolSpec& pool) {
  std::string image = ec2.image;
  std::string launch_template = ec2.launch_template;
  if (!pool.region.empty() && pool.region != ec2.region) {
    const auto found = std::ranges::find(ec2.regions, pool.region, &Ec2Region::name);
    const Ec2Region there = found == ec2.regions.end() ? Ec2Region{} : *found;
    image = there.image;
    launch_template = there.launch_template;
  }
  const std::string region = pool.region.empty() ? ec2.region : pool.region;
  for (const std::string& zone : pool.zones) {
    if (!region.empty() && !zone.starts_with(region))
      map.Fail(map.Has("zones") ? "zones" : "zone", zone + " is no zone of " + region);
  }
  if (!launch_template.empty()) return;
  if (pool.instance_types.empty())
    map.Fail("instance_types", "which ones? Such as [g5.xlarge, g4dn.xlarge]");
  if (!pool.image.empty() || !image.empty()) return;
  map.Fail("image", pool.region.empty() || pool.region == ec2.region
                        ? "give ec2.image, or an image of this pool, such as ami-0abc"
                        : "images are those of a region: give one of this pool, or in " +
                              std::string("ec2.regions one of ") + pool.region);
}

PoolSpec ReadPool(const ConfigMap& map, const ClusterConfig& config, const std::string& folder) {
  const std::string& provider = config.provider;
  PoolSpec pool;
  PoolLimits& limits = pool.limits;
  limits.name = Name(map, "name", std::nullopt);
  const std::string market = map.Choice("market", {"spot", "on_demand"});
  limits.market = market == "spot" ? Market::kSpot : Market::kOnDemand;
  limits.zone = map.String("zone", "");
  limits.workers_per_node = static_cast<int>(map.Int("workers_per_node", 1, {1, 1024}));
  limits.min_workers = Workers(map, "min_workers", 0);
  limits.max_workers = Workers(map, "max_workers", std::nullopt);
  limits.price_per_hour = map.Double("price_per_hour", 0, kPrice);
  pool.resources = Resources(map, "resources");
  pool.sbatch = map.Strings("sbatch");
  if (map.Has("sbatch") && provider != "slurm")
    map.Fail("sbatch", "is of no use without provider: slurm");
  ReadPoolOfCloud(map, provider, pool);
  pool.pod = ReadPodOfPool(map, folder, config.kubernetes);
  if (map.Has("template") && provider != "kubernetes")
    map.Fail("template", "is of no use without provider: kubernetes");
  pool.labels = Words(map.Map("labels"));
  if (!limits.zone.empty()) pool.labels.emplace("zone", limits.zone);
  pool.labels.emplace("market", MarketName(limits.market));
  pool.labels.emplace("pool", limits.name);
  if (map.Has("min_workers") && limits.min_workers > limits.max_workers) {
    map.Fail("min_workers", "is over max_workers, which is " + std::to_string(limits.max_workers));
  }
  return pool;
}

void CheckKubernetes(const ConfigMap& root, const ClusterConfig& config) {
  const KubernetesSpec& spec = config.kubernetes;
  // By then its join token is not good any more.
  if (config.provider == "kubernetes" && spec.schedule_within > config.limits.launch_timeout)
    root.Map("kubernetes").Fail("schedule_within", "is over autoscaler.launch_timeout");
}

void ReadPools(const ConfigMap& root, ClusterConfig& config, const std::string& folder) {
  const std::vector<ConfigMap> maps = root.List("pools");
  if (maps.empty()) root.Fail("pools", "at least one pool is needed");
  if (maps.size() > kClusterPoolsMax) root.Fail("pools", "at most 64 pools can be given");
  std::set<std::string> names;
  int64_t room = 0;
  int64_t minima = 0;
  bool on_demand = false;
  for (const ConfigMap& map : maps) {
    PoolSpec pool = ReadPool(map, config, folder);
    if (!names.insert(pool.limits.name).second) {
      map.Fail("name", "another pool is called " + pool.limits.name);
    }
    if (!pool.resources.Covers(config.training.resources)) {
      map.Fail("resources", "a worker needs " + config.training.resources.ToString() +
                                ", a node of this pool has " + pool.resources.ToString());
    }
    if (config.provider == "ec2") CheckPoolOfEc2(map, config.ec2, pool);
    if (config.provider == "gce") CheckPoolOfGce(map, config.gce, pool);
    if (config.provider == "kubernetes" && pool.pod.empty() && !map.Has("template") &&
        !root.Map("kubernetes").Has("template"))
      map.Fail("template", "give kubernetes.image or kubernetes.template, or one of this pool");
    room += pool.limits.max_workers;
    minima += pool.limits.min_workers;
    on_demand = on_demand || pool.limits.market == Market::kOnDemand;
    config.limits.pools.push_back(pool.limits);
    config.pools.push_back(std::move(pool));
  }
  const FleetLimits& limits = config.limits;
  if (!maps.empty() && room < limits.min_workers) {
    root.Fail("pools", "together they hold at most " + std::to_string(room) +
                           " workers, training.min_workers is " +
                           std::to_string(limits.min_workers));
  }
  if (minima > limits.max_workers) {
    root.Fail("pools", "their min_workers are " + std::to_string(minima) +
                           " in all, training.max_workers is " +
                           std::to_string(limits.max_workers));
  }
  if (!on_demand && (limits.on_demand_base > 0 || limits.on_demand_percent_above_base > 0)) {
    root.Fail("autoscaler", "asks for on-demand capacity, but no pool has market: on_demand");
  }
}

// The pool of "spot-2", or empty.
std::string PoolOfNode(const std::string& node, const ClusterConfig& config) {
  const size_t dash = node.rfind('-');
  if (dash == std::string::npos || dash + 1 == node.size()) return "";
  const std::string number = node.substr(dash + 1);
  const bool digits =
      std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string pool = node.substr(0, dash);
  return digits && number[0] != '0' && config.FindPool(pool) != nullptr ? pool : "";
}

SpotEvent ReadEvent(const ConfigMap& map, const ClusterConfig& config) {
  SpotEvent event;
  event.at = map.Span("at");
  event.after_running = map.Choice("after", {"start", "running"}, "start") == "running";
  const bool adds = map.Has("add");
  const bool notices = map.Has("notice");
  const bool kills = map.Has("kill");
  if ((adds ? 1 : 0) + (notices ? 1 : 0) + (kills ? 1 : 0) != 1) {
    map.Fail("", "an event has exactly one of add, notice and kill");
    (void)map.Keys();
    return event;
  }
  if (adds) {
    event.kind = SpotEvent::Kind::kAdd;
    event.count = static_cast<int>(map.Int("add", std::nullopt, {1, kClusterWorkersMax}));
    event.pool = map.String("pool");
    if (map.Has("pool") && config.FindPool(event.pool) == nullptr) {
      map.Fail("pool", "no pool is called \"" + event.pool + "\"");
    }
    return event;
  }
  const std::string_view key = notices ? "notice" : "kill";
  event.kind = notices ? SpotEvent::Kind::kNotice : SpotEvent::Kind::kKill;
  if (notices) event.lead = map.Span("deadline");
  event.node = map.String(key);
  event.pool = PoolOfNode(event.node, config);
  if (event.pool.empty()) {
    map.Fail(key,
             "expected the name of a pool, a dash and a number from 1, got \"" + event.node + "\"");
  }
  return event;
}

}  // namespace

Result<ClusterConfig> ReadClusterConfig(const ConfigDocument& document) {
  const ConfigMap root = document.Root();
  ClusterConfig config;
  config.name = Name(root, "name", "troupe");
  ReadProvider(root, config);
  ReadSsh(root, config);
  ReadSlurm(root, config);
  ReadEc2(root, config);
  ReadGce(root, config);
  const std::string folder = std::filesystem::path(document.name()).parent_path().string();
  config.kubernetes = ReadKubernetes(root, folder, config.provider == "kubernetes");
  ReadHead(root.Map("head"), config);
  ReadNodes(root, config);
  ReadTraining(root.Map("training"), config);
  ReadAutoscaler(root.Map("autoscaler"), config);
  CheckKubernetes(root, config);
  ReadPools(root, config, folder);
  const std::vector<ConfigMap> events = root.List("schedule");
  if (!events.empty() && config.provider != "process")
    root.Fail("schedule", "only nodes of provider: process can follow a schedule");
  if (events.size() > kClusterEventsMax) root.Fail("schedule", "has more than 10000 events");
  std::set<std::string> taken;
  for (const ConfigMap& map : events) {
    const SpotEvent& event = config.schedule.emplace_back(ReadEvent(map, config));
    if (!event.node.empty() && !taken.insert(event.node).second) {
      map.Fail("", "an earlier event takes " + event.node + " already");
    }
  }
  if (const Status status = document.Finish(); !status.ok()) return status.error();
  return config;
}

const PoolSpec* ClusterConfig::FindPool(std::string_view pool) const {
  for (const PoolSpec& spec : pools) {
    if (spec.limits.name == pool) return &spec;
  }
  return nullptr;
}

Result<ClusterConfig> ParseClusterConfig(std::string_view text, std::string file_name) {
  const Result<ConfigDocument> document = ConfigDocument::Parse(text, std::move(file_name));
  return document.ok() ? ReadClusterConfig(*document) : document.error();
}

Result<ClusterConfig> ReadClusterConfig(const std::string& path) {
  const Result<ConfigDocument> document = ConfigDocument::ParseFile(path);
  return document.ok() ? ReadClusterConfig(*document) : document.error();
}

}  // namespace troupe
