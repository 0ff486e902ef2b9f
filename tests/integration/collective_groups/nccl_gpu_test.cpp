// The real CUDA driver and NCCL, where there are any: one rank, and two processes on one GPU or on
// two. Skipped, with the reason, elsewhere.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "collective_groups/gpu/cuda_driver.h"
#include "collective_groups/gpu/nccl_library.h"
#include "runtime/process.h"
#include "tests/integration/runtime/temp_dir.h"

namespace troupe::groups {
namespace {

constexpr Duration kLimit = seconds(150);
constexpr int kSharingVersion = 23000;

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<std::shared_ptr<CudaDriver>> driver = LoadCudaDriver();
    if (!driver.ok()) GTEST_SKIP() << driver.error().message;
    const Result<std::shared_ptr<Nccl>> nccl = LoadNccl();
    if (!nccl.ok()) GTEST_SKIP() << nccl.error().message;
    devices_ = (*driver)->devices();
    version_ = (*nccl)->features().version;
  }

  // A process per rank; all must say that everything was right, and that NCCL was used.
  void RunRanks(int size, const std::map<std::string, std::string>& env, bool own_devices) {
    const tests::TempDir folder;
    std::vector<ChildProcess> ranks;
    for (int rank = 0; rank < size; ++rank) {
      SpawnOptions options;
      const std::string number = std::to_string(rank);
      options.argv = {TROUPE_NCCL_GPU_RANK,       folder.path(), number, std::to_string(size),
                      own_devices ? number : "0", "nccl"};
      options.env = env;
      options.env["TROUPE_LOG_LEVEL"] = "warning";
      options.output_path = folder.path() + "/output" + number;
      ranks.push_back(Spawn(options).value());
    }
    for (int rank = 0; rank < size; ++rank) {
      ChildProcess& child = ranks[static_cast<size_t>(rank)];
      const Result<ExitInfo> exit = child.WaitFor(kLimit);
      if (!exit.ok()) child.Terminate(seconds(1));
      std::ostringstream output;
      output << std::ifstream(folder.path() + "/output" + std::to_string(rank)).rdbuf();
      ASSERT_TRUE(exit.ok()) << "rank " << rank << " did not end: " << output.str();
      EXPECT_EQ(exit->code, 0) << "rank " << rank << ": " << output.str();
      EXPECT_EQ(output.str().find("go through host memory"), std::string::npos) << output.str();
    }
  }

  int devices_ = 0;
  int version_ = 0;
};

TEST_F(NcclGpuTest, OneRank) { RunRanks(1, {}, false); }

TEST_F(NcclGpuTest, TwoRanksOnTwoGpus) {
  if (devices_ < 2) GTEST_SKIP() << "there is one GPU";
  RunRanks(2, {}, true);
}

TEST_F(NcclGpuTest, TwoRanksOnOneGpu) {
  if (version_ < kSharingVersion) {
    GTEST_SKIP() << "NCCL " << version_ << " does not take two ranks on one GPU; 2.30 does";
  }
  RunRanks(2, {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_MAX_CTAS", "4"}}, false);
}

}  // namespace
}  // namespace troupe::groups
