#include "runtime/private_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/transport.h"

namespace troupe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PrivateFolderTest : public ::testing::Test {
 protected:
  PrivateFolderTest() : root_(::testing::TempDir() + "/private-XXXXXX") {
    EXPECT_NE(::mkdtemp(root_.data()), nullptr);
  }
  PrivateFolderTest(const PrivateFolderTest&) = delete;
  PrivateFolderTest& operator=(const PrivateFolderTest&) = delete;
  ~PrivateFolderTest() override { std::filesystem::remove_all(root_); }

  [[nodiscard]] std::string Folder(const std::string& name, mode_t mode) const {
    std::string path = root_ + "/" + name;
    EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

  std::string root_;
};

TEST_F(PrivateFolderTest, IsMadeForItsUserAlone) {
  const std::string path = root_ + "/a/b";
  ASSERT_TRUE(MakePrivateFolder(path, "run directory").ok());
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(MakePrivateFolder(path, "run directory").ok()) << "it is there already";
}

TEST_F(PrivateFolderTest, OthersMayReadButNotWrite) {
  EXPECT_TRUE(CheckPrivateFolder(Folder("read", 0755), "folder").ok());
  for (const mode_t mode : {0770, 0707, 01777}) {
    const std::string path = Folder("mode-" + std::to_string(mode), mode);
    const Status s = MakePrivateFolder(path, "run directory");
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.error().code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(s.error().message,
                AllOf(HasSubstr("the run directory " + path), HasSubstr("chmod 700")));
  }
}

TEST_F(PrivateFolderTest, AnotherUsersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const std::string path = Folder("theirs", 0700);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  const Status s = CheckPrivateFolder(path, "run directory");
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.error().message, HasSubstr("user 12345 owns it"));
}

TEST_F(PrivateFolderTest, AFileOrNothingIsToldApart) {
  EXPECT_TRUE(CheckPrivateFolder(root_ + "/nothing", "folder").ok());
  EXPECT_FALSE(CheckPrivateFolder("/dev/null", "folder").ok());
  EXPECT_FALSE(MakePrivateFolder("/dev/null/x", "folder").ok());
}

// Whoever may write to the folder could put a socket of its own there.
TEST_F(PrivateFolderTest, SocketsAreNeitherMadeNorUsedElsewhere) {
  ZmqTransportOptions options;
  options.name = "node";
  const auto transport = MakeZmqTransport(options).value();
  const std::string endpoint = "ipc://" + Folder("open", 0777) + "/head.sock";
  const auto listening = transport->Listen(endpoint);
  ASSERT_FALSE(listening.ok());
  EXPECT_EQ(listening.error().code, ErrorCode::kPermissionDenied);
  const Status connected = transport->Connect({"head", endpoint, ""});
  ASSERT_FALSE(connected.ok());
  EXPECT_THAT(connected.error().message, HasSubstr("socket folder"));
}

}  // namespace
}  // namespace troupe
