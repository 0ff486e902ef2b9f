// Actors and tasks of plugins on a real embedded cluster, and what is said of plugins that cannot
// be loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <troupe/dynamic.h>
#include "runtime/process.h"
#include "tests/integration/actors/shared_cluster.h"
#include "tests/integration/actors/till.h"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kPluginDir = TROUPE_TEST_PLUGIN_DIR;
const std::string kPlugin = kPluginDir + "/till.so";

// An actor of this program that starts one of a plugin.
class Customer {
 public:
  std::string ProgramOfTheTill(const std::string& plugin) const {
    const auto till = Cluster::Current().Spawn<Till>({.plugin = plugin}, 1);
    if (!till.ok()) throw ActorError(till.error());
    return till->Call(&Till::Program).GetValue();
  }
};

}  // namespace
}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Customer, (), ProgramOfTheTill);

namespace troupe::testing {
namespace {

class PluginTest : public SharedCluster<PluginTest> {
 protected:
  // Why an actor of this plugin cannot be had.
  static Error ErrorOfSpawn(const std::string& plugin) {
    const Time start = SteadyClock().Now();
    const auto actor = SpawnDynamic(runtime(), {.plugin = plugin}, "Till", 1);
    EXPECT_LT(SteadyClock().Now() - start, kSoon) << "it is known when the process has started";
    if (actor.ok()) return Error{ErrorCode::kOk, "it was started"};
    return actor.error();
  }
};

TEST_F(PluginTest, ADriverThatDoesNotKnowTheTypeStartsAndCallsIt) {
  const auto foreman =
      Started(SpawnDynamic(runtime(), {.plugin = kPlugin}, "troupe::testing::Foreman"));
  EXPECT_EQ(In(foreman.CallNamed<std::string>("ProgramOfATill")), "troupe-worker")
      << "what it spawns comes from its plugin";
  EXPECT_EQ(In(foreman.CallNamed<int64_t>("TripleElsewhere", 14)), 42);
  const auto by_hand = Started(SpawnDynamic(runtime(), {.plugin = kPlugin}, "by.hand"));
  EXPECT_EQ(In(by_hand.CallNamed<std::string>("Hello")), "by hand");
  EXPECT_TRUE(by_hand.Kill("done with", kSoon).ok());
  EXPECT_EQ(by_hand.CallNamed<std::string>("Hello").Get(kSoon).error().code, ErrorCode::kPeerGone);
}

TEST_F(PluginTest, ADriverThatIncludesTheClassCallsItThroughTypedHandles) {
  const auto till = Started(runtime().Spawn<Till>({.plugin = kPlugin}, 10));
  EXPECT_EQ(In(till.Call(&Till::Sell, 5)), 15);
  EXPECT_EQ(In(till.Call(&Till::Program)), "troupe-worker");
  const auto refused = runtime().Spawn<Till>({.plugin = kPlugin}, -1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUserError);
  EXPECT_THAT(refused.error().message, HasSubstr("sold is negative"));
}

TEST_F(PluginTest, ItKeepsItsStateOverARestart) {
  const auto till = Started(runtime().Spawn<Till>({.max_restarts = 1, .plugin = kPlugin}, 10));
  EXPECT_EQ(In(till.Call(&Till::Sell, 5)), 15);
  const auto pid = static_cast<pid_t>(In(till.Call(&Till::Pid)));
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_EQ(In(till.CallWith({kSoon, true}, &Till::Sell, 1)), 16);
  EXPECT_NE(In(till.Call(&Till::Pid)), pid);
}

TEST_F(PluginTest, AnActorOfAnotherProgramStartsOneOfAPlugin) {
  const auto customer = Started(runtime().Spawn<Customer>({}));
  EXPECT_EQ(In(customer.Call(&Customer::ProgramOfTheTill, kPlugin)), "troupe-worker");
}

TEST_F(PluginTest, TasksRunInProcessesOfThePlugin) {
  TaskOptions options;
  options.plugin = kPlugin;
  EXPECT_EQ(In(runtime().RunWith<&Triple>(options, 5)), 15);
  EXPECT_EQ(In(RunDynamic<std::string>(runtime(), options, "troupe::testing::WhichProgram")),
            "troupe-worker");
  // The same task without the plugin is this program's.
  EXPECT_EQ(In(runtime().Run<&Triple>(6)), 18);
  const auto unknown = RunDynamic<int>(runtime(), options, "Nonsense").Get(kSoon);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  options.plugin = kPluginDir + "/nowhere.so";
  const auto lost = RunDynamic<int>(runtime(), options, "Nonsense").Get(kSoon);
  EXPECT_EQ(lost.error().code, ErrorCode::kNotFound) << lost.error().ToString();
  EXPECT_THAT(lost.error().message, HasSubstr("nowhere.so"));
}

TEST_F(PluginTest, ATypeThatItDoesNotDescribeIsSaidWithThoseThatItDoes) {
  const auto actor = SpawnDynamic(runtime(), {.plugin = kPlugin}, "Nonsense");
  ASSERT_FALSE(actor.ok());
  EXPECT_EQ(actor.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(actor.error().message, AllOf(HasSubstr("Nonsense"), HasSubstr("by.hand")));
}

TEST_F(PluginTest, AMissingFileIsSaidWithItsNode) {
  const Error error = ErrorOfSpawn(kPluginDir + "/nowhere.so");
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_THAT(error.message, AllOf(HasSubstr("node local"), HasSubstr("/nowhere.so"),
                                   HasSubstr("No such file"), HasSubstr("every node")));
}

TEST_F(PluginTest, WhatIsNoSharedObjectIsNoPlugin) {
  const std::string text = kPluginDir + "/text.so";
  std::ofstream(text) << "no ELF";
  EXPECT_EQ(ErrorOfSpawn(text).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ErrorOfSpawn(text).message, HasSubstr("not a shared object"));
  EXPECT_THAT(ErrorOfSpawn(kPluginDir).message, HasSubstr("not a shared object"));
}

TEST_F(PluginTest, ASharedObjectWithoutTheEntryIsNoPlugin) {
  const Error without = ErrorOfSpawn(kPluginDir + "/without_entry.so");
  EXPECT_EQ(without.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(without.message, AllOf(HasSubstr("does not export"), HasSubstr("TROUPE_PLUGIN()")));
  const Error other = ErrorOfSpawn(kPluginDir + "/of_something_else.so");
  EXPECT_EQ(other.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.message, HasSubstr("was not written by TROUPE_PLUGIN"));
}

TEST_F(PluginTest, APluginOfAnotherVersionIsRefusedBeforeItRuns) {
  const Error abi = ErrorOfSpawn(kPluginDir + "/of_other_abi.so");
  EXPECT_EQ(abi.code, ErrorCode::kMismatch);
  EXPECT_THAT(abi.message, AllOf(HasSubstr("ABI version 2"), HasSubstr("this is version 1")));
  const Error release = ErrorOfSpawn(kPluginDir + "/of_other_release.so");
  EXPECT_EQ(release.code, ErrorCode::kMismatch);
  EXPECT_THAT(release.message, AllOf(HasSubstr("Troupe 0.0.9"), HasSubstr("0123456789ab"),
                                     HasSubstr("build it again")));
}

TEST_F(PluginTest, ASymbolThatNobodyDefinesIsNamed) {
  const Error error = ErrorOfSpawn(kPluginDir + "/with_missing_symbol.so");
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("nobody_defines_this"));
}

TEST_F(PluginTest, OptionsThatContradictAreRefusedAtOnce) {
  const Error relative = ErrorOfSpawn("till.so");
  EXPECT_EQ(relative.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(relative.message, HasSubstr("absolute path"));
  const auto both = SpawnDynamic(runtime(), {.plugin = kPlugin, .program = {"/bin/true"}}, "Till");
  EXPECT_EQ(both.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(both.error().message, HasSubstr("not both"));
}

struct Checked {
  int code = -1;
  std::string said;
};
Checked Check(const std::string& plugin) {
  const std::string output = kPluginDir + "/check.out";
  fs::remove(output);
  SpawnOptions options;
  options.argv = {TROUPE_TEST_BIN_DIR "/troupe-worker", "--plugin", plugin, "--check"};
  options.output_path = output;
  Result<ChildProcess> child = Spawn(options);
  if (!child.ok()) return {-1, child.error().message};
  const Result<ExitInfo> ended = child->WaitFor(kSoon);
  std::stringstream said;
  said << std::ifstream(output).rdbuf();
  return {ended.ok() ? ended->code : -1, said.str()};
}

TEST(PluginCheck, SaysWhatAPluginDescribes) {
  const Checked good = Check(kPlugin);
  EXPECT_EQ(good.code, 0) << good.said;
  EXPECT_THAT(good.said,
              AllOf(HasSubstr("actors by.hand, troupe::testing::Foreman, troupe::testing::Till"),
                    HasSubstr("tasks troupe::testing::Triple, troupe::testing::WhichProgram")));
  const Checked bad = Check(kPluginDir + "/nowhere.so");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.said, HasSubstr("No such file"));
}

// The daemons of a release that has no program for plugins.
TEST(PluginHost, ANodeWithoutItSaysSo) {
  const std::string bin = kPluginDir + "/bin";
  fs::remove_all(bin);
  fs::create_directory(bin);
  for (const char* daemon : {"troupe-head", "troupe-node", "troupe-local"})
    fs::create_hard_link(fs::path(TROUPE_TEST_BIN_DIR) / daemon, fs::path(bin) / daemon);
  InitOptions options;
  options.bin_dir = bin;
  const Result<Cluster> runtime = Init(options);
  ASSERT_TRUE(runtime.ok()) << runtime.error().ToString();
  const auto actor = SpawnDynamic(*runtime, {.plugin = kPlugin}, "by.hand");
  ASSERT_FALSE(actor.ok());
  EXPECT_THAT(actor.error().ToString(),
              AllOf(HasSubstr("troupe-worker"), HasSubstr("install the programs of this release")));
}

}  // namespace
}  // namespace troupe::testing

// The test program is also the worker of its own actors.
int main(int argc, char** argv) {
  troupe::internal::HostIfWorker(troupe::actors::RegisteredTypes());
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
