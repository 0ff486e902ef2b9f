#include "autoscaler/config_help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/integration/runtime/temp_dir.h"

namespace troupe {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class ConfigHelpTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string File(const std::string& text) const {
    const std::string path = dir_.path() + "/c.yaml";
    std::ofstream(path) << text;
    return path;
  }
  static Json Schema() { return Json::parse(ClusterConfigSchema()); }

  tests::TempDir dir_;
};

TEST_F(ConfigHelpTest, EveryKeyIsDescribed) {
  std::set<std::string> patterns;
  for (const ConfigKey& key : ClusterConfigKeys()) {
    EXPECT_NE(HelpOfConfigKey(key.pattern), "") << key.pattern;
    patterns.insert(key.pattern);
  }
  EXPECT_THAT(patterns, Contains("pools[].market"));
  EXPECT_THAT(patterns, Contains("training.env.*"));
  EXPECT_THAT(patterns, Contains("schedule[].kill"));
  EXPECT_EQ(patterns.size(), DescribedConfigKeys()) << "a description without its key";
}

TEST_F(ConfigHelpTest, ACheckCountsWhatIsAskedFor) {
  const std::string path = File("name: demo\npools: [{name: a, market: spot, max_workers: 3}]\n");
  const Result<std::string> said = CheckClusterFile(path);
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_THAT(*said, HasSubstr("no problems. Cluster demo on process: 1 pool, 1 to 1 worker, "));
}

TEST_F(ConfigHelpTest, ACheckHasEveryProblem) {
  const std::string path =
      File("nam: demo\npools: [{name: a, market: spott, max_workers: many}]\n");
  const std::string problems = CheckClusterFile(path).error().message;
  EXPECT_THAT(problems, HasSubstr(path + ":1:1: nam: unknown key; did you mean name?"));
  EXPECT_THAT(problems, HasSubstr(path + ":2:27: pools[0].market: expected one of spot, on_demand, "
                                         "got \"spott\"; did you mean spot?"));
  EXPECT_THAT(problems, HasSubstr(path + ":2:47: pools[0].max_workers: expected an integer, got "
                                         "\"many\""));
}

TEST_F(ConfigHelpTest, AnExplanationHasWhatIsGivenAndWhatIsNot) {
  const Result<std::string> said = ExplainClusterFile(
      File("name: demo\ntraining:\n  command: [python, train.py]\n  env: {MODE: \"a\\nb\"}\n"
           "pools: [{name: a, market: spot, max_workers: 3}]\n"));
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_THAT(*said, testing::ContainsRegex("name: demo +# line 1; "));
  EXPECT_THAT(*said, testing::ContainsRegex("training.command: python, train.py +# line 3; "));
  EXPECT_THAT(*said, testing::ContainsRegex("training.env.MODE: a b +# line 4; "));
  EXPECT_THAT(*said, testing::ContainsRegex("autoscaler.idle_timeout: 1m +# by default; "));
  EXPECT_THAT(*said, testing::ContainsRegex("market: spot .*; one of spot, on_demand\n"));
}

TEST_F(ConfigHelpTest, WhatIsWrongIsNotExplained) {
  EXPECT_THAT(ExplainClusterFile(File("name: demo\n")).error().message,
              HasSubstr("at least one pool is needed"));
  EXPECT_EQ(ExplainClusterFile(dir_.path() + "/none.yaml").error().code, ErrorCode::kNotFound);
}

TEST_F(ConfigHelpTest, TheSchemaSaysWhatTheReaderTakes) {
  const Json schema = Schema();
  EXPECT_EQ(schema["required"], Json({"pools"}));
  EXPECT_EQ(schema["additionalProperties"], false);
  const Json& pool = schema["properties"]["pools"]["items"];
  EXPECT_EQ(pool["required"], Json({"name", "market", "max_workers"}));
  EXPECT_EQ(pool["properties"]["market"]["enum"], Json({"spot", "on_demand"}));
  EXPECT_EQ(pool["properties"]["workers_per_node"]["minimum"], 1);
  EXPECT_EQ(pool["properties"]["workers_per_node"]["maximum"], 1024);
  const Json& training = schema["properties"]["training"]["properties"];
  EXPECT_TRUE(training["env"]["additionalProperties"].is_object());
  EXPECT_EQ(training["elastic_timeout"]["default"], "10m");
}

TEST_F(ConfigHelpTest, TheSchemaTakesWhatOneOfSeveralKindsTakes) {
  const Json schema = Schema();
  const Json& event = schema["properties"]["schedule"]["items"];
  EXPECT_EQ(event["required"], Json({"at"}));  // Not what only a notice needs.
  const Json& pool = schema["properties"]["pools"]["items"];
  const Json& amount = pool["properties"]["resources"]["additionalProperties"];
  EXPECT_THAT(amount["type"], Contains("string"));  // 8GiB
  EXPECT_THAT(amount["type"], Contains("number"));
}

// max_nodes follows from max_workers: a number in the schema would be one of no file.
TEST_F(ConfigHelpTest, WhatFollowsFromOtherKeysHasNoDefault) {
  const Json properties = Schema()["properties"];
  EXPECT_FALSE(properties["autoscaler"]["properties"]["max_nodes"].contains("default"));
  EXPECT_FALSE(properties["training"]["properties"]["max_workers"].contains("default"));
  EXPECT_EQ(properties["training"]["properties"]["min_workers"]["default"], 1);
}

}  // namespace
}  // namespace troupe
