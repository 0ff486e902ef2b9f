// The end of a log, and when logs are old.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "daemons/node/log_expiry.h"
#include "daemons/node/log_tail.h"
#include "runtime/file_lane.h"
#include "tests/support/soon.h"

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using tests::kSoon;

class LogTailTest : public ::testing::Test {
 protected:
  LogTailTest() : path_(::testing::TempDir() + "/tail-" + std::to_string(::getpid()) + ".log") {}
  ~LogTailTest() override { std::filesystem::remove(path_); }
  std::string Tail(const std::string& text, size_t lines) {
    std::ofstream(path_, std::ios::binary) << text;
    return ReadTail(path_, lines).value();
  }
  const std::string path_;
};

// Logs of workers in a folder of their own.
class LogExpiryTest : public ::testing::Test {
 protected:
  LogExpiryTest() : folder_(::testing::TempDir() + "/logs-XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  LogExpiryTest(const LogExpiryTest&) = delete;
  LogExpiryTest& operator=(const LogExpiryTest&) = delete;
  ~LogExpiryTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  // Of 100 bytes, written `age` seconds ago.
  void Write(const std::string& name, int age) const {
    std::ofstream(Path(name)) << std::string(99, 'x') << '\n';
    const timespec times[2] = {{::time(nullptr) - age, 0}, {::time(nullptr) - age, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, Path(name).c_str(), times, 0), 0);
  }
  [[nodiscard]] std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.insert(entry.path().filename());
    return names;
  }

  std::string folder_;
  FileLane lane_;
};

TEST_F(LogExpiryTest, TheNewestOutputOfAWorkerIsKept) {
  const std::string path = Path("worker-a.log");
  LogFile log(&lane_, path, 1000);
  for (int line = 1000; line < 2000; ++line) {  // Of 10 bytes each.
    while (!log.Append("line " + std::to_string(line) + "\n")) ASSERT_TRUE(lane_.WaitIdle(kSoon));
  }
  ASSERT_TRUE(lane_.WaitIdle(kSoon));
  EXPECT_THAT(Files(), ElementsAre("worker-a.log", "worker-a.log.1"));
  EXPECT_LE(std::filesystem::file_size(path), 500U);
  EXPECT_LE(std::filesystem::file_size(path + ".1"), 500U);
  const std::string tail = ReadTail(path, 60).value();
  EXPECT_EQ(tail.substr(0, 10), "line 1940\n") << "which is in the part before";
  EXPECT_EQ(tail.substr(tail.size() - 10), "line 1999\n");
  EXPECT_FALSE(log.failed());
}

TEST_F(LogExpiryTest, WhoEndedFirstGoesFirstAndNobodyWhoLives) {
  LogLimits limits;
  limits.folder_bytes = 350;
  auto living = std::make_optional<LogFile>(&lane_, Path("worker-living.log"));
  ASSERT_TRUE(lane_.WaitIdle(kSoon));
  Write("worker-living.log", 900);
  Write("worker-living.log.1", 901);
  Write("worker-old.log", 800);
  Write("worker-old.log.1", 850);
  Write("worker-middle.log", 700);
  Write("worker-new.log", 600);
  Write("worker-new.log.1", 750);
  Write("node.log", 9999);
  EXPECT_EQ(ExpireWorkerLogs(folder_, limits), 2U);
  EXPECT_THAT(Files(), ElementsAre("node.log", "worker-living.log", "worker-living.log.1",
                                   "worker-middle.log", "worker-new.log", "worker-new.log.1"));
  EXPECT_EQ(ExpireWorkerLogs(folder_, limits), 0U);
  limits.folder_files = 2;
  EXPECT_EQ(ExpireWorkerLogs(folder_, limits), 1U);
  EXPECT_FALSE(Files().contains("worker-middle.log"));
  living.reset();
  ASSERT_TRUE(lane_.WaitIdle(kSoon));
  EXPECT_EQ(ExpireWorkerLogs(folder_, limits), 2U) << "of the one that lived";
  EXPECT_EQ(ExpireWorkerLogs(folder_ + "/nothing", limits), 0U);
}

TEST_F(LogTailTest, IsTheLastLines) {
  for (const char* end : {"", "\n"}) {
    const std::string text = std::string("one\ntwo\n\nfour") + end;
    EXPECT_EQ(Tail(text, 1), std::string("four") + end);
    EXPECT_EQ(Tail(text, 2), std::string("\nfour") + end);
    EXPECT_EQ(Tail(text, 3), std::string("two\n\nfour") + end);
    EXPECT_EQ(Tail(text, 4), text);
    EXPECT_EQ(Tail(text, 100), text);
    EXPECT_EQ(Tail(text, 0), "");
  }
  EXPECT_EQ(Tail("", 5), "");
  EXPECT_EQ(Tail("\n", 1), "\n");
  EXPECT_EQ(Tail("\nx", 1), "x");
  EXPECT_EQ(Tail("\nx", 2), "\nx");
}

TEST_F(LogTailTest, IsBounded) {
  const std::string text = std::string(kLogTailBytesMax, 'x') + "\nlast\n";
  const std::string tail = Tail(text, 10);
  EXPECT_EQ(tail.size(), kLogTailBytesMax);
  EXPECT_TRUE(tail.ends_with("x\nlast\n"));
}

TEST_F(LogTailTest, OfAFileThatIsNotThereIsAnError) {
  const Result<std::string> tail = ReadTail(path_ + ".other", 5);
  ASSERT_FALSE(tail.ok());
  EXPECT_EQ(tail.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(tail.error().message, HasSubstr(path_ + ".other: No such file"));
}

TEST(LogPathTest, StaysInItsDirectory) {
  EXPECT_EQ(LogPath("/logs", "worker-a1b2").value(), "/logs/worker-a1b2.log");
  for (const char* log : {"", "../key", "a/b", "..", "a.b", "a b"})
    EXPECT_EQ(LogPath("/logs", log).error().code, ErrorCode::kInvalidArgument) << log;
  EXPECT_EQ(LogPath("/logs", std::string(129, 'a')).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(LogPath("", "node").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace troupe::daemons
