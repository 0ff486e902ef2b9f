#include "runtime/tcp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace troupe {
namespace {

// Two ends of a connection within this process.
class TcpSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener, name, size), 0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ASSERT_EQ(::getsockname(listener, name, &size), 0);
    one_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(one_, name, size), 0);
    other_ = ::accept(listener, nullptr, nullptr);
    ASSERT_GE(other_, 0);
    ::close(listener);
  }
  void TearDown() override {
    ::close(one_);
    ::close(other_);
  }
  static int Option(int fd, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, name, &value, &size), 0);
    return value;
  }

  int one_ = -1;
  int other_ = -1;
};

TEST_F(TcpSocketTest, TheLimitIsThatOfDataAndOfProbes) {
  ASSERT_TRUE(LimitTcpSilence(one_, seconds(3)).ok());
  EXPECT_EQ(Option(one_, TCP_USER_TIMEOUT), 3000);
  EXPECT_EQ(Option(one_, TCP_KEEPIDLE), 1);
  EXPECT_FALSE(LimitTcpSilence(-1, seconds(3)).ok());
}

TEST_F(TcpSocketTest, BytesCountOnBothEnds) {
  const uint64_t sent_before = TcpBytesMoved(one_);
  const uint64_t received_before = TcpBytesMoved(other_);
  ASSERT_EQ(::send(one_, "hello", 5, 0), 5);
  char bytes[5];
  ASSERT_EQ(::recv(other_, bytes, 5, MSG_WAITALL), 5);
  EXPECT_EQ(TcpBytesMoved(other_), received_before + 5);
  EXPECT_GE(TcpBytesMoved(one_), sent_before);  // The acknowledgement may still be on its way.
  EXPECT_EQ(TcpBytesMoved(-1), 0U);
}

}  // namespace
}  // namespace troupe
