// How Amazon's Query services are asked: forms, signed requests, their times of day.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::ec2 {

using AwsParameters = std::vector<std::pair<std::string, std::string>>;
// HttpClient::Send of the caller's thread, or a test's.
using AwsSend = std::function<Result<HttpReply>(const HttpRequest&)>;

struct AwsCredentials {
  std::string key_id;
  std::string secret;
  std::string token = {};                           // Of a session; empty: none.
  std::optional<int64_t> expires_s = std::nullopt;  // Since 1970; none: never.
  std::string source = {};                          // For people.
};

// A POST to `url`, signed as of when it is sent.
[[nodiscard]] HttpRequest SignedPost(const std::string& url, const std::string& service,
                                     const std::string& region, const AwsCredentials& credentials,
                                     const AwsParameters& parameters);

}  // namespace troupe::ec2
