// What a peer can do to the links of one process: die in the middle of connecting.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "collective_groups/links.h"

namespace troupe::groups {
namespace {

sockaddr_storage Ipv4(const char* host, uint16_t port) {
  sockaddr_storage storage{};
  auto* address = reinterpret_cast<sockaddr_in*>(&storage);
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  ::inet_pton(AF_INET, host, &address->sin_addr);
  return storage;
}

// A peer that connects to what was offered and is gone before anybody has asked who it is.
void ConnectAndDie(const std::string& offered) {
  sockaddr_storage address{};
  ASSERT_GE(offered.size(), sizeof address);
  std::memcpy(&address, offered.data(), sizeof address);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_in)), 0);
  const linger reset{1, 0};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
  ::close(fd);
}

TEST(LinksTest, APeerThatDiesWhileItConnectsCostsItsLinkOnly) {
  constexpr uint32_t kMine = 0;
  constexpr uint32_t kPeer = 1;
  const auto links = MakeGlooLinks({.bind_address = "127.0.0.1"}).value();
  // The end with the lower address is the one that waits to be connected to.
  const sockaddr_storage higher = Ipv4("127.0.0.2", 1);
  const std::string peer(reinterpret_cast<const char*>(&higher), sizeof higher);
  // Whether the reset overtakes the question is up to the kernel's timing: nearly always it does.
  for (int round = 0; round < 200; ++round) {
    const auto offered = links->Offer(kMine, kPeer);
    ASSERT_TRUE(offered.ok()) << offered.error().ToString();
    ConnectAndDie(offered.value());
    const Status linked = links->Link(kPeer, peer);
    // If the question came first it was up for a moment.
    if (!linked.ok()) {
      ASSERT_EQ(linked.error().code, ErrorCode::kPeerGone);
    }
  }
}

}  // namespace
}  // namespace troupe::groups
