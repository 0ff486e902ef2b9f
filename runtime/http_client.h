// HttpClient: one HTTP request at a time, for who has a thread to wait on.
//
// Redirects are not followed, only a proxy that the request names is asked, whatever the
// environment says, nothing is decompressed, and connections to an address are kept. The adapter of
// libcurl is http_client.cpp.
// Thread: Send and Stream from one at a time, which they block; Cancel from any.
// Limits: the time and the bytes of each request are the caller's; kHttpHeadersMax of headers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kHttpHeadersMax = 16 << 10;

// With what a request is signed as Amazon's services ask (Signature Version 4). Nothing of it is
// told in errors. A session token is a header of the request, and signed like every other one.
struct AwsSigning {
  std::string region;
  std::string service;  // "ec2".
  std::string key_id;
  std::string secret;
};

// How a server is known, and who asks it. PEM; empty: as of the system, or nobody.
struct HttpTls {
  std::string ca = {};
  std::string certificate = {};  // With the chain after it.
  std::string key = {};
  std::string server_name = {};  // In its certificate, if that is not the URL's host.
  bool insecure = false;         // Whoever answers is believed.
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http:// or https://
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  Duration limit = seconds(2);  // From the first byte sent to the last one received.
  size_t bytes_max = 64 << 10;  // Of the reply's body.
  std::optional<AwsSigning> aws = std::nullopt;
  std::string ca_file = {};  // Certificates in PEM, instead of those of the system.
  HttpTls tls = {};
  std::string proxy = {};  // A URL; empty: none.
};

// A reply of lines that are told as they come, such as a watch.
struct HttpStream {
  std::function<bool(std::string_view line)> line;  // False: that was enough.
  std::function<void()> begun = nullptr;            // Before the first line: status 200 has come.
  Duration silence = seconds(60);                   // Without a byte of the body.
  size_t line_max = size_t{1} << 20;
};

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // Names in lower case.
  std::string body = {};
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is a reply. kDeadlineExceeded, kCancelled, kResourceExhausted for a reply that is
  // too long, kInvalidArgument for a URL that cannot be asked, kPeerGone if the connection broke
  // after something may have been asked, kUnavailable for all else.
  Result<HttpReply> Send(const HttpRequest& request);
  // The same, but the body of a reply with status 200 goes to `stream`, without what is after its
  // last line's end. A reply that ends is a success; one that is silent, kDeadlineExceeded.
  Result<HttpReply> Stream(const HttpRequest& request, const HttpStream& stream);
  // Ends the request under way, and refuses those that follow.
  void Cancel();

 private:
  struct State;
  Result<HttpReply> Perform(const HttpRequest& request, const HttpStream* stream);
  const std::unique_ptr<State> state_;
};

}  // namespace troupe
