// HttpClient: one HTTP request at a time, for who has a thread to wait on.
//
// Redirects are not followed, no proxy is asked, whatever the environment says, nothing is
// decompressed, and connections to an address are kept. The adapter of libcurl is
// http_client.cpp.
// Thread: Send from one at a time, which it blocks; Cancel from any.
// Limits: the time and the bytes of each request are the caller's; kHttpHeadersMax of headers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
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

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http:// or https://
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  Duration limit = seconds(2);  // From the first byte sent to the last one received.
  size_t bytes_max = 64 << 10;  // Of the reply's body.
  std::optional<AwsSigning> aws = std::nullopt;
  std::string ca_file = {};  // Certificates in PEM, instead of those of the system.
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
  // Ends the request under way, and refuses those that follow.
  void Cancel();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace troupe
