// What peers and strangers can do to the links of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "collective_groups/links/links.h"
#include "tests/integration/collective_groups/communicator_world.h"

namespace troupe::groups {
namespace {

constexpr size_t kSecretBytes = 16;

std::string SecretOf(const std::string& offered) {
  return offered.substr(offered.size() - kSecretBytes);
}

// Sockets to what was offered, closed at the end.
class Visitors {
 public:
  Visitors() = default;
  Visitors(const Visitors&) = delete;
  Visitors& operator=(const Visitors&) = delete;
  ~Visitors() { Leave(); }

  // `what` is said at once; a listener that has no room any more does not matter.
  int Come(const std::string& offered, const std::string& what) {
    sockaddr_storage address{};
    EXPECT_GE(offered.size(), sizeof address);
    std::memcpy(&address, offered.data(), sizeof address);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_in)), 0);
    EXPECT_EQ(::send(fd, what.data(), what.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(what.size()));
    fds_.push_back(fd);
    return fd;
  }
  // With a reset, as the sockets of a process that died with unread bytes.
  void Leave() {
    const linger reset{1, 0};
    for (const int fd : fds_) {
      EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
      ::close(fd);
    }
    fds_.clear();
  }

 private:
  std::vector<int> fds_;
};

TEST(LinksTest, APeerThatDiesWhileItConnectsCostsItsLinkOnly) {
  constexpr uint32_t kMine = 0;
  constexpr uint32_t kPeer = 1;
  const auto links = MakeGlooLinks({.bind_address = "127.0.0.1"}).value();
  // Of two offers the lower one is connected to: this one never is.
  const std::string peer(sizeof(sockaddr_storage) + kSecretBytes, '\xff');
  // Whether the reset overtakes the question is up to the kernel's timing: nearly always it does.
  for (int round = 0; round < 200; ++round) {
    const auto offered = links->Offer(kMine, kPeer);
    ASSERT_TRUE(offered.ok()) << offered.error().ToString();
    Visitors visitors;
    visitors.Come(offered.value(), SecretOf(offered.value()));
    visitors.Leave();
    const Status linked = links->Link(kPeer, peer);
    // If the question came first it was up for a moment.
    if (!linked.ok()) {
      ASSERT_EQ(linked.error().code, ErrorCode::kPeerGone);
    }
  }
}

TEST(LinksTest, AnOfferOfAnotherReleaseIsAnErrorThatSaysSo) {
  const auto links = MakeGlooLinks({.bind_address = "127.0.0.1"}).value();
  ASSERT_TRUE(links->Offer(0, 1).ok());
  const Status linked = links->Link(1, std::string(sizeof(sockaddr_storage) + 8, 'x'));
  ASSERT_FALSE(linked.ok());
  EXPECT_THAT(linked.error().message, ::testing::HasSubstr("the same release"));
}

struct Stranger {
  const char* name;
  std::function<void(Visitors&, const std::string& offered)> visit;
};

class StrangerTest : public ::testing::TestWithParam<Stranger> {};

// Strangers are at every port before the peers are told of it.
TEST_P(StrangerTest, NeitherJoinsAGroupNorHoldsItUp) {
  Visitors visitors;
  World world(Kind::kGloo, 0);
  world.set_on_offer([&](const std::string& offered) {
    GetParam().visit(visitors, offered.substr(1));  // Behind the kind of link.
  });
  for (int rank = 0; rank < 3; ++rank) world.Join();
  world.Begin();
  world.ExpectSums();
  // And again, over fresh links.
  world.Abort();
  world.Relink();
  world.Begin();
  world.ExpectSums();
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, StrangerTest,
    ::testing::Values(
        Stranger{"Silent", [](Visitors& v, const std::string& to) { v.Come(to, ""); }},
        Stranger{"Wrong",
                 [](Visitors& v, const std::string& to) { v.Come(to, std::string(64, 'x')); }},
        Stranger{"HalfRight",
                 [](Visitors& v, const std::string& to) {
                   v.Come(to, SecretOf(to).substr(0, kSecretBytes / 2));
                   // Whatever the last byte is, it is another.
                   std::string last_wrong = SecretOf(to);
                   last_wrong.back() = static_cast<char>(~last_wrong.back());
                   v.Come(to, last_wrong + "more");
                 }},
        Stranger{"Gone",
                 [](Visitors& v, const std::string& to) {
                   v.Come(to, "");
                   v.Leave();
                 }},
        Stranger{"Flood",
                 [](Visitors& v, const std::string& to) {
                   v.Leave();
                   for (int i = 0; i < 300; ++i) v.Come(to, "");
                 }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace troupe::groups
