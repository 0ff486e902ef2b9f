#include "runtime/tcp_socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troupe {
namespace {

constexpr int kProbes = 3;

Status Set(int fd, int level, int name, const char* text, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) == 0) return Status::Ok();
  return Error{ErrorCode::kUnavailable, std::string(text) + ": " + std::strerror(errno)};
}

}  // namespace

Status LimitTcpSilence(int fd, Duration limit) {
  const auto ms = static_cast<int>(std::chrono::duration_cast<milliseconds>(limit).count());
  const int between = std::max(1, ms / 1000 / kProbes);
  for (const Status& s : {Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", ms),
                          Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, "TCP_KEEPIDLE", between),
                          Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, "TCP_KEEPINTVL", between),
                          Set(fd, IPPROTO_TCP, TCP_KEEPCNT, "TCP_KEEPCNT", kProbes),
                          Set(fd, SOL_SOCKET, SO_KEEPALIVE, "SO_KEEPALIVE", 1)}) {
    if (!s.ok()) return s;
  }
  return Status::Ok();
}

uint64_t TcpBytesMoved(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) return 0;
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

}  // namespace troupe
