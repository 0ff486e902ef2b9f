// Child processes: what they get, how they end, that they never outlive us unasked.
#include "runtime/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/integration/runtime/child_lines.h"
#include "tests/integration/runtime/resources.h"
#include "tests/integration/runtime/temp_dir.h"
#include "tests/support/soon.h"

namespace troupe {
namespace {

using ::testing::HasSubstr;
using tests::ReadLine;

using tests::kSoon;

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"sh", "-c", script};
  options.capture_output = true;
  return options;
}
ChildProcess Start(const SpawnOptions& options) {
  Result<ChildProcess> child = Spawn(options);
  EXPECT_TRUE(child.ok()) << child.error().message;
  return std::move(child).value();
}
std::string Text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ProcessTest, ReportsExitCodes) {
  ChildProcess child = Start(Shell("exit 3"));
  const ExitInfo info = *child.WaitFor(kSoon);
  EXPECT_EQ(info.code, 3);
  EXPECT_EQ(info.signal, 0);
  EXPECT_EQ(info.ToString(), "exited with code 3");
  EXPECT_EQ(child.TryReap()->code, 3);  // Stays known after reaping.
  child.Kill(SIGKILL);                  // Harmless now.
}

TEST(ProcessTest, ReportsSignals) {
  ChildProcess child = Start(Shell("exec tail -f /dev/null"));
  EXPECT_EQ(child.TryReap(), std::nullopt);
  EXPECT_EQ(child.WaitFor(milliseconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  child.Kill(SIGKILL);
  const ExitInfo info = *child.WaitFor(kSoon);
  EXPECT_EQ(info.signal, SIGKILL);
  EXPECT_EQ(info.ToString(), "killed by signal 9 (Killed)");
}

TEST(ProcessTest, KillReachesTheWholeProcessGroup) {
  ChildProcess child = Start(Shell("tail -f /dev/null & echo $!; wait"));
  const int grandchild = std::stoi(ReadLine(child.stdout_fd()));
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, grandchild, 0));
  ASSERT_GE(pidfd, 0);
  child.Kill(SIGKILL);
  ASSERT_TRUE(child.WaitFor(kSoon).ok());
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  ::close(pidfd);
}

TEST(ProcessTest, TerminateAsksFirstAndInsistsLater) {
  ChildProcess polite = Start(Shell("trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done"));
  EXPECT_EQ(ReadLine(polite.stdout_fd()), "up");
  EXPECT_EQ(polite.Terminate(kSoon).code, 5);
  ChildProcess stubborn = Start(Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  EXPECT_EQ(ReadLine(stubborn.stdout_fd()), "up");
  EXPECT_EQ(stubborn.Terminate(milliseconds(50)).signal, SIGKILL);
}

TEST(ProcessTest, AMissingProgramIsAClearErrorInEveryForm) {
  for (const int death_signal : {SIGKILL, 0}) {
    for (const std::string program : {"no-such-program", "/no/such/program", "/tmp"}) {
      SpawnOptions options;
      options.argv = {program};
      options.parent_death_signal = death_signal;
      const Result<ChildProcess> child = Spawn(options);
      ASSERT_FALSE(child.ok()) << program << " " << death_signal;
      EXPECT_THAT(child.error().message, HasSubstr("cannot start " + program));
    }
  }
  EXPECT_EQ(Spawn(SpawnOptions{}).error().code, ErrorCode::kInvalidArgument);
}

TEST(ProcessTest, APathWithoutTheToolsOfTheSystemIsEnough) {
  const char* before = std::getenv("PATH");
  const std::string path = before == nullptr ? "" : before;
  ::setenv("PATH", "/nowhere", 1);
  SpawnOptions options;
  options.argv = {"/bin/true"};
  options.parent_death_signal = SIGKILL;
  const Result<ChildProcess> child = Spawn(options);
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_TRUE(child.ok()) << child.error().message;
}

TEST(ProcessTest, AProgramOnTheChildsOwnPathIsFound) {
  const tests::TempDir dir;
  const std::string path = dir.path() + "/only-here";
  std::ofstream(path) << "#!/bin/sh\necho found\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  SpawnOptions options;
  options.argv = {"only-here"};
  options.env["PATH"] = dir.path() + ":/usr/bin:/bin";
  options.capture_output = true;
  ChildProcess child = Start(options);
  EXPECT_EQ(ReadLine(child.stdout_fd()), "found");
  EXPECT_EQ(child.WaitFor(kSoon)->code, 0);
}

TEST(ProcessTest, CapturesBothStreamsApart) {
  ChildProcess child = Start(Shell("echo out; echo err >&2"));
  EXPECT_EQ(ReadLine(child.stdout_fd()), "out");
  EXPECT_EQ(ReadLine(child.stderr_fd()), "err");
  EXPECT_TRUE(child.WaitFor(kSoon).ok());
}

TEST(ProcessTest, AppendsOutputToAPrivateFile) {
  const tests::TempDir dir;
  SpawnOptions options = Shell("echo out; echo err >&2");
  options.capture_output = false;
  options.output_path = dir.path() + "/log";
  for (int i = 0; i < 2; ++i) {
    ChildProcess child = Start(options);
    ASSERT_EQ(child.WaitFor(kSoon)->code, 0);
  }
  EXPECT_EQ(Text(options.output_path), "out\nerr\nout\nerr\n");
  EXPECT_EQ(std::filesystem::status(options.output_path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(ProcessTest, TheEnvironmentIsOursWithTheChanges) {
  ::setenv("TROUPE_TEST_KEPT", "kept", 1);
  ::setenv("TROUPE_TEST_CHANGED", "before", 1);
  SpawnOptions options = Shell("echo $TROUPE_TEST_KEPT $TROUPE_TEST_CHANGED $TROUPE_TEST_NEW");
  options.env = {{"TROUPE_TEST_CHANGED", "after"}, {"TROUPE_TEST_NEW", "new=1"}};
  ChildProcess child = Start(options);
  EXPECT_EQ(ReadLine(child.stdout_fd()), "kept after new=1");
  EXPECT_TRUE(child.WaitFor(kSoon).ok());
}

TEST(ProcessTest, AChildGetsNoOtherDescriptorAndNoBlockedSignal) {
  const int leaked = ::open("/dev/null", O_RDONLY);  // Not marked close-on-exec.
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  ChildProcess child = Start(
      Shell("ls /proc/$$/fd; exec grep SigBlk /proc/self/status"));  // A pipe would be listed.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const char* line : {"0", "1", "2", "SigBlk:\t0000000000000000"})
    EXPECT_EQ(ReadLine(child.stdout_fd()), line);
  EXPECT_TRUE(child.WaitFor(kSoon).ok());
  ::close(leaked);
}

TEST(ProcessTest, AChildSurvivesTheThreadThatAskedForIt) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  SpawnOptions options = Shell("cat");
  options.stdin_fd = fds[0];
  ChildProcess child;
  std::thread([&] { child = Start(options); }).join();
  ASSERT_EQ(::write(fds[1], "alive\n", 6), 6);
  EXPECT_EQ(ReadLine(child.stdout_fd()), "alive");
  ::close(fds[1]);
  ::close(fds[0]);
  EXPECT_EQ(child.WaitFor(kSoon)->code, 0);
}

// The pid of a child of a helper process, and a descriptor that tells of its end.
struct Grandchild {
  ChildProcess parent;
  int pid = -1;
  int pidfd = -1;
};
Grandchild StartGrandchild(int death_signal) {
  SpawnOptions options;
  options.argv = {TROUPE_PROCESS_HELPER, "parent", std::to_string(death_signal)};
  options.capture_output = true;
  Grandchild result{Start(options)};
  result.pid = std::stoi(ReadLine(result.parent.stdout_fd()));
  result.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, result.pid, 0));
  EXPECT_GE(result.pidfd, 0);
  return result;
}

TEST(ProcessTest, AChildDiesWithItsParentHoweverThatEnds) {
  Grandchild it = StartGrandchild(SIGKILL);
  it.parent.Kill(SIGKILL);  // The child is in a group of its own: this does not reach it.
  ASSERT_TRUE(it.parent.WaitFor(kSoon).ok());
  pollfd ended{it.pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  ::close(it.pidfd);
}

TEST(ProcessTest, AChildThatIsToldToOutlivesItsParent) {
  Grandchild it = StartGrandchild(0);
  it.parent.Kill(SIGKILL);
  ASSERT_TRUE(it.parent.WaitFor(kSoon).ok());
  EXPECT_EQ(::syscall(SYS_pidfd_send_signal, it.pidfd, 0, nullptr, 0), 0);  // It is there,
  EXPECT_EQ(::syscall(SYS_pidfd_send_signal, it.pidfd, SIGKILL, nullptr, 0), 0);
  pollfd ended{it.pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  ::close(it.pidfd);
}

TEST(ProcessTest, LeavesNoDescriptorBehind) {
  Start(Shell("exit 0")).Terminate(kSoon);
  const size_t descriptors = tests::OpenDescriptors();
  const size_t threads = tests::Threads();
  for (int i = 0; i < 30; ++i) {
    Start(Shell("exit 0")).Terminate(kSoon);
    SpawnOptions missing = Shell("");
    missing.argv = {"/no/such/program"};
    EXPECT_FALSE(Spawn(missing).ok());
  }
  EXPECT_EQ(tests::OpenDescriptors(), descriptors);
  EXPECT_EQ(tests::Threads(), threads);
}

TEST(ProcessTest, FindProgramLooksWhereItSays) {
  EXPECT_EQ(*FindProgram("/bin/sh"), "/bin/sh");
  EXPECT_THAT(*FindProgram("sh"), HasSubstr("/sh"));
  EXPECT_EQ(*FindProgram("sh", "/bin"), "/bin/sh");
  EXPECT_EQ(FindProgram("/tmp").error().code, ErrorCode::kNotFound);  // A directory.
  EXPECT_EQ(FindProgram("no-such-program").error().message,
            "no-such-program was not found on PATH");
}

}  // namespace
}  // namespace troupe
