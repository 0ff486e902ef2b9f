#include "autoscaler/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kFull = R"(name: demo
training:
  command: [python, train.py]
  env: {MODE: fast}
  resources: {CPU: 2, memory: 1GiB}
  min_workers: 2
  max_workers: 4
  elastic_timeout: 5m
autoscaler:
  tick: 200ms
  max_nodes: 6
  on_demand_base_capacity: 1
  on_demand_percentage_above_base: 50
  budget_per_hour: 12.5
  fallback_after: 90s
  idle_timeout: 30s
  cooldown: 10s
  cooldown_max: 1m
pools:
  - name: spot
    market: spot
    zone: a
    resources: {CPU: 4, memory: 8GiB}
    labels: {disk: ssd}
    max_workers: 4
    workers_per_node: 2
    price_per_hour: 0.3
  - {name: base, market: on_demand, min_workers: 1, max_workers: 2,
     resources: {CPU: 2, memory: 2GiB}}
schedule:
  - {at: 5s, add: 2, pool: spot}
  - {at: 9s, notice: spot-1, deadline: 2s}
  - {at: 12s, kill: spot-2}
)";

std::string ProblemsOf(std::string_view text) {
  const Result<ClusterConfig> config = ParseClusterConfig(text, "c.yaml");
  return config.ok() ? "" : config.error().message;
}

// kFull with one piece replaced.
std::string With(std::string_view from, std::string_view to) {
  std::string text(kFull);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ClusterConfigTest, ReadsEveryKey) {
  const Result<ClusterConfig> config = ParseClusterConfig(kFull, "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->name, "demo");
  EXPECT_EQ(config->provider, "process");
  EXPECT_EQ(config->tick, milliseconds(200));
  EXPECT_THAT(config->training.command, ElementsAre("python", "train.py"));
  EXPECT_EQ(config->training.env.at("MODE"), "fast");
  EXPECT_EQ(config->training.resources.ToString(), "CPU 2, memory 1GiB");
  EXPECT_EQ(config->training.elastic_timeout, seconds(300));
  EXPECT_EQ(config->limits.min_workers, 2);
  EXPECT_EQ(config->limits.max_workers, 4);
  EXPECT_EQ(config->limits.max_nodes, 6);
  EXPECT_EQ(config->limits.on_demand_base, 1);
  EXPECT_EQ(config->limits.on_demand_percent_above_base, 50);
  EXPECT_DOUBLE_EQ(config->limits.budget_per_hour, 12.5);
  EXPECT_EQ(config->limits.fallback_after, seconds(90));
  EXPECT_EQ(config->limits.idle_timeout, seconds(30));
  EXPECT_EQ(config->limits.cooldown, seconds(10));
  EXPECT_EQ(config->limits.cooldown_max, seconds(60));
  ASSERT_EQ(config->limits.pools.size(), 2u);
  const PoolSpec* spot = config->FindPool("spot");
  ASSERT_NE(spot, nullptr);
  EXPECT_EQ(spot->limits.market, Market::kSpot);
  EXPECT_EQ(spot->limits.workers_per_node, 2);
  EXPECT_DOUBLE_EQ(spot->limits.price_per_hour, 0.3);
  EXPECT_EQ(spot->labels.at("zone"), "a");
  EXPECT_EQ(spot->labels.at("disk"), "ssd");
  EXPECT_EQ(spot->labels.at("market"), "spot");
  ASSERT_EQ(config->schedule.size(), 3u);
  EXPECT_EQ(config->schedule[0].count, 2);
  EXPECT_EQ(config->schedule[1].kind, SpotEvent::Kind::kNotice);
  EXPECT_EQ(config->schedule[1].lead, seconds(2));
  EXPECT_EQ(config->schedule[1].pool, "spot");
  EXPECT_EQ(config->schedule[2].node, "spot-2");
}

TEST(ClusterConfigTest, DefaultsNeedOnlyAPool) {
  const Result<ClusterConfig> config =
      ParseClusterConfig("pools: [{name: a, market: spot, max_workers: 3}]", "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->limits.min_workers, 1);
  EXPECT_EQ(config->limits.max_workers, 1);
  EXPECT_EQ(config->limits.max_nodes, 2);
  EXPECT_EQ(config->pools[0].resources.ToString(), "CPU 1");
}

TEST(ClusterConfigTest, UnknownKeySuggestsTheNearest) {
  EXPECT_EQ(ProblemsOf(With("idle_timeout: 30s", "idle_timout: 30s")),
            "c.yaml:16:3: autoscaler.idle_timout: unknown key; did you mean idle_timeout?");
  EXPECT_EQ(ProblemsOf(With("market: on_demand", "market: ondemand")),
            "c.yaml:28:26: pools[1].market: expected one of spot, on_demand, got \"ondemand\"; did "
            "you mean on_demand?");
}

struct Broken {
  const char* from;
  const char* to;
  const char* expected;
};

class ClusterConfigBrokenTest : public ::testing::TestWithParam<Broken> {};

TEST_P(ClusterConfigBrokenTest, IsNamedWithItsPlace) {
  const Broken& broken = GetParam();
  const std::string problems = ProblemsOf(With(broken.from, broken.to));
  EXPECT_THAT(problems, HasSubstr("c.yaml:"));
  EXPECT_THAT(problems, HasSubstr(broken.expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, ClusterConfigBrokenTest,
    ::testing::Values(
        Broken{"min_workers: 2", "min_workers: 5",
               ":6:16: training.min_workers: is over max_workers, which is 4"},
        Broken{"max_workers: 4\n  elastic", "max_workers: -1\n  elastic",
               ":7:16: training.max_workers: must be at least 0"},
        Broken{"  command: [python, train.py]", "  command: []\n",
               "training.command: must not be empty"},
        Broken{"  command: [python, train.py]", "  entrypoint: train",
               ":3:15: training.entrypoint: expected module:function, got \"train\""},
        Broken{"  command: [python, train.py]", "  command: x\n  entrypoint: a:b",
               "give either command or entrypoint"},
        Broken{"CPU: 2, memory: 1GiB", "CPU: 2, memory: -5", "expected a size such as"},
        Broken{"CPU: 2, memory: 1GiB", "CPU: -2", "\"CPU\": the amount is negative"},
        Broken{"CPU: 4, memory: 8GiB", "CPU: 1, memory: 8GiB",
               "pools[0].resources: a worker needs CPU 2, memory 1GiB, a node of this pool has "
               "CPU 1, memory 8GiB"},
        Broken{"name: base", "name: spot", "pools[1].name: another pool is called spot"},
        Broken{"name: base", "name: my pool", "a name has 1 to 64 letters"},
        Broken{"min_workers: 1, max_workers: 2", "min_workers: 3, max_workers: 2",
               "pools[1].min_workers: is over max_workers"},
        Broken{"market: on_demand", "market: spot", "no pool has market: on_demand"},
        Broken{"cooldown: 10s", "cooldown: 10", "expected a duration"},
        Broken{"cooldown: 10s", "cooldown: 10m", "autoscaler.cooldown: is over cooldown_max"},
        Broken{"_base: 50", "_base: 500", "must be at most 100"},
        Broken{"add: 2, pool: spot", "add: 2, pool: sopt",
               "schedule[0].pool: no pool is called \"sopt\""},
        Broken{"add: 2, pool: spot", "pool: spot", "exactly one of add, notice and kill"},
        Broken{"notice: spot-1", "notice: spot", "schedule[1].notice: expected the name of a pool"},
        Broken{"notice: spot-1, deadline: 2s", "notice: spot-1",
               "schedule[1].deadline: missing required key"},
        Broken{"kill: spot-2", "kill: spot-1", "schedule[2]: an earlier event takes spot-1"}));

TEST(ClusterConfigTest, PoolsMustHoldTheMinimum) {
  EXPECT_THAT(ProblemsOf("training: {min_workers: 5, max_workers: 5}\n"
                         "pools: [{name: a, market: spot, max_workers: 3}]"),
              HasSubstr("c.yaml:2:8: pools: together they hold at most 3 workers"));
  EXPECT_THAT(ProblemsOf("pools: [{name: a, market: spot, max_workers: 3, min_workers: 2}]"),
              HasSubstr("their min_workers are 2 in all, training.max_workers is 1"));
  EXPECT_THAT(ProblemsOf("name: x"), HasSubstr("at least one pool is needed"));
}

TEST(ClusterConfigTest, AllProblemsAreReportedAtOnce) {
  const std::string problems =
      ProblemsOf("nmae: x\nautoscaler: {tick: 1}\npools: [{name: a, market: spot}]");
  EXPECT_THAT(problems, HasSubstr("c.yaml:1:1: nmae: unknown key; did you mean name?"));
  EXPECT_THAT(problems, HasSubstr("c.yaml:2:20: autoscaler.tick: expected a duration"));
  EXPECT_THAT(problems, HasSubstr("c.yaml:3:9: pools[0].max_workers: missing required key"));
}

TEST(ClusterConfigTest, AProgramCanSupplyNodes) {
  const Result<ClusterConfig> config = ParseClusterConfig(
      "provider: exec\nexec: {command: [./mine, --zone, a], timeout: 1m, interval: 2s}\n"
      "pools: [{name: spot, market: spot, max_workers: 1}]\n",
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->provider, "exec");
  EXPECT_THAT(config->exec.command, ElementsAre("./mine", "--zone", "a"));
  EXPECT_EQ(config->exec.timeout, seconds(60));
  EXPECT_EQ(config->exec.interval, seconds(2));
}

TEST(ClusterConfigTest, AProgramThatSuppliesNodesIsNeededWhereItIsChosen) {
  const std::string pools = "pools: [{name: spot, market: spot, max_workers: 1}]\n";
  EXPECT_THAT(ProblemsOf("provider: exec\n" + pools), HasSubstr("needs exec.command"));
  EXPECT_THAT(ProblemsOf("exec: {command: ./mine}\n" + pools),
              HasSubstr("c.yaml:1:7: exec: is of no use without provider: exec"));
  EXPECT_THAT(ProblemsOf("provider: exec\nexec: {command: ./mine}\n" + pools +
                         "schedule: [{at: 1s, kill: spot-1}]\n"),
              HasSubstr("schedule: only nodes of provider: process can follow a schedule"));
}

TEST(ClusterConfigTest, Ec2SuppliesInstances) {
  const Result<ClusterConfig> config = ParseClusterConfig(
      "provider: ec2\nec2: {image: ami-1, subnets: subnet-1, tags: {a: b}, timeout: 5s}\n"
      "pools:\n"
      "  - {name: s, market: spot, max_workers: 1, instance_types: [a, b], zone: z, max_price: 1}\n"
      "  - {name: o, market: on_demand, max_workers: 1, instance_types: c, zones: [x, y],"
      " image: ami-2}\n",
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->head.listen, "0.0.0.0:6380");
  EXPECT_EQ(config->ec2.strategy, "price-capacity-optimized");
  EXPECT_THAT(config->ec2.subnets, ElementsAre("subnet-1"));
  EXPECT_EQ(config->pools[0].max_price, 1);
  EXPECT_THAT(config->pools[0].zones, ElementsAre("z"));
  EXPECT_THAT(config->pools[1].zones, ElementsAre("x", "y"));
  EXPECT_EQ(config->pools[1].image, "ami-2");
}

TEST(ClusterConfigTest, WhatEc2NeedsIsAskedFor) {
  const std::string pool = "pools: [{name: s, market: spot, max_workers: 1";
  EXPECT_THAT(ProblemsOf("provider: ec2\n" + pool + "}]\n"),
              AllOf(HasSubstr("pools[0].instance_types: which ones?"),
                    HasSubstr("pools[0].image: give ec2.image")));
  EXPECT_EQ(ProblemsOf("provider: ec2\nec2: {launch_template: mine}\n" + pool + "}]\n"), "");
  EXPECT_THAT(ProblemsOf("ec2: {image: a}\n" + pool + ", instance_types: [t]}]\n"),
              AllOf(HasSubstr("ec2: is of no use without provider: ec2"),
                    HasSubstr("instance_types: is of no use without provider: ec2")));
  EXPECT_THAT(ProblemsOf("provider: ec2\nec2: {image: a, endpoint: here, strategy: cheap,"
                         " tags: {troupe-life: x}}\n"
                         "pools: [{name: o, market: on_demand, max_workers: 1, instance_types: t,"
                         " max_price: 1, zone: a, zones: [b]}]\n"),
              AllOf(HasSubstr("expected https://HOST"), HasSubstr("got \"cheap\""),
                    HasSubstr("are not yours"), HasSubstr("whose price is fixed"),
                    HasSubstr("either zone or zones")));
}

TEST(ClusterConfigTest, PoolsMayBeInOtherRegions) {
  const std::string ec2 =
      "provider: ec2\nec2: {region: us-east-1, image: ami-1, regions: [{name: eu-west-1, image: i,"
      " subnets: [s]}]}\n";
  const std::string pool =
      "pools: [{name: s, market: spot, max_workers: 1, instance_types: t, region: ";
  const Result<ClusterConfig> config =
      ParseClusterConfig(ec2 + pool + "eu-west-1, zone: eu-west-1a}]\n", "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->pools[0].region, "eu-west-1");
  EXPECT_THAT(config->ec2.regions.at(0).subnets, ElementsAre("s"));
  EXPECT_EQ(ProblemsOf(ec2 + pool + "us-east-1}]\n"), "");
  EXPECT_EQ(ProblemsOf(ec2 + pool + "us-west-2, image: ami-2}]\n"), "");
  EXPECT_THAT(ProblemsOf(ec2 + pool + "us-west-2}]\n"), HasSubstr("one of us-west-2"));
  EXPECT_THAT(ProblemsOf(ec2 + pool + "eu-west-1, zones: [us-east-1a]}]\n"),
              HasSubstr("us-east-1a is no zone of eu-west-1"));
  EXPECT_THAT(ProblemsOf("provider: ec2\nec2: {region: a, image: i, regions: [{name: a},"
                         " {name: b}, {name: b}]}\n" +
                         pool + "a}]\n"),
              AllOf(HasSubstr("regions[0].name: is ec2.region"),
                    HasSubstr("regions[2].name: another one is called b")));
}

TEST(ClusterConfigTest, ComputeEngineSuppliesInstances) {
  const Result<ClusterConfig> config = ParseClusterConfig(
      "provider: gce\ngce: {image: i, labels: {team: a-b}, timeout: 5s}\n"
      "pools: [{name: s, market: spot, max_workers: 1, instance_types: t, zone: us-east1-b}]\n",
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->head.listen, "0.0.0.0:6380");
  EXPECT_TRUE(config->gce.external_ip);
  EXPECT_EQ(config->gce.target_shape, "ANY");
  EXPECT_THAT(config->pools[0].zones, ElementsAre("us-east1-b"));
}

TEST(ClusterConfigTest, WhatComputeEngineNeedsIsAskedFor) {
  EXPECT_THAT(ProblemsOf("provider: gce\npools: [{name: s, market: spot, max_workers: 1}]\n"),
              AllOf(HasSubstr("pools[0].zones: which ones?"),
                    HasSubstr("pools[0].instance_types: which ones?"),
                    HasSubstr("pools[0].image: give gce.image")));
  EXPECT_THAT(ProblemsOf("name: A_CLUSTER_WITH_A_NAME_TOO_LONG\nprovider: gce\n"
                         "gce: {image: i, endpoint: here, labels: {Team: x, troupe-a: b}}\n"
                         "pools: [{name: A_POOL_WITH_A_NAME_TOO_LONG, market: spot, max_workers: 1,"
                         " instance_types: t, max_price: 1, zones: [us-east1-b, us-west1-a]}]\n"),
              AllOf(HasSubstr("name: is too long for a label"), HasSubstr("expected https://HOST"),
                    HasSubstr("gce.labels.Team: labels have up to 63"), HasSubstr("not yours"),
                    HasSubstr("pools[0].name: is too long for a label"),
                    HasSubstr("are of two regions"), HasSubstr("max_price: is of no use")));
  EXPECT_THAT(ProblemsOf("gce: {image: a}\npools: [{name: s, market: spot, max_workers: 1}]\n"),
              HasSubstr("gce: is of no use without provider: gce"));
}

TEST(ClusterConfigTest, TheHeadMayListenForOtherHosts) {
  const std::string pools = "pools: [{name: spot, market: spot, max_workers: 4}]\n";
  const Result<ClusterConfig> config = ParseClusterConfig(
      "provider: exec\nexec: {command: ./s}\nhead: {listen: '0.0.0.0:6380', advertise: 'h:7000'}\n"
      "nodes: {setup: [echo a, echo b], program: /opt/troupe-node}\n" +
          pools,
      "c.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->head.listen, "0.0.0.0:6380");
  EXPECT_EQ(config->head.advertise, "h:7000");
  EXPECT_THAT(config->nodes.setup, ElementsAre("echo a", "echo b"));
  EXPECT_EQ(config->nodes.program, "/opt/troupe-node");
  EXPECT_THAT(ProblemsOf("head: {listen: 6380}\n" + pools),
              HasSubstr("c.yaml:1:16: head.listen: expected HOST:PORT, got \"6380\""));
  EXPECT_THAT(ProblemsOf("head: {listen: 'h:99999'}\n" + pools), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(ProblemsOf("head: {advertise: 'h:1'}\n" + pools),
              HasSubstr("is of no use without head.listen"));
  EXPECT_THAT(ProblemsOf("nodes: {setup: [a]}\n" + pools), HasSubstr("is of no use with"));
}

}  // namespace
}  // namespace troupe
