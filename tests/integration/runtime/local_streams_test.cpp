// The transport between processes of one host, and what a peer can do to it that is no transport of
// ours: send what makes no sense, stop reading, or end in the middle of a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <thread>

#include "runtime/internal/frame_reader.h"
#include "runtime/internal/local_streams.h"
#include "tests/integration/runtime/inbox.h"
#include "tests/integration/runtime/temp_dir.h"

namespace troupe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::Inbox;
using tests::MakeNode;
using tests::Node;

// The other end of a link, in the test's hands.
class RawPeer {
 public:
  explicit RawPeer(int fd) : fd_(fd) {}
  ~RawPeer() { ::close(fd_); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  static std::unique_ptr<RawPeer> Connect(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = AddressOf(path);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return std::make_unique<RawPeer>(fd);
  }

  void Write(const std::string& bytes) const {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void WriteFrame(const std::string& frame) const { Write(Framed(frame)); }
  static std::string Framed(const std::string& frame) {
    const internal::FrameHeader header = internal::HeaderOf(frame);
    return std::string(header.data(), header.size()) + frame;
  }
  // Whether the other side ends the connection.
  [[nodiscard]] bool Ended() const {
    pollfd waiting{fd_, POLLIN, 0};
    char byte = 0;
    return ::poll(&waiting, 1, 20'000) == 1 && ::recv(fd_, &byte, 1, MSG_DONTWAIT) <= 0;
  }

 private:
  const int fd_;
};

class LocalStreamsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Node> Make(const std::string& name, bool queue = true) {
    ZmqTransportOptions options;
    options.name = name;
    options.queue_while_connecting = queue;
    return MakeNode(options);
  }
  [[nodiscard]] std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }
  PeerAddress Listen(Node& node) const {
    return node.transport->Listen("ipc://" + Path(node.transport->self())).value();
  }
  // That the node goes on: another link to it works.
  void ExpectAtWork(Node& node) {
    const auto other = Make("other");
    ASSERT_TRUE(other->transport
                    ->Connect({node.transport->self(), "ipc://" + Path(node.transport->self()), ""})
                    .ok());
    const size_t before = node.inbox.Count();
    ASSERT_TRUE(other->transport->Send(node.transport->self(), "still there?").ok());
    EXPECT_EQ(node.inbox.Wait(before + 1).back(),
              std::pair(std::string("other"), std::string("still there?")));
  }

  tests::TempDir dir_;
};

TEST_F(LocalStreamsTest, WhatMakesNoSenseEndsItsConnectionOnly) {
  const auto node = Make("node");
  Listen(*node);
  const std::string too_long(129, 'n');
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), RawPeer::Framed(""), RawPeer::Framed(too_long),
        RawPeer::Framed("name") + "\xff\xff\xff\xff" + "GET / HTTP/1.1"}) {
    const auto peer = RawPeer::Connect(Path("node"));
    peer->Write(bytes);
    EXPECT_TRUE(peer->Ended());
  }
  EXPECT_EQ(node->inbox.Count(), 0U);
  ExpectAtWork(*node);
}

TEST_F(LocalStreamsTest, APeerThatEndsInTheMiddleOfAFrameHasNotSentIt) {
  const auto node = Make("node");
  Listen(*node);
  {
    const auto peer = RawPeer::Connect(Path("node"));
    peer->WriteFrame("peer");
    peer->WriteFrame("whole");
    peer->Write(RawPeer::Framed("half of it").substr(0, 8));
    node->inbox.Wait(1);
  }
  ExpectAtWork(*node);
  EXPECT_EQ(node->inbox.Wait(2).front(), std::pair(std::string("peer"), std::string("whole")));
  ASSERT_TRUE(node->transport->Send("peer", "too late").ok());
  EXPECT_THAT(node->inbox.WaitDropped(1), ElementsAre("peer"));
}

TEST_F(LocalStreamsTest, WhoConnectsAndSaysNothingIsPutOut) {
  const auto node = Make("node");
  Listen(*node);
  const auto silent = RawPeer::Connect(Path("node"));
  EXPECT_TRUE(silent->Ended());
  ExpectAtWork(*node);
}

// What it does not read is kept up to a number of frames; then the sender is told, and never waits.
TEST_F(LocalStreamsTest, APeerThatDoesNotReadCostsABoundedQueue) {
  const auto node = Make("node");
  Listen(*node);
  const auto deaf = RawPeer::Connect(Path("node"));
  deaf->WriteFrame("deaf");
  deaf->WriteFrame("hello");
  node->inbox.Wait(1);
  const std::string frame(1000, 'x');
  constexpr int kInTheKernel = 5000;  // More than its buffers take.
  for (int i = 0; i < kTransportQueueMessagesMax + kInTheKernel; ++i) {
    ASSERT_TRUE(node->transport->Send("deaf", frame).ok());
  }
  EXPECT_THAT(node->inbox.WaitDropped(1), Each("deaf"));
  ExpectAtWork(*node);
}

TEST_F(LocalStreamsTest, APeerThatDoesNotReadCostsABoundedNumberOfBytes) {
  const auto client = Make("client", false);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const RawPeer owner(listening);
  const sockaddr_un address = RawPeer::AddressOf(Path("deaf"));
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening, 1), 0);
  ASSERT_TRUE(client->transport->Connect({"deaf", "ipc://" + Path("deaf"), ""}).ok());
  const std::string large(size_t{8} << 20, 'l');
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client->transport->Send("deaf", large).ok());
  EXPECT_GE(client->inbox.WaitDropped(10).size(), 10U);
}

TEST_F(LocalStreamsTest, BothSidesCanSendMoreThanTheKernelKeeps) {
  const auto server = Make("server");
  const auto client = Make("client");
  ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
  ASSERT_TRUE(client->transport->Send("server", "hello").ok());
  server->inbox.Wait(1);
  const std::string large(size_t{8} << 20, 'l');
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(client->transport->Send("server", large).ok());
    ASSERT_TRUE(server->transport->Send("client", large).ok());
  }
  for (const auto& [from, frame] : client->inbox.Wait(4)) EXPECT_TRUE(frame == large);
  EXPECT_TRUE(server->inbox.Wait(5).back().second == large);
}

TEST_F(LocalStreamsTest, FramesOfEachThreadArriveInOrder) {
  constexpr int kThreads = 4;
  constexpr int kFrames = 2000;  // Together fewer than a queue takes.
  const auto server = Make("server");
  const auto client = Make("client");
  ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&client, t] {
      for (int i = 0; i < kFrames; ++i) {
        const std::string frame = std::to_string(t) + " " + std::to_string(i);
        EXPECT_TRUE(client->transport->Send("server", frame).ok());
        // Some in floods, some alone.
        if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int> next;
  for (const auto& [from, frame] : server->inbox.Wait(size_t{kThreads} * kFrames)) {
    const size_t space = frame.find(' ');
    ASSERT_EQ(frame.substr(space + 1), std::to_string(next[frame.substr(0, space)]++)) << frame;
  }
}

// Frames that wait for a link survive any number of its breaks, each whole and once.
TEST_F(LocalStreamsTest, WhatWaitsOutlivesABreak) {
  const auto client = Make("client");
  const std::string path = Path("server");
  ASSERT_TRUE(client->transport->Connect({"server", "ipc://" + path, ""}).ok());
  ASSERT_TRUE(client->transport->Send("server", "first").ok());
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = RawPeer::AddressOf(path);
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listening, 1), 0);
  {
    const RawPeer deaf(::accept(listening, nullptr, nullptr));  // It takes in what fits, no more.
    const std::string large(size_t{4} << 20, 'l');
    ASSERT_TRUE(client->transport->Send("server", large).ok());
    ASSERT_TRUE(client->transport->Send("server", "last").ok());
    std::filesystem::remove(path);
  }
  ::close(listening);
  const auto server = Make("server");
  Listen(*server);
  Inbox::Frames frames = server->inbox.Wait(2);
  if (frames[0].second == "first") frames = server->inbox.Wait(3);  // It had not left before.
  frames.erase(frames.begin(), frames.end() - 2);
  EXPECT_EQ(frames[0].second.size(), size_t{4} << 20);
  EXPECT_EQ(frames[1].second, "last");
}

// While a sender goes on sending: what is just being written has its place before what waits.
TEST_F(LocalStreamsTest, ABreakInAFloodLeavesTheRestInOrder) {
  constexpr int kFrames = 8000;  // Fewer than a queue takes.
  const auto client = Make("client");
  const std::string path = Path("server");
  ASSERT_TRUE(client->transport->Connect({"server", "ipc://" + path, ""}).ok());
  const std::string padding(500, 'p');  // So that not all of them fit into the kernel's buffers.
  std::thread sender([&] {
    for (int i = 0; i < kFrames; ++i)
      EXPECT_TRUE(client->transport->Send("server", std::to_string(i) + " " + padding).ok());
  });
  for (int life = 0; life < 3; ++life) {
    const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const RawPeer owner(listening);
    const sockaddr_un address = RawPeer::AddressOf(path);
    ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listening, 1), 0);
    const int accepted = ::accept(listening, nullptr, nullptr);
    const RawPeer peer(accepted);
    std::string some(100'000, ' ');
    EXPECT_GT(::recv(accepted, some.data(), some.size(), MSG_WAITALL), 0);
    std::filesystem::remove(path);
  }
  const auto server = Make("server");
  Listen(*server);
  sender.join();
  ASSERT_TRUE(client->transport->Send("server", std::to_string(kFrames) + " ").ok());
  const auto number = [](const Inbox::Frames& frames, size_t i) {
    return std::stoi(frames[i].second);
  };
  Inbox::Frames frames = server->inbox.Wait(1);
  while (number(frames, frames.size() - 1) < kFrames) {
    const size_t before = frames.size();
    frames = server->inbox.Wait(before + 1);
    ASSERT_GT(frames.size(), before) << "the last one has not come";
  }
  for (size_t i = 1; i < frames.size(); ++i)
    ASSERT_EQ(number(frames, i), number(frames, i - 1) + 1);
}

TEST_F(LocalStreamsTest, WhoComesWhenNoDescriptorIsLeftIsTakenInLater) {
  const auto node = Make("node");
  Listen(*node);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const RawPeer peer(socket);
  rlimit none = before;  // The lowest number that is free is taken next.
  none.rlim_cur = static_cast<rlim_t>(::dup(socket));
  ::close(static_cast<int>(none.rlim_cur));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const sockaddr_un address = RawPeer::AddressOf(Path("node"));
  ASSERT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  peer.WriteFrame("peer");
  peer.WriteFrame("patient");
  std::promise<void> turned;  // The loop has seen it, and goes on.
  node->transport->loop().Post(
      [&] { node->transport->loop().CallAfter(milliseconds(50), [&] { turned.set_value(); }); });
  ASSERT_EQ(turned.get_future().wait_for(tests::kSoon), std::future_status::ready);
  EXPECT_EQ(node->inbox.Count(), 0U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(node->inbox.Wait(1), ElementsAre(std::pair("peer", "patient")));
}

TEST_F(LocalStreamsTest, ALinkIsReplacedByOneToAnotherPlace) {
  const auto first = Make("first");
  const auto second = Make("second");
  const auto client = Make("client");
  PeerAddress address = Listen(*first);
  address.peer = "peer";
  ASSERT_TRUE(client->transport->Connect(address).ok());
  address.endpoint = Listen(*second).endpoint;
  ASSERT_TRUE(client->transport->Connect(address).ok());
  ASSERT_TRUE(client->transport->Send("peer", "x").ok());
  EXPECT_THAT(second->inbox.Wait(1), ElementsAre(std::pair("client", "x")));
  EXPECT_EQ(first->inbox.Count(), 0U);
}

TEST_F(LocalStreamsTest, AStaleSocketIsTakenOverAFileIsNot) {
  const auto node = Make("node");
  std::ofstream(Path("notes")) << "keep me";
  const auto refused = node->transport->Listen("ipc://" + Path("notes"));
  EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.error().message, HasSubstr(Path("notes")));
  EXPECT_EQ(std::filesystem::file_size(Path("notes")), 7U);

  auto older = Make("node");
  Listen(*older);
  Listen(*node);
  older.reset();  // It must not remove what is not its own any more.
  ExpectAtWork(*node);
}

TEST_F(LocalStreamsTest, APathThatNoSocketCanHaveIsAClearError) {
  const auto node = Make("node");
  const std::string endpoint = "ipc://" + Path(std::string(120, 'x'));
  EXPECT_THAT(node->transport->Listen(endpoint).error().message, HasSubstr("1 to 107 bytes"));
  const Status connected = node->transport->Connect({"p", endpoint, ""});
  EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(connected.error().message, HasSubstr(endpoint));
}

}  // namespace
}  // namespace troupe
