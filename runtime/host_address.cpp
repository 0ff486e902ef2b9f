#include "runtime/host_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace troupe {
namespace {

constexpr const char* kFarAway = "192.0.2.1";  // For documentation only, so on the way out.
constexpr const char* kAnyPort = "9";

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses LookUp(const std::string& host, const std::string& port, int type, int flags) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_family = AF_INET;  // As the transport listens.
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return nullptr;
  return Addresses(found);
}

}  // namespace

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (colon == 0 || digits.empty() || error != std::errc() ||
      end != digits.data() + digits.size() || port < 1 || port > 65535) {
    return Error{ErrorCode::kInvalidArgument,
                 "expected HOST:PORT, got \"" + std::string(text) + "\""};
  }
  return HostPort{std::string(text.substr(0, colon)), port};
}

Result<std::string> AddressTowards(const std::string& host) {
  const bool any = host.empty() || host == "0.0.0.0" || host == "*";
  const Addresses found = LookUp(any ? kFarAway : host, kAnyPort, SOCK_DGRAM, 0);
  if (!found) return Error{ErrorCode::kUnavailable, "no address is known of the host " + host};
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char name[NI_MAXHOST] = {};
  const bool known = fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name,
                                   nullptr, 0, NI_NUMERICHOST) == 0;
  const int problem = errno;
  if (fd >= 0) ::close(fd);
  if (known) return std::string(name);
  return Error{ErrorCode::kUnavailable,
               "this host has no way to " + host + ": " + std::strerror(problem)};
}

Status CanListen(const HostPort& at) {
  const std::string where = at.host + ":" + std::to_string(at.port);
  const Addresses found =
      LookUp(at.host, std::to_string(at.port), SOCK_STREAM, AI_PASSIVE | AI_NUMERICSERV);
  if (!found) return Error{ErrorCode::kUnavailable, "no address is known of " + at.host};
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;  // As ZeroMQ has it.
  const bool bound = fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                     ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 1) == 0;
  const int problem = errno;
  if (fd >= 0) ::close(fd);
  if (bound) return Status::Ok();
  if (problem == EADDRINUSE)
    return Error{ErrorCode::kAlreadyExists, where + " is in use, perhaps by another cluster"};
  return Error{ErrorCode::kUnavailable,
               "nothing can listen on " + where + ": " + std::strerror(problem)};
}

}  // namespace troupe
