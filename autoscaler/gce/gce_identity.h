// Who asks Google: application default credentials, and the access tokens that they give.
//
// Looked for in turn: the file that the cluster file or GOOGLE_APPLICATION_CREDENTIALS names, that
// of `gcloud auth application-default login`, the metadata server. Tokens are renewed before they
// expire; files are read again with each renewal.
// Thread: any. Whoever needs a token while another thread asks for one waits for it, no longer than
// its requests take.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::gce {

inline constexpr int64_t kTokenRenewAhead_s = 300;         // Of an expiry.
inline constexpr Duration kGceMetadataLimit = seconds(2);  // There may be nobody.
inline constexpr Duration kGceTokenLimit = seconds(10);

// HttpClient::Send of the caller's thread, or a test's.
using GceSend = std::function<Result<HttpReply>(const HttpRequest&)>;

// What is asked of the world; tests have one of their own.
struct GceWorld {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::function<std::optional<std::string>(const std::string& path)> read;
  std::function<int64_t()> wall_s;  // Seconds since 1970.
};
[[nodiscard]] GceWorld RealGceWorld();

// What a cluster file says of it; empty: not given.
struct GceChoice {
  std::string credentials;  // A path.
  std::string project;
  std::string endpoint;
};

struct GceSession {
  std::string token;
  std::string project;
  std::string endpoint;  // "https://compute.googleapis.com".
  std::string source;    // Of the token, for people.
};

class GceIdentity {
 public:
  GceIdentity(GceWorld world, GceChoice choice)
      : world_(std::move(world)), choice_(std::move(choice)) {}

  // kNotFound: there are no credentials, or no project; it says where they were looked for.
  Result<GceSession> Session(const GceSend& send);
  // This token was refused: it is not used again.
  void Forget(const std::string& token);

 private:
  struct Token {
    std::string value;
    int64_t expires_s = 0;
    std::string project = {};  // That the credentials name, if they do.
    std::string source = {};
  };

  Result<Token> Ask(const GceSend& send) const;
  Result<Token> OfFile(const std::string& path, const GceSend& send) const;
  Result<Token> OfJson(const std::string& text, int depth, const GceSend& send) const;
  Result<Token> OfServiceAccount(const std::string& text, const GceSend& send) const;
  Result<Token> OfUser(const std::string& text, const GceSend& send) const;
  Result<Token> OfOtherCloud(const std::string& text, const GceSend& send) const;
  Result<std::string> SubjectToken(const std::string& source, const GceSend& send) const;
  Result<Token> Impersonate(const std::string& url, const std::string& token,
                            const std::vector<std::string>& delegates, const GceSend& send) const;
  Result<Token> OfMetadata(const GceSend& send) const;
  Result<std::string> Metadata(const std::string& path, const GceSend& send) const;
  Result<Token> ReadToken(const HttpRequest& request, const GceSend& send) const;
  Result<std::string> Project(const GceSend& send);

  const GceWorld world_;
  const GceChoice choice_;
  std::mutex mu_;  // Of what follows.
  std::optional<Token> held_;
  std::string project_;
};

}  // namespace troupe::gce
