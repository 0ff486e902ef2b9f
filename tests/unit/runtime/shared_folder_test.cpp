#include "runtime/shared_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace troupe {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SharedFolderTest : public ::testing::Test {
 protected:
  SharedFolderTest()
      : path_(
            SharedFolder::PathOf("test " + std::to_string(::getpid()) + " " +
                                 ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
  }
  SharedFolderTest(const SharedFolderTest&) = delete;
  SharedFolderTest& operator=(const SharedFolderTest&) = delete;
  ~SharedFolderTest() override { SharedFolder::RemoveEnded(); }

  [[nodiscard]] std::unique_ptr<SharedFolder> Enter() const {
    auto folder = SharedFolder::Enter(path_);
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    return folder.ok() ? std::move(*folder) : nullptr;
  }

  // A process that is in it, and ends as `signal` says once a byte was read from what is returned.
  std::pair<pid_t, int> Another() const {
    int fds[2];
    EXPECT_EQ(::pipe(fds), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const auto folder = SharedFolder::Enter(path_);
      const std::string name = folder.ok() ? (*folder)->name() : "";
      const std::string line = name + " " + (folder.ok() ? (*folder)->identity() : "") + "\n";
      (void)!::write(fds[1], line.data(), line.size());
      ::pause();
      ::_exit(0);
    }
    ::close(fds[1]);
    return {pid, fds[0]};
  }
  static std::string ReadLine(int fd) {
    std::string line;
    for (char c = 0; ::read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
    ::close(fd);
    return line;
  }
  static void Kill(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  const std::string path_;
};

TEST_F(SharedFolderTest, IsForItsUserAloneAndGoesWithTheLast) {
  auto first = Enter();
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  auto second = Enter();
  EXPECT_EQ(first->identity(), second->identity());
  EXPECT_NE(first->name(), second->name());  // SF-2
  const std::string spill = first->spill_path();
  EXPECT_EQ(spill, second->spill_path());
  const std::string file = path_ + "/objects/" + second->name() + ".1.2";
  std::ofstream(file) << "left behind";
  std::ofstream(spill + "/x") << "left behind";
  first.reset();
  SharedFolder::RemoveEnded();
  EXPECT_TRUE(fs::exists(file)) << "somebody is in it (SF-1)";
  second.reset();
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(fs::exists(spill));
}

TEST_F(SharedFolderTest, AnotherProcessReadsTheSameIdentityAndItsFilesGoWithIt) {
  const auto mine = Enter();
  const auto [pid, fd] = Another();
  const std::string line = ReadLine(fd);
  const std::string name = line.substr(0, line.find(' '));
  EXPECT_EQ(line.substr(line.find(' ') + 1), mine->identity());
  const std::string theirs = path_ + "/objects/" + name + ".1.2";
  const std::string half = mine->spill_path() + "/." + name + ".1.3";
  const std::string own = path_ + "/fresh/" + mine->name() + ".1.2";
  const std::string nobodys = path_ + "/objects/123-no-such.1.2";
  const auto sweep = [&] {
    for (const std::string& file : {theirs, half, own, nobodys}) std::ofstream(file) << "x";
    mine->Sweep();
  };
  sweep();
  EXPECT_TRUE(fs::exists(own) && fs::exists(theirs) && fs::exists(half)) << "SF-4";
  EXPECT_FALSE(fs::exists(nobodys));
  Kill(pid);
  sweep();
  EXPECT_TRUE(fs::exists(own));
  EXPECT_FALSE(fs::exists(theirs) || fs::exists(half) || fs::exists(nobodys));
  EXPECT_FALSE(fs::exists(path_ + "/lives/" + name));
}

TEST_F(SharedFolderTest, SomebodyWhoIsNotInItSweepsIt) {
  const auto mine = Enter();
  const auto [pid, fd] = Another();
  const std::string line = ReadLine(fd);
  const std::string name = line.substr(0, line.find(' '));
  Kill(pid);
  std::ofstream(path_ + "/objects/" + name + ".1.2") << "x";
  SharedFolder::RemoveEnded();
  EXPECT_FALSE(fs::exists(path_ + "/objects/" + name + ".1.2"));
  EXPECT_TRUE(fs::exists(path_ + "/lives/" + mine->name()));
}

TEST_F(SharedFolderTest, WhatKilledProcessesLeaveIsRemovedAndMadeAnew) {
  const auto [pid, fd] = Another();
  const std::string line = ReadLine(fd);
  const std::string spill = fs::read_symlink(path_ + "/spill").string();
  Kill(pid);
  EXPECT_TRUE(fs::exists(path_)) << "nobody could tidy up";
  SharedFolder::RemoveEnded();
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(fs::exists(spill));
  const auto again = Enter();
  EXPECT_NE(again->identity(), line.substr(line.find(' ') + 1)) << "other files, another identity";
}

TEST_F(SharedFolderTest, AForkedChildNeitherKeepsItNorRemovesIt) {
  auto mine = Enter();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    mine.reset();
    (void)!::write(fds[1], "\n", 1);
    ::pause();
    ::_exit(0);
  }
  ::close(fds[1]);
  (void)ReadLine(fds[0]);
  EXPECT_TRUE(fs::exists(path_ + "/lives/" + mine->name()));
  mine.reset();
  EXPECT_FALSE(fs::exists(path_)) << "although a child lives that was forked from it";
  Kill(pid);
}

TEST_F(SharedFolderTest, WhatIsNotOursIsNeitherUsedNorRemoved) {  // SF-3
  const std::string elsewhere = ::testing::TempDir() + "/elsewhere-" + std::to_string(::getpid());
  fs::create_directories(elsewhere + "/objects");
  fs::create_directory_symlink(elsewhere, path_);
  auto entered = SharedFolder::Enter(path_);
  ASSERT_FALSE(entered.ok());
  EXPECT_EQ(entered.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(entered.error().message, HasSubstr(path_));
  SharedFolder::RemoveEnded();
  EXPECT_TRUE(fs::exists(elsewhere + "/objects"));
  fs::remove(path_);
  fs::create_directory(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0770), 0);
  EXPECT_FALSE(SharedFolder::Enter(path_).ok()) << "the group could put files there";
  fs::remove(path_);
  fs::remove_all(elsewhere);
}

TEST_F(SharedFolderTest, ManyMayComeAndGoAtOnce) {
  constexpr int kProcesses = 3;
  std::vector<pid_t> pids;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int turn = 0; turn < 300; ++turn) {
        const auto folder = SharedFolder::Enter(path_);
        if (!folder.ok()) ::_exit(1);
        const std::string file = path_ + "/objects/" + (*folder)->name();
        std::ofstream(file) << turn;
        if (!fs::exists(file)) ::_exit(2);
        if (turn % 3 == 0) SharedFolder::RemoveEnded();
        if (!fs::exists(file)) ::_exit(3);
      }
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  }
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace troupe
