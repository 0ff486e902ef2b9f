#include "daemons/node/incarnation.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace troupe::daemons {
namespace {

class IncarnationTest : public ::testing::Test {
 protected:
  IncarnationTest() { folder_ = ::mkdtemp(pattern_.data()); }
  ~IncarnationTest() override { std::filesystem::remove_all(folder_); }

  std::string pattern_ = ::testing::TempDir() + "incarnation-XXXXXX";
  std::string folder_;
};

TEST_F(IncarnationTest, ATimeOfDayThatWasSetBackGivesAGreaterNumber) {
  EXPECT_EQ(NextIncarnation(folder_, "n", 1000), 1000U);
  EXPECT_EQ(NextIncarnation(folder_, "n", 10), 1001U);
  EXPECT_EQ(NextIncarnation(folder_, "n", 10), 1002U);
  EXPECT_EQ(NextIncarnation(folder_, "n", 2000), 2000U);
}

TEST_F(IncarnationTest, EveryNodeOfAFolderHasItsOwn) {
  EXPECT_EQ(NextIncarnation(folder_, "a", 1000), 1000U);
  EXPECT_EQ(NextIncarnation(folder_, "b", 10), 10U);
}

TEST_F(IncarnationTest, WhoMustBeGreaterThanAnotherIs) {
  EXPECT_EQ(NextIncarnation(folder_, "n", 10, 5000), 5000U);
  EXPECT_EQ(NextIncarnation(folder_, "n", 10), 5001U);
}

TEST_F(IncarnationTest, WithoutAFileTheTimeOfDayDecides) {
  EXPECT_EQ(NextIncarnation(folder_ + "/missing", "n", 1000), 1000U);
  EXPECT_EQ(NextIncarnation(folder_ + "/missing", "n", 10), 10U);
}

TEST_F(IncarnationTest, AGarbledFileIsWrittenAgain) {
  std::ofstream(folder_ + "/incarnation-n") << "rubbish";
  EXPECT_EQ(NextIncarnation(folder_, "n", 1000), 1000U);
  EXPECT_EQ(NextIncarnation(folder_, "n", 10), 1001U);
}

}  // namespace
}  // namespace troupe::daemons
