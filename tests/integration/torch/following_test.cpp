// State that is sent beside the training, for real: a worker joins two that train a state of more
// than 16 MiB, and one of the three is killed while it is on its way.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

struct Case {
  std::string victim;  // Empty: nobody.
  bool share_memory;
};

class TorchFollowing : public ::testing::TestWithParam<Case> {};

TEST_P(TorchFollowing, MembersEndAlikeAndNoSampleIsLostOrDoubled) {
  const std::filesystem::path member =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "follow-member";
  Cluster cluster;
  const std::string go_on_file = cluster.client().run_dir() + "/go-on";
  Cluster::RunOptions options;
  options.workers = 2;
  options.max_workers = 3;
  options.share_memory = GetParam().share_memory;
  options.faults = GetParam().victim;
  options.argv = {member};
  options.payload = go_on_file;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(2, seconds(60)));
  ASSERT_TRUE(cluster.client().Resize(cluster.run(), 3).ok());
  ASSERT_TRUE(cluster.WaitFor("a joiner", [&] { return cluster.reports() == 3; }));
  std::ofstream(go_on_file) << "the founders may go on\n";
  ASSERT_TRUE(cluster.WaitDone());
  EXPECT_EQ(cluster.state(), "succeeded") << cluster.reason();
  EXPECT_EQ(cluster.deaths(), GetParam().victim.empty() ? 0 : 1);
  ASSERT_GE(cluster.results().size(), 2U);
  int ghosts = 0;
  const std::string& first = cluster.results()[0];
  for (const std::string& result : cluster.results()) {
    const size_t mark = result.find("|ghosts=");
    ASSERT_NE(mark, std::string::npos) << result;
    EXPECT_EQ(result.substr(0, mark), first.substr(0, first.find('|')));
    ghosts += std::stoi(result.substr(mark + 8));
  }
  EXPECT_NE(first.find("missing=0 doubled=0"), std::string::npos) << first;
  if (GetParam().victim != "joiner") {
    EXPECT_GE(ghosts, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kill, TorchFollowing,
                         ::testing::Values(Case{"", true}, Case{"", false}, Case{"source", true},
                                           Case{"source", false}, Case{"joiner", true},
                                           Case{"joiner", false}, Case{"other", true},
                                           Case{"other", false}),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return (c.victim.empty() ? "nobody" : c.victim) +
                                  (c.share_memory ? "_memory" : "_links");
                         });

}  // namespace
}  // namespace troupe::testing
