#include "autoscaler/config_help.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "autoscaler/cluster_config.h"

namespace troupe {
namespace {

// By pattern. A test finds the key that has no line here, and the line that has no key. Long
// because it is a list of keys.
// NOLINTNEXTLINE(readability-function-size)
const std::map<std::string_view, std::string_view>& Sentences() {
  static const std::map<std::string_view, std::string_view> kSentences = {
      {"name", "what the cluster is called; letters, digits, - and _"},
      {"provider",
       "who supplies nodes; process: processes of this machine; exec: a program of yours; ssh: "
       "hosts that are there already; slurm: jobs; ec2: instances of Amazon EC2; gce: of Google "
       "Compute Engine; kubernetes: pods"},
      {"exec", "the program that supplies nodes (docs/fleets.md)"},
      {"exec.command", "it and its arguments, run in the folder of this file"},
      {"exec.timeout", "how long it may take for one request"},
      {"exec.interval", "how often it is asked for its nodes"},
      {"exec.price_interval",
       "how often it is asked what its offers cost; 0: prices of the file stay"},
      {"ssh", "hosts that are there already, and how they are reached (docs/fleets.md)"},
      {"ssh.hosts", "them, each as HOST, HOST:SLOTS or `HOST slots=N pool=NAME`"},
      {"ssh.hosts_file", "a file with a line for each; it may change"},
      {"ssh.discovery", "a program that prints them, as Horovod's discovery scripts do"},
      {"ssh.discovery.command", "it and its arguments, run in the folder of this file"},
      {"ssh.discovery.interval", "how often it is asked"},
      {"ssh.slots", "how many nodes a host may hold that says no number"},
      {"ssh.options", "of the command ssh, such as [-p, '2222', -i, key]"},
      {"ssh.timeout", "how long one session may take"},
      {"ssh.interval", "how often a host is asked whether its nodes live"},
      {"ssh.cooldown", "a host that refuses is left alone for so long, then twice that"},
      {"ssh.cooldown_max", "the longest that a host is left alone"},
      {"slurm", "how jobs are asked for, one for each node (docs/fleets.md)"},
      {"slurm.options", "of sbatch, for all pools, such as [--account=a, '--time=4:00:00']"},
      {"slurm.timeout", "how long one of Slurm's commands may take"},
      {"slurm.interval", "how often the queue is looked at"},
      {"slurm.notice", "so long before its time limit a node is drained and replaced"},
      {"ec2", "what instances are like, and how EC2 is reached (docs/fleets.md)"},
      {"ec2.region", "such as us-east-1; without it AWS_REGION, the profile's, or this instance's"},
      {"ec2.profile", "of ~/.aws whose credentials are used; without it as Amazon's tools choose"},
      {"ec2.endpoint", "where EC2 answers, if that is another URL; also AWS_ENDPOINT_URL_EC2"},
      {"ec2.image",
       "what instances boot, such as ami-0abc; it has Troupe, or nodes.setup installs it"},
      {"ec2.key_name", "the key pair with which people log in to them"},
      {"ec2.security_groups", "ids or, in a default VPC, names; they may reach the head"},
      {"ec2.subnets", "where they may be; of each pool those in its zones"},
      {"ec2.instance_profile", "the name or ARN of what gives them a role"},
      {"ec2.launch_template",
       "NAME or lt-ID, with :VERSION if need be: what else instances are like; types are then "
       "tried "
       "one by one"},
      {"ec2.regions", "others than ec2.region, for pools with a region, and what is there"},
      {"ec2.regions[].name", "such as eu-west-1"},
      {"ec2.regions[].image", "what instances boot there"},
      {"ec2.regions[].key_name", "the key pair with which people log in to them there"},
      {"ec2.regions[].security_groups", "ids or, in a default VPC, names, there"},
      {"ec2.regions[].subnets", "where they may be there; of each pool those in its zones"},
      {"ec2.regions[].launch_template", "NAME or lt-ID, with :VERSION if need be, there"},
      {"ec2.price_interval",
       "between two looks at the spot prices of the market; 0: those of the file stay"},
      {"ec2.strategy", "by which EC2 chooses among a spot pool's instance types and zones"},
      {"ec2.tags", "further tags of instances and volumes"},
      {"ec2.tags.*", "the value of the tag"},
      {"ec2.timeout", "how long EC2 may take, tried again included"},
      {"ec2.interval", "how often it is asked for instances"},
      {"gce", "what instances are like, and how Compute Engine is reached (docs/fleets.md)"},
      {"gce.project", "whose; without it GOOGLE_CLOUD_PROJECT, or that of the credentials"},
      {"gce.credentials",
       "a file, from the folder of this one on; without it as Google's tools choose"},
      {"gce.endpoint", "where Compute Engine answers, if that is another URL"},
      {"gce.image",
       "what instances boot, such as projects/p/global/images/family/f; it has Troupe, or "
       "nodes.setup installs it"},
      {"gce.network", "a name, or a path; without it default"},
      {"gce.subnetwork", "a name in the region of the pool, or a path"},
      {"gce.external_ip", "whether instances have an address of their own in the internet"},
      {"gce.service_account", "the email of the one that instances act as; without it none"},
      {"gce.instance_template", "a name, or a path: what else instances are like"},
      {"gce.disk_type", "of the boot disk, such as pd-ssd"},
      {"gce.disk_gb", "its size; 0: as the image has it"},
      {"gce.target_shape", "how Google spreads what a pool asks for over its zones"},
      {"gce.labels", "further labels of instances"},
      {"gce.labels.*", "the value of the label"},
      {"gce.timeout", "how long one request may take, tried again included"},
      {"gce.interval", "how often it is asked for instances"},
      {"kubernetes", "what pods are like, and how Kubernetes is reached (docs/fleets.md)"},
      {"kubernetes.namespace",
       "where pods are made; without it that of the context, or of the pod this runs in"},
      {"kubernetes.kubeconfig",
       "a file, from the folder of this one on; without it KUBECONFIG, ~/.kube/config, or the "
       "service account of the pod this runs in"},
      {"kubernetes.context", "of the kubeconfig; without it its current-context"},
      {"kubernetes.image", "of the container that becomes the node, if no template says it"},
      {"kubernetes.template",
       "what pods are like: a Pod or its template, here or in a file beside this one"},
      {"kubernetes.timeout", "how long Kubernetes may take for a request, tried again included"},
      {"kubernetes.interval", "how often what was heard of pods is looked at"},
      {"kubernetes.schedule_within", "a pod that no machine has taken by then is given up"},
      {"head", "the process that knows the cluster; it runs where `troupe up` does"},
      {"head.listen",
       "HOST:PORT where it listens for nodes of other hosts; without it nowhere but on this host, "
       "with provider: ssh, slurm, ec2, gce or kubernetes at 0.0.0.0:6380"},
      {"head.advertise", "HOST:PORT by which nodes find it, if that is another one"},
      {"nodes", "what happens on a machine before it is a node"},
      {"nodes.setup", "commands of a shell, run in order; one that fails ends the node"},
      {"nodes.program",
       "where troupe-node is there; without it as here, on PATH, or as Python's package has it"},
      {"training", "the program that the cluster runs"},
      {"training.command",
       "the program and its arguments; without one the cluster waits for drivers"},
      {"training.entrypoint", "module:function to call on each worker, instead of a command"},
      {"training.working_dir", "where it runs, from the folder of this file on"},
      {"training.env", "environment variables of the program"},
      {"training.env.*", "the value of the variable"},
      {"training.resources", "what one worker takes of a node; without it one CPU"},
      {"training.resources.*", "how much; memory with a unit"},
      {"training.elastic_timeout",
       "how long a training may stand still with fewer than min_workers"},
      {"training.min_workers", "with fewer the training waits"},
      {"training.max_workers", "more are never asked for"},
      {"autoscaler", "how the fleet is held"},
      {"autoscaler.tick", "how often it decides at least; a change has it decide at once"},
      {"autoscaler.metrics_port",
       "where the head serves Prometheus metrics on 127.0.0.1; 0: nowhere"},
      {"autoscaler.max_nodes", "of all pools together, replacements that are starting included"},
      {"autoscaler.max_concurrent_launches", "nodes that may be starting at once"},
      {"autoscaler.on_demand_base_capacity", "so many workers are on demand before any is on spot"},
      {"autoscaler.on_demand_percentage_above_base",
       "the share that is on demand of what is above the base"},
      {"autoscaler.budget_per_hour", "what all nodes together may cost per hour; 0: no limit"},
      {"autoscaler.min_marginal_efficiency",
       "a further worker has to add so much of what the first one does, by measured steps; 0: no "
       "limit"},
      {"autoscaler.hedge", "what one zone may take with it"},
      {"autoscaler.hedge.max_fraction_per_zone",
       "no zone's spot pools hold a larger share of the workers, but for min_workers"},
      {"autoscaler.rebuild_time",
       "how long all members stand still when one joins; joins wait for each other where that "
       "pays"},
      {"autoscaler.fallback_after",
       "on-demand nodes stand in for spot ones missing for so long; 0: at once"},
      {"autoscaler.idle_timeout", "a node without work for so long is given back"},
      {"autoscaler.launch_timeout", "a node that has not joined by then is given up"},
      {"autoscaler.drain_timeout", "a node that is to go may finish what it does for so long"},
      {"autoscaler.cooldown",
       "a pool that could not supply is left alone for so long, then twice that"},
      {"autoscaler.cooldown_max", "the longest that a pool is left alone"},
      {"pools", "kinds of nodes; of those that will do the cheapest is taken first"},
      {"pools[].name", "what its nodes are called: NAME-1, NAME-2"},
      {"pools[].market", "spot nodes can be taken back at any time, on_demand ones stay"},
      {"pools[].zone", "which share one fate; also the label `zone` of its nodes"},
      {"pools[].workers_per_node", "how many workers a node holds"},
      {"pools[].min_workers", "nodes for so many are kept even if idle"},
      {"pools[].max_workers", "nodes for more are never asked for"},
      {"pools[].price_per_hour", "of one node, for comparing pools and for the budget"},
      {"pools[].resources", "what one node has; without it one CPU"},
      {"pools[].resources.*", "how much; memory with a unit"},
      {"pools[].sbatch", "further options of sbatch for its nodes, such as --partition=spot"},
      {"pools[].instance_types", "of EC2, of which any will do; the first is liked best"},
      {"pools[].zones",
       "of the cloud, of which any will do; without it `zone`, or where there is room"},
      {"pools[].max_price", "dollars per hour that EC2 may take for a spot instance; 0: no limit"},
      {"pools[].image", "instead of ec2.image, gce.image, or of the image of kubernetes.template"},
      {"pools[].region", "of EC2, instead of ec2.region"},
      {"pools[].template", "instead of kubernetes.template"},
      {"pools[].labels", "of its nodes, for placement strategies"},
      {"pools[].labels.*", "the value of the label"},
      {"schedule", "a scripted spot market, for demonstrations and drills"},
      {"schedule[].at", "when it happens"},
      {"schedule[].after", "what `at` counts from: the start, or when the training first runs"},
      {"schedule[].add", "so many nodes become available"},
      {"schedule[].pool", "where they do"},
      {"schedule[].notice", "this node is told that it will be taken back"},
      {"schedule[].deadline", "how long after the notice it is"},
      {"schedule[].kill", "this node is taken back without a word"},
  };
  return kSentences;
}

// A file that has the reader ask for every key.
constexpr std::string_view kEveryKey = R"(
ec2: {tags: {NAME: value}, regions: [{name: eu-west-1}]}
gce: {labels: {name: value}}
training: {env: {NAME: value}, resources: {CPU: 1, memory: 1GiB}}
pools:
  - {name: spot, market: spot, max_workers: 1, resources: {CPU: 1, memory: 1GiB},
     labels: {name: value}}
schedule:
  - {at: 0s, add: 1, pool: spot}
  - {at: 0s, notice: spot-1, deadline: 0s}
  - {at: 0s, kill: spot-2}
)";

// A file with which what follows from other keys is another one: that is no default.
constexpr std::string_view kOtherValues = R"(
training: {min_workers: 5}
autoscaler: {cooldown: 2d}
pools: [{name: spot, market: spot, max_workers: 9}]
)";

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('.')); }

// Each key once. One that only some mappings of a list need, such as an event with `add`, is not
// required; one that is read as one of several types has all of them.
std::vector<ConfigKey> KeysOf(std::string_view text) {
  const Result<ConfigDocument> document = ConfigDocument::Parse(text, "");
  if (!document.ok()) return {};
  (void)ReadClusterConfig(*document);
  std::vector<ConfigKey> keys;
  std::map<std::string, std::set<std::string>> mappings;  // Paths, by pattern.
  std::map<std::string, size_t> needed;
  for (const ConfigKey& key : document->keys()) {
    mappings[ParentOf(key.pattern)].insert(ParentOf(key.path));
    needed[key.pattern] += key.required ? 1 : 0;
    const auto same = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& known) {
      return known.pattern == key.pattern;
    });
    if (same == keys.end()) {
      keys.push_back(key);
    } else if (same->type != key.type) {
      same->type += ", or " + key.type;
    }
  }
  for (ConfigKey& key : keys)
    key.required = needed[key.pattern] == mappings[ParentOf(key.pattern)].size();
  return keys;
}

std::string Counted(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string_view HelpOfConfigKey(std::string_view pattern) {
  const auto found = Sentences().find(pattern);
  return found == Sentences().end() ? std::string_view() : found->second;
}

size_t DescribedConfigKeys() { return Sentences().size(); }

std::vector<ConfigKey> ClusterConfigKeys() {
  std::vector<ConfigKey> keys = KeysOf(kEveryKey);
  std::map<std::string, std::string> others;
  for (const ConfigKey& key : KeysOf(kOtherValues)) others[key.pattern] = key.fallback;
  for (ConfigKey& key : keys) {
    const auto other = others.find(key.pattern);
    if (other != others.end() && other->second != key.fallback) key.fallback.clear();
  }
  return keys;
}

Result<std::string> CheckClusterFile(const std::string& path) {
  const Result<ClusterConfig> config = ReadClusterConfig(path);
  if (!config.ok()) return config.error();
  std::ostringstream out;
  const FleetLimits& limits = config->limits;
  out << path << ": no problems. Cluster " << config->name << " on " << config->provider << ": "
      << Counted(config->pools.size(), "pool") << ", " << limits.min_workers << " to "
      << Counted(static_cast<size_t>(limits.max_workers), "worker") << ", at most "
      << Counted(static_cast<size_t>(limits.max_nodes), "node");
  if (!config->schedule.empty())
    out << ", a schedule of " << Counted(config->schedule.size(), "event");
  out << "\n";
  return out.str();
}

Result<std::string> ExplainClusterFile(const std::string& path) {
  const Result<ConfigDocument> document = ConfigDocument::ParseFile(path);
  if (!document.ok()) return document.error();
  const Result<ClusterConfig> config = ReadClusterConfig(*document);
  if (!config.ok()) return config.error();
  std::vector<std::pair<std::string, std::string>> rows;
  size_t width = 0;
  for (const ConfigKey& key : document->keys()) {
    if (key.type == "a mapping" || key.type == "a list of mappings") continue;
    const std::string& value = key.line > 0 ? key.given : key.fallback;
    std::string left = key.path + ": " + (value.empty() ? "(nothing)" : value);
    width = std::max(width, left.size());
    std::string right = key.line > 0 ? "line " + std::to_string(key.line) : "by default";
    const std::string_view help = HelpOfConfigKey(key.pattern);
    if (!help.empty()) right += "; " + std::string(help);
    if (!key.choices.empty()) {
      right += "; one of";
      for (const std::string& choice : key.choices)
        right += (choice == key.choices[0] ? " " : ", ") + choice;
    }
    if (!key.min.empty() && !key.max.empty()) right += "; " + key.min + " to " + key.max;
    rows.emplace_back(std::move(left), std::move(right));
  }
  std::ostringstream out;
  constexpr size_t kLeftMax = 56;
  for (const auto& [left, right] : rows)
    out << std::left << std::setw(static_cast<int>(std::min(width, kLeftMax))) << left << "  # "
        << right << "\n";
  return out.str();
}

}  // namespace troupe
