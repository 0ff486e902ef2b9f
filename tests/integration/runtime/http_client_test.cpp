#include "runtime/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kLook_ms = 10'000;  // For a test that fails.

// Answers one request with given bytes, and then closes the connection, or keeps it.
class OneAnswer {
 public:
  explicit OneAnswer(std::string bytes, bool keeps = false) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, name, size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, name, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, bytes = std::move(bytes), keeps] { Serve(bytes, keeps); });
  }
  ~OneAnswer() {
    over_.set_value();
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::string Url(const std::string& path = "/x") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  [[nodiscard]] const std::string& asked() const { return asked_; }

 private:
  void Serve(const std::string& bytes, bool keeps) {
    pollfd look{listener_, POLLIN, 0};
    if (::poll(&look, 1, kLook_ms) != 1) return;
    const int fd = ::accept(listener_, nullptr, nullptr);
    std::string got(4096, '\0');
    const ssize_t count = ::recv(fd, got.data(), got.size(), 0);
    asked_ = got.substr(0, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    if (keeps) (void)over_.get_future().wait_for(milliseconds(kLook_ms));
    ::close(fd);
  }

  int listener_ = -1;
  int port_ = 0;
  std::string asked_;
  std::promise<void> over_;
  std::thread thread_;
};

struct Streamed {
  int begun = 0;
  std::vector<std::string> lines;
  Result<HttpReply> reply = HttpReply{};
};

Streamed Stream(HttpClient& client, const std::string& url, Duration silence = seconds(10),
                size_t enough = 100, size_t line_max = 100) {
  Streamed streamed;
  HttpRequest request;
  request.url = url;
  request.limit = seconds(20);
  HttpStream stream;
  stream.silence = silence;
  stream.line_max = line_max;
  stream.line = [&](std::string_view line) {
    streamed.lines.emplace_back(line);
    return streamed.lines.size() < enough;
  };
  stream.begun = [&] { ++streamed.begun; };
  streamed.reply = client.Stream(request, stream);
  return streamed;
}

TEST(HttpClientTest, TellsLinesAsTheyComeAndNotHalfOnes) {
  const OneAnswer server("HTTP/1.0 200 OK\r\n\r\none\n\ntwo\nhal");
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url());
  EXPECT_THAT(streamed.lines, ElementsAre("one", "", "two"));
  ASSERT_TRUE(streamed.reply.ok());
  EXPECT_EQ(streamed.reply->status, 200);
  EXPECT_EQ(streamed.reply->body, "");
  EXPECT_EQ(streamed.begun, 1);
  EXPECT_THAT(server.asked(), StartsWith("GET /x HTTP/1.1"));
}

TEST(HttpClientTest, AStreamThatIsCutIsTold) {
  const OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none\n");
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url());
  EXPECT_THAT(streamed.lines, ElementsAre("one"));
  ASSERT_FALSE(streamed.reply.ok());
  EXPECT_EQ(streamed.reply.error().code, ErrorCode::kPeerGone);
}

TEST(HttpClientTest, SilenceEndsAStream) {
  const OneAnswer server("HTTP/1.1 200 OK\r\n\r\none\n", true);
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url(), milliseconds(100));
  EXPECT_THAT(streamed.lines, ElementsAre("one"));
  ASSERT_FALSE(streamed.reply.ok());
  EXPECT_EQ(streamed.reply.error().code, ErrorCode::kDeadlineExceeded);
}

TEST(HttpClientTest, WhoHasEnoughEndsAStream) {
  const OneAnswer server("HTTP/1.1 200 OK\r\n\r\none\ntwo\n", true);
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url(), seconds(10), 1);
  EXPECT_THAT(streamed.lines, ElementsAre("one"));
  EXPECT_TRUE(streamed.reply.ok());
}

TEST(HttpClientTest, AnEndlessLineIsRefused) {
  const OneAnswer server("HTTP/1.1 200 OK\r\n\r\none\n" + std::string(200, 'x'), true);
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url());
  EXPECT_THAT(streamed.lines, ElementsAre("one"));
  ASSERT_FALSE(streamed.reply.ok());
  EXPECT_EQ(streamed.reply.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(streamed.reply.error().message, HasSubstr("a line is longer than 100 bytes"));
}

TEST(HttpClientTest, AnotherReplyThanSuccessIsNoStream) {
  const OneAnswer server("HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\na\nb\n");
  HttpClient client;
  const Streamed streamed = Stream(client, server.Url());
  EXPECT_THAT(streamed.lines, ElementsAre());
  ASSERT_TRUE(streamed.reply.ok());
  EXPECT_EQ(streamed.reply->status, 410);
  EXPECT_EQ(streamed.reply->body, "a\nb\n");
  EXPECT_EQ(streamed.begun, 0);
}

TEST(HttpClientTest, CancelEndsAStreamFromAnotherThread) {
  const OneAnswer server("HTTP/1.1 200 OK\r\n\r\none\n", true);
  HttpClient client;
  std::promise<void> begun;
  HttpRequest request;
  request.url = server.Url();
  request.limit = seconds(20);
  HttpStream stream;
  stream.line = [&](std::string_view) {
    begun.set_value();
    return true;
  };
  auto reply = std::async(std::launch::async, [&] { return client.Stream(request, stream); });
  ASSERT_EQ(begun.get_future().wait_for(seconds(10)), std::future_status::ready);
  client.Cancel();
  const Result<HttpReply> told = reply.get();
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().code, ErrorCode::kCancelled);
}

TEST(HttpClientTest, AProxyIsAskedIfTheRequestNamesOne) {
  const OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  HttpClient client;
  HttpRequest request;
  request.url = "http://nowhere.invalid/y";
  request.proxy = server.Url("");
  const Result<HttpReply> reply = client.Send(request);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "ok");
  EXPECT_THAT(server.asked(), StartsWith("GET http://nowhere.invalid/y"));
}

TEST(HttpClientTest, CertificatesThatAreNoneAreAnError) {
  HttpClient client;
  HttpRequest request;
  request.url = "https://127.0.0.1:1/";
  request.tls.ca = "no certificate";
  EXPECT_FALSE(client.Send(request).ok());
}

}  // namespace
}  // namespace troupe
