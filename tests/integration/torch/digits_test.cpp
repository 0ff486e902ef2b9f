// Training of a LibTorch module for real, by workers of a run and, in the C++ example, by a group
// of actors: a process is lost to SIGKILL in the middle, another comes, and all end with one model,
// every sample counted once per data epoch.
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "runtime/process.h"
#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

double Value(const std::string& summary, const std::string& key) {
  const size_t at = summary.find(key + "=");
  return at == std::string::npos ? -1 : std::stod(summary.substr(at + key.size() + 1));
}

std::filesystem::path Here() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

class TorchDigits : public ::testing::TestWithParam<bool> {};

TEST_P(TorchDigits, AKilledWorkerIsReplacedAndNoSampleIsLostOrDoubled) {
  Cluster cluster;
  const std::string finish_file = cluster.client().run_dir() + "/finish";
  Cluster::RunOptions options;
  options.workers = 3;
  options.max_workers = 3;
  options.share_memory = GetParam();
  options.argv = {Here() / "digits-worker"};
  // After 50 data epochs it has converged, to 0.97-0.98; after 20 to anything from 0.945 to 0.985.
  options.payload = "50\n" + finish_file + "\n" TROUPE_EXAMPLE_DATA "/digits.bin";
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(3, seconds(60)));
  // In the middle of training: some data epochs are done, and it does not end before it is told.
  ASSERT_TRUE(cluster.WaitFor("two data epochs", [&] { return cluster.reports() >= 2; }));
  ::kill(cluster.members()[1].pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("2 members", [&] { return cluster.members().size() == 2; }));
  ASSERT_TRUE(cluster.WaitActive(3));
  std::ofstream(finish_file) << "training may end\n";
  ASSERT_TRUE(cluster.WaitDone());
  EXPECT_EQ(cluster.state(), "succeeded") << cluster.reason();
  EXPECT_EQ(cluster.deaths(), 1);
  ASSERT_EQ(cluster.results().size(), 3U);
  const std::string& summary = cluster.results().front();
  for (const std::string& other : cluster.results()) EXPECT_EQ(other, summary);
  EXPECT_GT(Value(summary, "accuracy"), 0.95) << summary;
  EXPECT_GE(Value(summary, "epochs"), 50) << summary;
  EXPECT_NE(summary.find("missing=0 doubled=0"), std::string::npos) << summary;
}

INSTANTIATE_TEST_SUITE_P(Over, TorchDigits, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "memory" : "links"; });

TEST(TorchDigitsExample, AGroupOfActorsTrainsOnWhenOneIsKilled) {
  const std::filesystem::path bin = Here() / ".." / "bin" / "troupe-example-digits";
  if (!std::filesystem::exists(bin)) GTEST_SKIP() << "built without TROUPE_BUILD_EXAMPLES";
  SpawnOptions spawn;
  spawn.argv = {bin};
  spawn.output_path = ::testing::TempDir() + "/digits-" + std::to_string(::getpid());
  Result<ChildProcess> child = Spawn(spawn);
  ASSERT_TRUE(child.ok()) << child.error().message;
  const Result<ExitInfo> ended = child->WaitFor(seconds(100));
  std::ifstream file(spawn.output_path);
  const std::string printed((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  ASSERT_TRUE(ended.ok() && ended->code == 0) << printed;
  EXPECT_NE(printed.find(">>> SIGKILL"), std::string::npos) << printed;
  const size_t at = printed.find("accuracy=");
  ASSERT_NE(at, std::string::npos) << printed;
  const std::string line = printed.substr(at, printed.find('\n', at) - at);
  EXPECT_NE(line.find("missing=0 doubled=0"), std::string::npos) << printed;
  EXPECT_GT(Value(line, "accuracy"), 0.9) << printed;
  // All three say the same.
  EXPECT_NE(printed.find(line + "\n" + line + "\n" + line + "\n"), std::string::npos) << printed;
  std::filesystem::remove(spawn.output_path);
}

}  // namespace
}  // namespace troupe::testing
