#include "daemons/autoscaler/fleet_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace troupe::daemons {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class FleetLockTest : public ::testing::Test {
 protected:
  FleetLockTest() {
    char pattern[] = "/tmp/fleet_lock_XXXXXX";
    folder_ = ::mkdtemp(pattern);
    path_ = folder_ + "/state/demo.lock";
  }
  ~FleetLockTest() override { std::filesystem::remove_all(folder_); }
  static FleetHolder Mine(const std::string& life) {
    return {::getpid(), "here", life, "/x/fleet.yaml", 1'800'000'000};
  }

  std::string folder_;
  std::string path_;
};

TEST_F(FleetLockTest, OfTwoOneHasItAndTheOtherIsToldWho) {
  EXPECT_EQ(FleetLock::HolderOf(path_).error().code, ErrorCode::kNotFound);
  Result<FleetLock> first = FleetLock::Take(path_, Mine("a"));
  ASSERT_TRUE(first.ok()) << first.error().message;
  const Result<FleetLock> second = FleetLock::Take(path_, Mine("b"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(second.error().message,
              HasSubstr("process " + std::to_string(::getpid()) + " of here holds it since 2027"));
  EXPECT_THAT(second.error().message, EndsWith("(/x/fleet.yaml)"));
  FleetHolder other = Mine("c");  // Two files that both have the name of those without any.
  other.file = "/y/fleet.yaml";
  EXPECT_THAT(FleetLock::Take(path_, other).error().message,
              EndsWith("(/x/fleet.yaml); `name` tells two clusters apart"));
  EXPECT_EQ(FleetLock::HolderOf(path_)->pid, ::getpid());
  EXPECT_TRUE(FleetLock::HolderOf(path_)->held);
  first->LeaveNothing();  // And still does something.
  EXPECT_TRUE(FleetLock::HolderOf(path_)->held);
  EXPECT_THAT(FleetLock::Take(path_, Mine("b")).error().message, HasSubstr("is ending"));
}

TEST_F(FleetLockTest, ALifeThatWasKilledIsKnownToTheNextUnlessItLeftNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<FleetLock> lock = FleetLock::Take(path_, Mine("a"));
    ::_exit(lock.ok() ? 0 : 1);  // Without a destructor, as by SIGKILL.
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(FleetLock::HolderOf(path_)->held);
  EXPECT_EQ(FleetLock::HolderOf(path_)->life, "a");
  {
    // Such as `troupe down`, which has none of its own.
    Result<FleetLock> unnamed = FleetLock::Take(path_, Mine(""));
    ASSERT_TRUE(unnamed.ok());
    EXPECT_EQ(unnamed->before(), "a");
  }
  {
    Result<FleetLock> next = FleetLock::Take(path_, Mine("b"));
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(next->before(), "a");
    next->LeaveNothing();
  }
  EXPECT_EQ(FleetLock::HolderOf(path_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(FleetLock::Take(path_, Mine("c"))->before(), "");
}

TEST_F(FleetLockTest, RubbishInTheFileIsNobody) {
  std::filesystem::create_directories(folder_ + "/state");
  std::ofstream(path_) << "{\"pid\": \"x\", \"life\": 7";
  EXPECT_EQ(FleetLock::HolderOf(path_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(FleetLock::Take(path_, Mine("a"))->before(), "");
}

TEST_F(FleetLockTest, WhereNoFileCanBeThereIsNoLock) {
  std::ofstream(folder_ + "/state") << "a file";
  EXPECT_EQ(FleetLock::Take(path_, Mine("a")).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace troupe::daemons
