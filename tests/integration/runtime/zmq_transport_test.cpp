// The transport over ZeroMQ, between transports of this process: ipc, tcp with CURVE, who is let
// in, what happens when a peer comes back.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <zmq.hpp>

#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/transport.h"
#include "runtime/wire.h"
#include "tests/integration/runtime/inbox.h"
#include "tests/integration/runtime/resources.h"
#include "tests/integration/runtime/temp_dir.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::Inbox;
using tests::kSoon;
using tests::Node;

class ZmqTransportTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Node> Make(const std::string& name, bool queue = true) {
    ZmqTransportOptions options;
    options.name = name;
    options.keys = keys_;
    options.queue_while_connecting = queue;
    return Make(options);
  }
  static std::unique_ptr<Node> Make(const ZmqTransportOptions& options) {
    return tests::MakeNode(options);
  }
  [[nodiscard]] std::string Endpoint(const std::string& name) const {
    return GetParam() ? "tcp://127.0.0.1:*" : "ipc://" + dir_.path() + "/" + name;
  }
  PeerAddress Listen(Node& node) {
    Result<PeerAddress> address = node.transport->Listen(Endpoint(node.transport->self()));
    EXPECT_TRUE(address.ok()) << address.error().message;
    return *address;
  }
  // Repeats a frame until one arrives: how a link that drops while it connects is known to be up.
  static void SendUntilArrived(Node& from, const std::string& to, Inbox& inbox) {
    const size_t before = inbox.Count();
    const Time deadline = SteadyClock().Now() + kSoon;
    while (inbox.Count() == before) {
      ASSERT_LT(SteadyClock().Now(), deadline);
      (void)from.transport->Send(to, "knock");  // The queue may be full of earlier ones.
      std::this_thread::yield();
    }
  }

  tests::TempDir dir_;
  CurveKeys keys_ = *GenerateCurveKeys();
};

INSTANTIATE_TEST_SUITE_P(Networks, ZmqTransportTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "Ipc"; });

TEST_P(ZmqTransportTest, BothEndsOfALinkSendByName) {
  const auto server = Make("server");
  const auto client = Make("client#1");
  ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
  ASSERT_TRUE(client->transport->Send("server", "question").ok());
  EXPECT_THAT(server->inbox.Wait(1), ElementsAre(std::pair("client#1", "question")));
  ASSERT_TRUE(server->transport->Send("client#1", "answer").ok());
  EXPECT_THAT(client->inbox.Wait(1), ElementsAre(std::pair("server", "answer")));
}

TEST_P(ZmqTransportTest, FramesOfEachSenderArriveInOrder) {
  constexpr int kFrames = 3000;
  constexpr int kClients = 3;
  const auto server = Make("server");
  const PeerAddress address = Listen(*server);
  std::vector<std::unique_ptr<Node>> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.push_back(Make("client" + std::to_string(c)));
    ASSERT_TRUE(clients.back()->transport->Connect(address).ok());
  }
  for (int i = 0; i < kFrames; ++i) {
    for (const auto& client : clients) {
      ASSERT_TRUE(client->transport->Send("server", std::to_string(i)).ok());
    }
  }
  std::map<std::string, int> next;
  for (const auto& [from, frame] : server->inbox.Wait(size_t{kFrames} * kClients)) {
    ASSERT_EQ(frame, std::to_string(next[from]++)) << from;
  }
  EXPECT_EQ(next.size(), size_t{kClients});
}

TEST_P(ZmqTransportTest, EmptyBinaryAndLargeFramesArriveWhole) {
  const auto server = Make("server");
  const auto client = Make("client");
  ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
  std::string large(size_t{32} << 20, '\0');
  for (size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
  for (const std::string& frame : {std::string(), std::string("\0\xff", 2), large}) {
    ASSERT_TRUE(client->transport->Send("server", frame).ok());
  }
  const Inbox::Frames frames = server->inbox.Wait(3);
  EXPECT_EQ(frames[0].second, "");
  EXPECT_EQ(frames[1].second, std::string("\0\xff", 2));
  EXPECT_TRUE(frames[2].second == large);
}

TEST_P(ZmqTransportTest, AFrameOverTheLimitIsRefusedWithItsSize) {
  const auto node = Make("n");
  std::string huge(wire::kWireFrameBytesMax + 1, '\0');
  const Status sent = node->transport->Send("n", std::move(huge));
  EXPECT_EQ(sent.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(sent.error().message, HasSubstr("268435457 bytes"));
}

TEST_P(ZmqTransportTest, AnUnknownPeerIsReportedAsDropped) {
  const auto node = Make("server");
  Listen(*node);
  ASSERT_TRUE(node->transport->Send("nobody", "x").ok());
  EXPECT_THAT(node->inbox.WaitDropped(1), ElementsAre("nobody"));
}

TEST_P(ZmqTransportTest, FramesToAPeerThatIsNotUpYetWaitOrAreDropped) {
  auto server = Make("server");
  const PeerAddress address = Listen(*server);
  server.reset();
  const auto patient = Make("patient", true);
  const auto hasty = Make("hasty", false);
  for (Node* node : {patient.get(), hasty.get()}) {
    ASSERT_TRUE(node->transport->Connect(address).ok());
    ASSERT_TRUE(node->transport->Send("server", "early").ok());
  }
  EXPECT_THAT(hasty->inbox.WaitDropped(1), ElementsAre("server"));
  server = Make("server");
  ASSERT_TRUE(server->transport->Listen(address.endpoint).ok());
  EXPECT_THAT(server->inbox.Wait(1), ElementsAre(std::pair("patient", "early")));
}

TEST_P(ZmqTransportTest, APeerThatRestartsIsFoundAgain) {
  const auto client = Make("client", false);
  PeerAddress address;
  for (int life = 0; life < 3; ++life) {
    const auto server = Make("server");
    if (life == 0) {
      address = Listen(*server);
      ASSERT_TRUE(client->transport->Connect(address).ok());
    } else {
      ASSERT_TRUE(server->transport->Listen(address.endpoint).ok());
    }
    SendUntilArrived(*client, "server", server->inbox);
    const size_t before = client->inbox.Count();
    ASSERT_TRUE(server->transport->Send("client", std::to_string(life)).ok());
    EXPECT_EQ(client->inbox.Wait(before + 1).back().second, std::to_string(life));
  }
}

// A client that was cut off without a word is still connected in the server's eyes.
TEST_P(ZmqTransportTest, AClientThatComesBackUnderItsNameTakesOver) {
  const auto server = Make("server");
  const PeerAddress address = Listen(*server);
  std::vector<std::unique_ptr<Node>> lives;
  for (size_t life = 0; life < 3; ++life) {
    Node& client = *lives.emplace_back(Make("client"));
    ASSERT_TRUE(client.transport->Connect(address).ok());
    ASSERT_TRUE(client.transport->Send("server", "hello").ok());
    server->inbox.Wait(life + 1);
    ASSERT_TRUE(server->transport->Send("client", std::to_string(life)).ok());
    EXPECT_THAT(client.inbox.Wait(1), ElementsAre(std::pair("server", std::to_string(life))));
  }
}

TEST_P(ZmqTransportTest, ADisconnectedPeerIsUnknown) {
  const auto server = Make("server");
  const auto client = Make("client");
  ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
  ASSERT_TRUE(client->transport->Send("server", "1").ok());
  server->inbox.Wait(1);
  client->transport->Disconnect("server");
  ASSERT_TRUE(client->transport->Send("server", "2").ok());
  EXPECT_THAT(client->inbox.WaitDropped(1), ElementsAre("server"));
}

TEST_P(ZmqTransportTest, BadEndpointsAreClearErrors) {
  const auto node = Make("n");
  for (const std::string endpoint : {"nonsense", "ipc:///nonexistent/dir/x", "tcp://nohost:x"}) {
    const Result<PeerAddress> bound = node->transport->Listen(endpoint);
    ASSERT_FALSE(bound.ok()) << endpoint;
    EXPECT_THAT(bound.error().message, HasSubstr(endpoint));
  }
  EXPECT_THAT(node->transport->Connect({"p", "nonsense", ""}).error().message,
              HasSubstr("nonsense"));
}

TEST_P(ZmqTransportTest, NamesHaveALimit) {
  ZmqTransportOptions options;
  EXPECT_EQ(MakeZmqTransport(options).error().code, ErrorCode::kInvalidArgument);
  options.name = std::string(129, 'n');
  EXPECT_EQ(MakeZmqTransport(options).error().code, ErrorCode::kInvalidArgument);
  options.name = std::string(128, 'n');
  EXPECT_TRUE(MakeZmqTransport(options).ok());
}

TEST_P(ZmqTransportTest, OpeningAndClosingLeavesNothingBehind) {
  const auto once = [this] {
    const auto server = Make("server");
    const auto client = Make("client");
    ASSERT_TRUE(client->transport->Connect(Listen(*server)).ok());
    ASSERT_TRUE(client->transport->Send("server", "x").ok());
    server->inbox.Wait(1);
  };
  for (int i = 0; i < 3; ++i) once();
  const size_t descriptors = tests::OpenDescriptors();
  const size_t threads = tests::Threads();
  for (int i = 0; i < 100; ++i) once();
  EXPECT_EQ(tests::OpenDescriptors(), descriptors);
  EXPECT_EQ(tests::Threads(), threads);
}

// The C library gives the id of a thread that has ended to one of the next.
TEST(StoppedLoopTest, IsNotTheLoopOfALaterThreadOfTheSameId) {
  ZmqTransportOptions options;
  options.name = "stopped";
  std::unique_ptr<Transport> transport = MakeZmqTransport(options).value();
  std::promise<std::thread::id> told;
  transport->loop().Post([&] { told.set_value(std::this_thread::get_id()); });
  const std::thread::id ended = told.get_future().get();
  transport->Stop();
  bool had_the_id = false;
  for (int tries = 0; !had_the_id && tries < 1000; ++tries) {
    std::thread([&] {
      had_the_id = std::this_thread::get_id() == ended;
      if (!had_the_id) return;
      EXPECT_FALSE(transport->InLoop());
      EXPECT_EQ(transport->Send("nobody", "frame").error().code, ErrorCode::kCancelled);
      transport.reset();  // Waits for the loop, which a thread of the loop must not do.
    }).join();
  }
  EXPECT_TRUE(had_the_id);
}

// A thread whose fiber has just become ready sleeps only if it has not heard of it.
TEST(SharedLoopTest, AWakeThatSomebodyElseHasTakenIsNotLost) {
  ZmqTransportOptions options;
  options.name = "shared";
  options.shared_loop = true;
  const auto transport = MakeZmqTransport(options).value();
  transport->WakeHelper();
  std::this_thread::sleep_for(milliseconds(20));  // The loop's own thread takes it.
  const Time begun = SteadyClock().Now();
  EXPECT_TRUE(transport->Help(begun + seconds(5)));
  EXPECT_LT(SteadyClock().Now() - begun, milliseconds(900));  // One that is lost costs a second.
}

// ---- who is let in over tcp ----

using ZmqCurveTest = ZmqTransportTest;
INSTANTIATE_TEST_SUITE_P(Networks, ZmqCurveTest, ::testing::Values(true),
                         [](const auto&) { return "Tcp"; });

TEST_P(ZmqCurveTest, AnAllowedKeyIsLetInAndAnUnknownOneIsNot) {
  ZmqTransportOptions options;
  options.name = "server";
  options.keys = keys_;
  const CurveKeys guest = *GenerateCurveKeys();
  options.allowed_keys = {guest.public_key};
  const auto server = Make(options);
  const PeerAddress address = Listen(*server);

  ZmqTransportOptions stranger_options;
  stranger_options.name = "stranger";
  stranger_options.keys = *GenerateCurveKeys();
  stranger_options.queue_while_connecting = true;
  const auto stranger = Make(stranger_options);
  ASSERT_TRUE(stranger->transport->Connect(address).ok());
  ASSERT_TRUE(stranger->transport->Send("server", "let me in").ok());

  ZmqTransportOptions guest_options = stranger_options;
  guest_options.name = "guest";
  guest_options.keys = guest;
  const auto friendly = Make(guest_options);
  ASSERT_TRUE(friendly->transport->Connect(address).ok());
  // The stranger has connected before and retries all the while.
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(friendly->transport->Send("server", "hello").ok());
    server->inbox.Wait(static_cast<size_t>(i) + 1);
    ASSERT_TRUE(server->transport->Send("guest", "hello").ok());
    friendly->inbox.Wait(static_cast<size_t>(i) + 1);
  }
  for (const auto& [from, frame] : server->inbox.Wait(20)) EXPECT_EQ(from, "guest");
  ASSERT_TRUE(server->transport->Send("stranger", "x").ok());
  EXPECT_THAT(server->inbox.WaitDropped(1), ElementsAre("stranger"));
}

// Events of a plain ZeroMQ client's socket until its handshake ends.
std::string HandshakeOf(zmq::context_t& context, zmq::socket_t& socket,
                        const std::string& endpoint) {
  if (zmq_socket_monitor(socket.handle(), "inproc://events", ZMQ_EVENT_ALL) != 0) return "monitor";
  zmq::socket_t events(context, zmq::socket_type::pair);
  events.set(zmq::sockopt::rcvtimeo, 20'000);
  events.connect("inproc://events");
  socket.connect(endpoint);
  socket.send(zmq::str_buffer("let me in"), zmq::send_flags::dontwait);
  for (;;) {
    zmq::message_t event;
    zmq::message_t address;
    if (!events.recv(event) || !events.recv(address)) return "nothing";
    uint16_t number = 0;
    std::memcpy(&number, event.data(), sizeof number);
    if (number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return "accepted";
    if (number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return "refused by key";
    if (number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
        number == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || number == ZMQ_EVENT_DISCONNECTED) {
      return "refused";
    }
  }
}

TEST_P(ZmqCurveTest, ClientsOfOtherProgramsAreRefusedUnlessTheirKeyIsAllowed) {
  const std::string log = dir_.path() + "/log";
  InitLogging("test", log);
  const auto server = Make("server");
  const PeerAddress address = Listen(*server);
  const auto attempt = [&](const CurveKeys* keys, const std::string& server_key) {
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    if (keys != nullptr) {
      socket.set(zmq::sockopt::curve_serverkey, server_key);
      socket.set(zmq::sockopt::curve_publickey, keys->public_key);
      socket.set(zmq::sockopt::curve_secretkey, keys->secret_key);
    }
    return HandshakeOf(context, socket, address.endpoint);
  };
  const CurveKeys unknown = *GenerateCurveKeys();
  EXPECT_EQ(attempt(nullptr, ""), "refused");                          // No encryption.
  EXPECT_EQ(attempt(&unknown, address.public_key), "refused by key");  // Not on the list.
  EXPECT_EQ(attempt(&keys_, unknown.public_key), "refused");           // Another server's key.
  EXPECT_EQ(server->inbox.Count(), 0U);
  EXPECT_EQ(attempt(&keys_, address.public_key), "accepted");
  EXPECT_EQ(server->inbox.Wait(1)[0].second, "let me in");
  InitLogging("test");
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("refused a connection from 127.0.0.1: its key " +
                                    unknown.public_key + " is not allowed"));
}

// Who has not shown a key sends a command of 64 MiB, as ZeroMQ's protocol writes it.
TEST_P(ZmqCurveTest, AStrangerCannotMakeItHoldALargeMessage) {
  const auto server = Make("server");
  const std::string endpoint = Listen(*server).endpoint;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port =
      htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0", 12) + "CURVE";
  greeting.resize(64, '\0');
  constexpr size_t kBytes = size_t{64} << 20;
  std::string header("\x06", 1);
  for (int shift = 56; shift >= 0; shift -= 8)
    header.push_back(static_cast<char>(kBytes >> shift & 0xff));
  const std::string body(size_t{1} << 20, 'x');
  const auto send = [&](const std::string& bytes) {
    return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  };
  ASSERT_TRUE(send(greeting));
  bool taken = send(header);
  for (size_t sent = 0; taken && sent < kBytes; sent += body.size()) taken = send(body);
  EXPECT_FALSE(taken);
  ::close(fd);
}

TEST_P(ZmqCurveTest, APortInUseIsAClearError) {  // An ipc path would be taken over.
  const auto first = Make("first");
  const auto second = Make("second");
  const std::string endpoint = Listen(*first).endpoint;
  const Result<PeerAddress> taken = second->transport->Listen(endpoint);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(taken.error().message, HasSubstr("cannot listen on " + endpoint));
}

TEST_P(ZmqCurveTest, TcpWithoutKeysIsRefusedOnBothSides) {
  ZmqTransportOptions options;
  options.name = "n";
  const auto node = Make(options);
  EXPECT_THAT(node->transport->Listen("tcp://127.0.0.1:*").error().message,
              HasSubstr("needs the cluster's key pair"));
  EXPECT_EQ(node->transport->Connect({"p", "tcp://127.0.0.1:1", keys_.public_key}).error().code,
            ErrorCode::kInvalidArgument);
  for (const Error& error : {node->transport->Listen("nonsense").error(),
                             node->transport->Connect({"p", "nonsense", ""}).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message, HasSubstr("nonsense: an endpoint is tcp://"));
  }
  const auto keyed = Make("k");
  EXPECT_EQ(keyed->transport->Connect({"p", "tcp://127.0.0.1:1", ""}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(keyed->transport->Connect({"p", "tcp://127.0.0.1:1", "short"}).error().code,
            ErrorCode::kInvalidArgument);
}

// ---- key files ----

class KeyFilesTest : public ::testing::Test {
 protected:
  [[nodiscard]] static std::string Handshake(const CurveKeys& keys, const PeerAddress& at,
                                             const std::string& head_key) {
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::curve_serverkey, head_key);
    socket.set(zmq::sockopt::curve_publickey, keys.public_key);
    socket.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    return HandshakeOf(context, socket, at.endpoint);
  }
  static std::unique_ptr<Node> MakeWith(const std::string& name, const CurveKeys& keys,
                                        std::vector<std::string> allowed = {}) {
    ZmqTransportOptions options;
    options.name = name;
    options.keys = keys;
    options.allowed_keys = std::move(allowed);
    return tests::MakeNode(options);
  }

  tests::TempDir dir_;
  const std::string path_ = dir_.path() + "/key";
  const std::string head_path_ = path_ + ".head";
};

TEST_F(KeyFilesTest, AreMadeOncePrivateAndReadBack) {
  EXPECT_EQ(LoadClientKeys(path_).error().code, ErrorCode::kNotFound);
  const HeadKeys made = *LoadOrCreateHeadKeys(path_);
  EXPECT_FALSE(made.shared);
  for (const std::string& path : {path_, head_path_}) {
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
  }
  const ClientKeys client = *LoadClientKeys(path_);
  EXPECT_EQ(client.head_key, made.own.public_key);
  EXPECT_THAT(made.allowed, ElementsAre(client.own.public_key));
  EXPECT_EQ(LoadOrCreateHeadKeys(path_)->own.secret_key, made.own.secret_key);
  ::chmod(path_.c_str(), 0640);
  EXPECT_EQ(LoadClientKeys(path_).error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(LoadClientKeys(path_).error().message, HasSubstr("chmod 600 " + path_));
  ::chmod(path_.c_str(), 0600);
  std::ofstream(path_) << "short\nkeys\n";
  EXPECT_EQ(LoadClientKeys(path_).error().code, ErrorCode::kCorrupt);
}

TEST_F(KeyFilesTest, WhatIsCopiedToOtherHostsHasNoSecretOfTheHead) {
  const HeadKeys head = *LoadOrCreateHeadKeys(path_);
  std::stringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(head.own.public_key));
  EXPECT_EQ(text.str().find(head.own.secret_key), std::string::npos);
  // Nor does it make a head elsewhere.
  std::filesystem::remove(head_path_);
  const auto elsewhere = LoadOrCreateHeadKeys(path_);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_THAT(elsewhere.error().message, HasSubstr(head_path_ + ", is not here"));
}

TEST_F(KeyFilesTest, WhoHasAClientsKeysCannotStandInForTheHead) {
  const HeadKeys head_keys = *LoadOrCreateHeadKeys(path_);
  const ClientKeys client = *LoadClientKeys(path_);
  const auto head = MakeWith("head", head_keys.own, head_keys.allowed);
  const PeerAddress address = *head->transport->Listen("tcp://127.0.0.1:*");
  EXPECT_EQ(Handshake(client.own, address, client.head_key), "accepted");
  EXPECT_EQ(Handshake(*GenerateCurveKeys(), address, client.head_key), "refused by key");
  const auto impostor = MakeWith("impostor", client.own);
  const PeerAddress false_address = *impostor->transport->Listen("tcp://127.0.0.1:*");
  EXPECT_EQ(Handshake(client.own, false_address, client.head_key), "refused");
}

TEST_F(KeyFilesTest, OneOfAnEarlierReleaseStillServes) {
  const CurveKeys old = *GenerateCurveKeys();
  std::ofstream(path_) << old.public_key << "\n" << old.secret_key << "\n";
  ::chmod(path_.c_str(), 0600);
  const HeadKeys head = *LoadOrCreateHeadKeys(path_);
  EXPECT_TRUE(head.shared);
  EXPECT_EQ(head.own.secret_key, old.secret_key);
  const ClientKeys client = *LoadClientKeys(path_);
  EXPECT_EQ(client.head_key, old.public_key);
  EXPECT_EQ(client.own.secret_key, old.secret_key);
  EXPECT_FALSE(std::filesystem::exists(head_path_));
}

TEST_F(KeyFilesTest, TheClientsFileIsWrittenAgainAndThatOfAnotherClusterIsRefused) {
  const HeadKeys made = *LoadOrCreateHeadKeys(path_);
  const std::string client = LoadClientKeys(path_)->own.secret_key;
  std::filesystem::remove(path_);
  EXPECT_EQ(LoadOrCreateHeadKeys(path_)->own.secret_key, made.own.secret_key);
  EXPECT_EQ(LoadClientKeys(path_)->own.secret_key, client);
  const std::string other = dir_.path() + "/other";
  ASSERT_TRUE(LoadOrCreateHeadKeys(other).ok());
  std::filesystem::rename(other, path_);
  EXPECT_THAT(LoadOrCreateHeadKeys(path_).error().message, HasSubstr("of two clusters"));
}

TEST_F(KeyFilesTest, WhoSeesAFileSeesAllOfItAndEverybodyHasTheSame) {
  for (int round = 0; round < 50; ++round) {
    const tests::TempDir dir;
    const std::string path = dir.path() + "/key";
    std::vector<std::future<std::string>> makers;
    for (int n = 0; n < 4; ++n) {
      makers.push_back(std::async(std::launch::async, [&path, n] {
        if (n > 0) return LoadOrCreateHeadKeys(path).value().allowed[0];
        while (::access(path.c_str(), F_OK) != 0) std::this_thread::yield();
        return LoadClientKeys(path).value().own.public_key;
      }));
    }
    std::set<std::string> keys;
    for (auto& maker : makers) keys.insert(maker.get());
    EXPECT_EQ(keys.size(), 1U);
    const std::filesystem::directory_iterator files(dir.path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 2);  // No draft is left.
  }
}

// ---- the loop ----

class ZmqLoopTest : public ::testing::Test {
 protected:
  std::unique_ptr<Transport> transport_ = [] {
    ZmqTransportOptions options;
    options.name = "n";
    return MakeZmqTransport(options).value();
  }();
  EventLoop& loop_ = transport_->loop();

  // Runs `fn` on the loop; it fulfils the promise when it is content.
  template <class F>
  bool OnLoop(F fn) {
    auto done = std::make_shared<std::promise<void>>();
    loop_.Post([fn, done]() mutable { fn(done); });
    return done->get_future().wait_for(kSoon) == std::future_status::ready;
  }
};

TEST_F(ZmqLoopTest, PostedFunctionsRunInOrderOnOneThread) {
  auto seen = std::make_shared<std::vector<int>>();
  auto thread = std::make_shared<std::thread::id>();
  loop_.Post([thread] { *thread = std::this_thread::get_id(); });
  for (int i = 0; i < 100; ++i) {
    loop_.Post([seen, thread, i] {
      if (std::this_thread::get_id() == *thread) seen->push_back(i);
    });
  }
  ASSERT_TRUE(OnLoop([](auto done) { done->set_value(); }));
  ASSERT_EQ(seen->size(), 100U);
  EXPECT_TRUE(std::is_sorted(seen->begin(), seen->end()));
  EXPECT_TRUE(*thread != std::this_thread::get_id());
}

TEST_F(ZmqLoopTest, TimersRunWhenDueInOrderUnlessCancelled) {
  auto order = std::make_shared<std::string>();
  ASSERT_TRUE(OnLoop([this, order](auto done) {
    const Time start = loop_.Now();
    loop_.CallAfter(milliseconds(20), [this, order, done, start] {
      EXPECT_GE(loop_.Now() - start, milliseconds(20));
      *order += "c";
      done->set_value();
    });
    loop_.CallAfter(milliseconds(5), [order] { *order += "a"; });
    const TimerId cancelled = loop_.CallAfter(milliseconds(7), [order] { *order += "x"; });
    loop_.CallAfter(milliseconds(6), [this, order, cancelled] {
      *order += "b";
      loop_.Cancel(cancelled);
    });
  }));
  EXPECT_EQ(*order, "abc");
}

TEST_F(ZmqLoopTest, WatchedDescriptorsAreCalledOnReadAndOnHangUpUntilUnwatched) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  auto text = std::make_shared<std::string>();
  auto called_again = std::make_shared<std::atomic<int>>(0);
  const int read_end = fds[0];
  ASSERT_TRUE(OnLoop([&, read_end](auto done) {
    loop_.WatchFd(read_end, [this, read_end, text, done, called_again] {
      char c = 0;
      if (::read(read_end, &c, 1) == 1) {
        text->push_back(c);
        return;
      }
      ++*called_again;
      loop_.UnwatchFd(read_end);
      done->set_value();
    });
    EXPECT_EQ(::write(fds[1], "hi", 2), 2);
    ::close(fds[1]);
  }));
  EXPECT_EQ(*text, "hi");
  ASSERT_TRUE(OnLoop([](auto done) { done->set_value(); }));  // One more turn.
  EXPECT_EQ(*called_again, 1);
  ::close(read_end);
}

TEST_F(ZmqLoopTest, TheQueueOfOtherThreadsIsBounded) {
  std::promise<void> release;
  std::promise<void> held;
  loop_.Post([&] {
    held.set_value();
    release.get_future().wait_for(kSoon);
  });
  held.get_future().wait();
  for (int i = 0; i < kTransportQueueMessagesMax; ++i) {
    ASSERT_TRUE(transport_->Send("nobody", "x").ok());
  }
  EXPECT_EQ(transport_->Send("nobody", "x").error().code, ErrorCode::kBackpressure);
  release.set_value();
  ASSERT_TRUE(OnLoop([](auto done) { done->set_value(); }));
  EXPECT_TRUE(transport_->Send("nobody", "x").ok());
}

}  // namespace
}  // namespace troupe
