// A listener on tcp with few descriptors, and more strangers that connect to it and say nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>
#include <thread>
#include <vector>

#include "runtime/process.h"
#include "runtime/transport.h"
#include "tests/integration/runtime/child_lines.h"
#include "tests/integration/runtime/inbox.h"

namespace troupe {
namespace {

using tests::Node;

constexpr int kDescriptors = 96;
constexpr int kStrangers = 150;
// Strangers are let go after 5 s, and as many as fit come after them.
constexpr Duration kThrough = seconds(25);

class ConnectionFloodTest : public ::testing::Test {
 protected:
  ConnectionFloodTest() {
    SpawnOptions options;
    options.argv = {TROUPE_PROCESS_HELPER, "listen", std::to_string(kDescriptors)};
    options.capture_output = true;
    server_ = std::move(Spawn(options).value());
    std::istringstream line(tests::ReadLine(server_.stdout_fd()));
    line >> address_.endpoint >> keys_.public_key >> keys_.secret_key;
    address_.peer = "server";
    address_.public_key = keys_.public_key;
  }
  ~ConnectionFloodTest() override {
    for (const int fd : strangers_) ::close(fd);
    server_.Kill(SIGKILL);
    (void)server_.WaitFor(seconds(5));
  }

  // Connects without waiting: who finds the queue of the listener full is let in later.
  void AddStrangers() {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string& endpoint = address_.endpoint;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    for (int i = 0; i < kStrangers; ++i) {
      strangers_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)!::connect(strangers_.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
  [[nodiscard]] std::unique_ptr<Node> Join(const std::string& name) const {
    ZmqTransportOptions options;
    options.name = name;
    options.keys = keys_;
    auto node = tests::MakeNode(options);
    EXPECT_TRUE(node->transport->Connect(address_).ok());
    return node;
  }
  // Whether the server answers in time; asks again and again, as all of the protocol does.
  static bool Answers(Node& node) {
    const size_t before = node.inbox.Count();
    const Time deadline = SteadyClock().Now() + kThrough;
    while (node.inbox.Count() == before && SteadyClock().Now() < deadline) {
      (void)node.transport->Send("server", "hello");
      std::this_thread::sleep_for(milliseconds(20));
    }
    return node.inbox.Count() > before;
  }

  ChildProcess server_;
  PeerAddress address_;
  CurveKeys keys_;
  std::vector<int> strangers_;
};

TEST_F(ConnectionFloodTest, IdleStrangersKeepNobodyOutForLong) {
  const auto before = Join("before");
  ASSERT_TRUE(Answers(*before));
  AddStrangers();
  EXPECT_TRUE(Answers(*before)) << "who was there is not disturbed";
  const Time begun = SteadyClock().Now();
  const auto after = Join("after");
  EXPECT_TRUE(Answers(*after));
  RecordProperty("seconds", std::to_string(ToSeconds(SteadyClock().Now() - begun)));
  EXPECT_TRUE(Answers(*before));
  EXPECT_FALSE(server_.TryReap().has_value());
}

}  // namespace
}  // namespace troupe
