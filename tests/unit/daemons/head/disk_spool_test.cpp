// Files of the head's spool: what was put is there, and nobody else sees it.
#include "daemons/head/disk_spool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace troupe::daemons {
namespace {

class DiskSpoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/troupe-spool-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    const char* before = std::getenv("TMPDIR");
    before_ = before == nullptr ? "" : before;
    ::setenv("TMPDIR", folder, 1);
  }
  void TearDown() override {
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  std::string folder_;
  std::string before_;
  DiskSpool spool_;
};

TEST_F(DiskSpoolTest, WhatWasPutIsThere) {
  const auto file = spool_.Create().value();
  ASSERT_TRUE(file->Append("abc").ok());
  ASSERT_TRUE(file->Append("def").ok());
  EXPECT_EQ(file->size(), 6U);
  EXPECT_EQ(file->Read(1, 3), "bcd");
  EXPECT_EQ(file->Read(4, 10), "ef");
  EXPECT_EQ(file->Read(9, 1), "");
}

TEST_F(DiskSpoolTest, ItsFilesHaveNoNames) {
  const auto file = spool_.Create().value();
  ASSERT_TRUE(file->Append("abc").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// As on a disk that is full.
TEST_F(DiskSpoolTest, WhatDoesNotFitIsAnErrorAndLeavesTheFileAsItWas) {
  const auto file = spool_.Create().value();
  ASSERT_TRUE(file->Append("abc").ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{5, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status put = file->Append("defg");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(put.ok());
  EXPECT_EQ(put.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(file->size(), 3U);
  ASSERT_TRUE(file->Append("DEF").ok());
  EXPECT_EQ(file->Read(0, 10), "abcDEF");
}

}  // namespace
}  // namespace troupe::daemons
