// The cluster file: which nodes the autoscaler may hold, and what runs on them.
//
//   name: demo
//   training: {command: [python, train.py], min_workers: 2, max_workers: 4}
//   autoscaler: {idle_timeout: 30s, cooldown: 10s}
//   pools:
//     - {name: spot, market: spot, zone: a, resources: {CPU: 4}, max_workers: 4}
//     - {name: base, market: on_demand, min_workers: 1, max_workers: 2, price_per_hour: 1.00}
//   schedule:                     # optional: a scripted spot market, for demonstrations and drills
//     - {at: 5s, add: 2, pool: spot}
//     - {at: 9s, notice: spot-1, deadline: 2s}
//     - {at: 12s, after: running, kill: spot-2}   # counts from when the training first runs
//
// Reading is strict (runtime/config.h): every problem with line and column, unknown keys with a
// suggestion, and the rules that span several keys.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/ec2_spec.h"
#include "autoscaler/gce_spec.h"
#include "autoscaler/kubernetes_spec.h"
#include "autoscaler/plan.h"
#include "autoscaler/spot_schedule.h"
#include "runtime/config.h"
#include "runtime/result.h"
#include "scheduler/resources.h"

namespace troupe {

inline constexpr int kClusterPoolsMax = 64;
inline constexpr int kClusterWorkersMax = 10'000;
inline constexpr int kClusterEventsMax = 10'000;

struct TrainingSpec {
  std::vector<std::string> command;  // Empty: the cluster waits for drivers.
  std::string entrypoint;            // "module:function", instead of a command.
  std::string working_dir;           // From the file's folder on. Empty: where it was started.
  std::map<std::string, std::string> env;
  ResourceSet resources;                    // Of one worker; default CPU 1.
  Duration elastic_timeout = seconds(600);  // How long fewer than min_workers are waited with.
};

struct PoolSpec {
  PoolLimits limits;
  ResourceSet resources;            // Of one node.
  std::vector<std::string> sbatch;  // Further options, with provider: slurm.
  // With provider: ec2, and but for the last two and max_price also gce.
  std::vector<std::string> instance_types;  // The first is liked best.
  std::vector<std::string> zones;           // Without any: `zone`, if that is given.
  double max_price = 0;                     // Of a spot instance, dollars per hour; 0: no limit.
  std::string image;                        // Instead of that of all pools.
  std::string region;                       // Empty: that of all pools.
  std::map<std::string, std::string> labels;
  PodTemplate pod;  // With provider: kubernetes.
};

// A program of the user's that supplies nodes (autoscaler/exec_protocol.h).
struct ExecSpec {
  std::vector<std::string> command;        // Run in the file's folder.
  Duration timeout = seconds(30);          // Of a request.
  Duration interval = seconds(5);          // Between two listings.
  Duration price_interval = seconds(300);  // Between two questions for prices; 0: none.
};

// Hosts that are there already (autoscaler/ssh_provider.h): told here, in a file, or by a program.
struct SshSpec {
  std::vector<std::string> hosts;      // Lines of autoscaler/host_list.h.
  std::string hosts_file;              // From the file's folder on.
  std::vector<std::string> discovery;  // A program, run in the file's folder.
  Duration discovery_interval = seconds(1);
  int slots = 1;                     // Of a host without a number.
  std::vector<std::string> options;  // Of ssh.
  Duration timeout = seconds(20);    // Of one session.
  Duration interval = seconds(5);    // Between two looks at a host.
  Duration cooldown = seconds(30);   // Of a host that refuses.
  Duration cooldown_max = seconds(600);
};

// Jobs of a batch system (autoscaler/slurm_machines.h), one for each node.
struct SlurmSpec {
  std::vector<std::string> options;  // Of sbatch, for all pools.
  Duration timeout = seconds(30);    // Of one command.
  Duration interval = seconds(5);    // Between two looks at the queue.
  Duration notice = seconds(120);    // So long before its time limit a node is drained.
};

// Instances of Amazon's EC2 (autoscaler/ec2/ec2_machines.h), one for each node.
// Where other hosts find the head.
struct HeadSpec {
  std::string listen;     // HOST:PORT; empty: nothing beyond this host is listened to.
  std::string advertise;  // HOST:PORT by which nodes find it; empty: told by the way to them.
};

// What happens on a machine before it is a node.
struct NodeSpec {
  std::vector<std::string> setup;  // Commands of a shell, in this order.
  std::string program;             // troupe-node there; empty: looked for.
};

struct ClusterConfig {
  std::string name;
  HeadSpec head;
  NodeSpec nodes;
  std::string provider;  // "process": nodes are processes of this machine; "exec"; "ssh"; ...
  ExecSpec exec;
  SshSpec ssh;
  SlurmSpec slurm;
  Ec2Spec ec2;
  GceSpec gce;
  KubernetesSpec kubernetes;
  Duration tick = seconds(1);  // How often the policy decides at least.
  int metrics_port = 0;        // Of the head, on the loopback interface; 0: none.
  TrainingSpec training;
  FleetLimits limits;  // Its pools are those of `pools`, in the same order.
  std::vector<PoolSpec> pools;
  std::vector<SpotEvent> schedule;

  [[nodiscard]] const PoolSpec* FindPool(std::string_view pool) const;
};

// `file_name` stands in messages for the file.
[[nodiscard]] Result<ClusterConfig> ParseClusterConfig(std::string_view text,
                                                       std::string file_name);
[[nodiscard]] Result<ClusterConfig> ReadClusterConfig(const std::string& path);
[[nodiscard]] Result<ClusterConfig> ReadClusterConfig(const ConfigDocument& document);

}  // namespace troupe
