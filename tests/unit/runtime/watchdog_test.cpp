#include "runtime/watchdog.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "runtime/process.h"
#include "runtime/transport.h"
#include "tests/integration/runtime/temp_dir.h"

namespace troupe {
namespace {

Time At(double s) { return Time{static_cast<int64_t>(s * 1e9)}; }

// Asks every half second, as a daemon does; when it expired, or never.
Time ExpiresBy(Watchdog& watchdog, double from, double until) {
  for (double s = from; s <= until; s += 0.5) {
    if (watchdog.Expired(At(s))) return At(s);
  }
  return Time::Never();
}

TEST(WatchdogTest, ExpiresOncePerSilence) {
  Watchdog watchdog(seconds(3));
  watchdog.Begin(At(0));
  EXPECT_EQ(ExpiresBy(watchdog, 0.5, 2), Time::Never());
  watchdog.Heard(At(2));
  EXPECT_EQ(ExpiresBy(watchdog, 2.5, 10), At(5));
  EXPECT_EQ(ExpiresBy(watchdog, 5.5, 20), Time::Never());
  watchdog.Heard(At(20));
  EXPECT_EQ(ExpiresBy(watchdog, 20.5, 30), At(23));
}

TEST(WatchdogTest, TimeInWhichWeWereStoppedDoesNotCount) {
  Watchdog watchdog(seconds(3));
  watchdog.Begin(At(0));
  EXPECT_EQ(ExpiresBy(watchdog, 0.5, 2), Time::Never());
  EXPECT_FALSE(watchdog.Expired(At(1000)));
  EXPECT_EQ(ExpiresBy(watchdog, 1000.5, 1010), At(1001));
}

TEST(WatchdogTest, OneWithoutALimitNeverExpires) {
  Watchdog watchdog(Duration::zero());
  watchdog.Begin(At(0));
  EXPECT_EQ(ExpiresBy(watchdog, 0.5, 1000), Time::Never());
}

class WatchdogSocketTest : public ::testing::Test {
 protected:
  // A beat of this process, or what else `text` says.
  void Send(const std::string& text) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_.size());
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_GE(
        ::sendto(fd, text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&address), size), 0);
    ::close(fd);
  }

  tests::TempDir dir_;
  std::string path_ = dir_.path() + "/beats";
  std::unique_ptr<WatchdogSocket> socket_ = WatchdogSocket::Open(path_).value();
};

TEST_F(WatchdogSocketTest, TellsWhoHasBeatenAndNothingElse) {
  EXPECT_TRUE(socket_->Beaten()->empty());
  Send("READY=1");
  EXPECT_TRUE(socket_->Beaten()->empty());
  Send("WATCHDOG=1");
  Send("WATCHDOG=1");
  EXPECT_EQ(socket_->Beaten(), std::set<int>{::getpid()});
  EXPECT_TRUE(socket_->Beaten()->empty());
}

TEST_F(WatchdogSocketTest, OneThatACleanerHasTakenIsMadeAnewAndNobodyIsBlamedForIt) {
  ::unlink(path_.c_str());
  EXPECT_FALSE(socket_->Beaten().has_value());
  Send("WATCHDOG=1");
  EXPECT_EQ(socket_->Beaten(), std::set<int>{::getpid()});
}

TEST_F(WatchdogSocketTest, ALoopBeatsAsLongAsItGoesRound) {
  ::setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  ::setenv("WATCHDOG_USEC", "30000", 1);
  WatchdogBeat beat;
  EXPECT_TRUE(Env("NOTIFY_SOCKET").empty());  // A child is not to speak for us.
  EXPECT_TRUE(Env("WATCHDOG_USEC").empty());
  ZmqTransportOptions options;
  options.name = "beating";
  const std::unique_ptr<Transport> transport = MakeZmqTransport(options).value();
  beat.Start(transport->loop());
  const auto beaten = [&](Duration limit) {
    const Time deadline = SteadyClock().Now() + limit;
    while (SteadyClock().Now() < deadline) {
      if (!socket_->Beaten()->empty()) return true;
      ::usleep(1000);
    }
    return false;
  };
  for (int n = 0; n < 3; ++n) EXPECT_TRUE(beaten(seconds(10)));
  transport->Stop();
  (void)socket_->Beaten();
  EXPECT_FALSE(beaten(milliseconds(100)));
}

}  // namespace
}  // namespace troupe
