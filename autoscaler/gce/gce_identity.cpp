#include "autoscaler/gce/gce_identity.h"

#include <utility>

#include "autoscaler/cloud_text.h"
#include "autoscaler/cloud_world.h"
#include "autoscaler/gce/gce_jwt.h"
#include "autoscaler/internal/read_json.h"

namespace troupe::gce {
namespace {

constexpr const char* kTokenUrl = "https://oauth2.googleapis.com/token";
constexpr const char* kExchangeUrl = "https://sts.googleapis.com/v1/token";
constexpr int kImpersonationsMax = 4;

Error Lacks(const char* key) {
  return {ErrorCode::kInvalidArgument, std::string("it has no ") + key};
}

std::string Or(const std::string& text, const std::string& otherwise) {
  return text.empty() ? otherwise : text;
}

HttpRequest JsonPost(const std::string& url, const std::string& token, const LooseJson& body) {
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"Content-Type", "application/json"}};
  if (!token.empty()) request.headers.emplace_back("Authorization", "Bearer " + token);
  request.body = body.dump(-1, ' ', false, LooseJson::error_handler_t::replace);
  request.limit = kGceTokenLimit;
  return request;
}

HttpRequest FormPost(const std::string& url,
                     const std::vector<std::pair<std::string, std::string>>& form) {
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
  request.body = FormBody(form);
  request.limit = kGceTokenLimit;
  return request;
}

// What Google says of a token that it does not give: {"error": "invalid_grant", ...}, or as the
// APIs say it.
std::string WhyNoToken(const HttpReply& reply) {
  const LooseJson json = ParseJson(reply.body);
  const std::string word = TextAt(json, "error");
  const std::string why =
      word.empty() ? TextAt(At(json, "error"), "message") : TextAt(json, "error_description");
  std::string said = word.empty() || why.empty() ? word + why : word + ": " + why;
  if (said.empty()) said = "status " + std::to_string(reply.status);
  return Printable(said, 200);
}

}  // namespace

GceWorld RealGceWorld() { return {&EnvironmentVariable, &ReadCloudFile, &WallSeconds}; }

Result<GceSession> GceIdentity::Session(const GceSend& send) {
  const std::lock_guard lock(mu_);
  const int64_t now_s = world_.wall_s();
  const bool fresh = held_ && held_->expires_s > now_s + kTokenRenewAhead_s;
  if (!fresh) {
    Result<Token> asked = Ask(send);
    // The old one is good for a while.
    if (!asked.ok() && (!held_ || held_->expires_s <= now_s)) return asked.error();
    if (asked.ok()) held_ = std::move(asked).value();
  }
  const Result<std::string> project = Project(send);
  if (!project.ok()) return project.error();
  std::string endpoint = Or(choice_.endpoint, world_.variable("TROUPE_GCE_ENDPOINT").value_or(""));
  if (endpoint.empty()) endpoint = "https://compute.googleapis.com";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return GceSession{held_->value, *project, endpoint, held_->source};
}

void GceIdentity::Forget(const std::string& token) {
  const std::lock_guard lock(mu_);
  if (held_ && held_->value == token) held_.reset();
}

Result<std::string> GceIdentity::Project(const GceSend& send) {
  if (!choice_.project.empty()) return choice_.project;
  for (const char* name : {"GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"}) {
    if (const auto told = world_.variable(name); told && !told->empty()) return *told;
  }
  if (!held_->project.empty()) return held_->project;
  if (project_.empty()) {
    const Result<std::string> told = Metadata("project/project-id", send);
    if (!told.ok())
      return Error{
          ErrorCode::kNotFound,
          "which project? Give gce.project or GOOGLE_CLOUD_PROJECT (the metadata server: " +
              told.error().message + ")"};
    project_ = *told;
  }
  return project_;
}

Result<GceIdentity::Token> GceIdentity::Ask(const GceSend& send) const {
  const std::string named =
      Or(choice_.credentials, world_.variable("GOOGLE_APPLICATION_CREDENTIALS").value_or(""));
  if (!named.empty()) return OfFile(named, send);
  std::string folder = world_.variable("CLOUDSDK_CONFIG").value_or("");
  if (folder.empty()) folder = world_.variable("HOME").value_or("") + "/.config/gcloud";
  const std::string usual = folder + "/application_default_credentials.json";
  if (world_.read(usual)) return OfFile(usual, send);
  Result<Token> token = OfMetadata(send);
  if (token.ok()) return token;
  return Error{ErrorCode::kNotFound,
               "no credentials for Google: neither gce.credentials nor "
               "GOOGLE_APPLICATION_CREDENTIALS names a file, there is no " +
                   usual +
                   " (of `gcloud auth application-default login`), and the metadata server: " +
                   token.error().message};
}

Result<GceIdentity::Token> GceIdentity::OfFile(const std::string& path, const GceSend& send) const {
  const std::optional<std::string> text = world_.read(path);
  if (!text) return Error{ErrorCode::kInvalidArgument, "credentials cannot be read: " + path};
  Result<Token> token = OfJson(*text, 0, send);
  if (!token.ok()) return token.error().WithContext("credentials " + path);
  token->source = path;
  return token;
}

// NOLINTNEXTLINE(misc-no-recursion): of who impersonates others, a few deep.
Result<GceIdentity::Token> GceIdentity::OfJson(const std::string& text, int depth,
                                               const GceSend& send) const {
  const LooseJson json = ParseJson(text);
  if (!json.is_object()) return Error{ErrorCode::kInvalidArgument, "it is no JSON object"};
  const std::string type = TextAt(json, "type");
  if (type == "service_account") return OfServiceAccount(text, send);
  if (type == "authorized_user") return OfUser(text, send);
  if (type == "external_account") return OfOtherCloud(text, send);
  if (type != "impersonated_service_account" || depth >= kImpersonationsMax)
    return Error{ErrorCode::kInvalidArgument,
                 "its type is \"" + Printable(type, 60) +
                     "\", not service_account, authorized_user, external_account or "
                     "impersonated_service_account"};
  const std::string url = TextAt(json, "service_account_impersonation_url");
  if (url.empty()) return Lacks("service_account_impersonation_url");
  const Result<Token> source = OfJson(At(json, "source_credentials").dump(), depth + 1, send);
  if (!source.ok()) return source.error().WithContext("source_credentials");
  std::vector<std::string> delegates;
  for (const LooseJson& one : ListAt(json, "delegates")) {
    if (one.is_string()) delegates.push_back(one.get<std::string>());
  }
  return Impersonate(url, source->value, delegates, send);
}

Result<GceIdentity::Token> GceIdentity::OfServiceAccount(const std::string& text,
                                                         const GceSend& send) const {
  const LooseJson json = ParseJson(text);
  const std::string email = TextAt(json, "client_email");
  if (email.empty()) return Lacks("client_email");
  const std::string url = Or(TextAt(json, "token_uri"), kTokenUrl);
  const int64_t now_s = world_.wall_s();
  const LooseJson claims = {
      {"iss", email}, {"scope", kGceScope}, {"aud", url}, {"iat", now_s}, {"exp", now_s + 3600}};
  const Result<std::string> signed_claims =
      SignJwt(claims.dump(), TextAt(json, "private_key"), TextAt(json, "private_key_id"));
  if (!signed_claims.ok()) return signed_claims.error();
  Result<Token> token =
      ReadToken(FormPost(url, {{"grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"},
                               {"assertion", *signed_claims}}),
                send);
  if (token.ok()) token->project = TextAt(json, "project_id");
  return token;
}

Result<GceIdentity::Token> GceIdentity::OfUser(const std::string& text, const GceSend& send) const {
  const LooseJson json = ParseJson(text);
  for (const char* key : {"client_id", "client_secret", "refresh_token"}) {
    if (TextAt(json, key).empty()) return Lacks(key);
  }
  Result<Token> token = ReadToken(FormPost(Or(TextAt(json, "token_uri"), kTokenUrl),
                                           {{"grant_type", "refresh_token"},
                                            {"client_id", TextAt(json, "client_id")},
                                            {"client_secret", TextAt(json, "client_secret")},
                                            {"refresh_token", TextAt(json, "refresh_token")}}),
                                  send);
  if (token.ok()) token->project = TextAt(json, "quota_project_id");
  return token;
}

// Workload identity federation: somebody else's token for one of Google.
Result<GceIdentity::Token> GceIdentity::OfOtherCloud(const std::string& text,
                                                     const GceSend& send) const {
  const LooseJson json = ParseJson(text);
  for (const char* key : {"audience", "subject_token_type"}) {
    if (TextAt(json, key).empty()) return Lacks(key);
  }
  const Result<std::string> subject = SubjectToken(At(json, "credential_source").dump(), send);
  if (!subject.ok()) return subject.error().WithContext("credential_source");
  const Result<Token> token =
      ReadToken(FormPost(Or(TextAt(json, "token_url"), kExchangeUrl),
                         {{"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
                          {"audience", TextAt(json, "audience")},
                          {"scope", kGceScope},
                          {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
                          {"subject_token_type", TextAt(json, "subject_token_type")},
                          {"subject_token", *subject}}),
                send);
  const std::string url = TextAt(json, "service_account_impersonation_url");
  return !token.ok() || url.empty() ? token : Impersonate(url, token->value, {}, send);
}

Result<std::string> GceIdentity::SubjectToken(const std::string& source,
                                              const GceSend& send) const {
  const LooseJson json = ParseJson(source);
  const LooseJson format = At(json, "format");
  std::string text;
  if (const std::string path = TextAt(json, "file"); !path.empty()) {
    const std::optional<std::string> read = world_.read(path);
    if (!read) return Error{ErrorCode::kInvalidArgument, path + " cannot be read"};
    text = *read;
  } else if (const std::string url = TextAt(json, "url"); !url.empty()) {
    HttpRequest request;
    request.url = url;
    request.limit = kGceTokenLimit;
    for (const auto& [name, value] : WordsAt(json, "headers"))
      request.headers.emplace_back(name, value);
    const Result<HttpReply> reply = send(request);
    if (!reply.ok()) return reply.error().WithContext(url);
    if (reply->status != 200)
      return Error{ErrorCode::kPermissionDenied, url + ": status " + std::to_string(reply->status)};
    text = reply->body;
  } else {
    return Error{ErrorCode::kInvalidArgument, "it has neither file nor url"};
  }
  if (TextAt(format, "type") == "json")
    text = TextAt(ParseJson(text), TextAt(format, "subject_token_field_name").c_str());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) return Error{ErrorCode::kInvalidArgument, "it gives no token"};
  return text;
}

Result<GceIdentity::Token> GceIdentity::Impersonate(const std::string& url,
                                                    const std::string& token,
                                                    const std::vector<std::string>& delegates,
                                                    const GceSend& send) const {
  LooseJson body = {{"scope", {kGceScope}}, {"lifetime", "3600s"}};
  if (!delegates.empty()) body["delegates"] = delegates;
  return ReadToken(JsonPost(url, token, body), send);
}

Result<GceIdentity::Token> GceIdentity::OfMetadata(const GceSend& send) const {
  const Result<std::string> told = Metadata("instance/service-accounts/default/token", send);
  if (!told.ok()) return told.error();
  const LooseJson json = ParseJson(*told);
  const std::string token = TextAt(json, "access_token");
  if (token.empty()) return Error{ErrorCode::kCorrupt, "its answer has no access_token"};
  return Token{token, world_.wall_s() + NumberAt(json, "expires_in"), "",
               "the service account of this instance"};
}

// Whoever answers without the header is no metadata server.
Result<std::string> GceIdentity::Metadata(const std::string& path, const GceSend& send) const {
  const std::string host =
      world_.variable("GCE_METADATA_HOST").value_or("metadata.google.internal");
  HttpRequest request;
  request.url = "http://" + host + "/computeMetadata/v1/" + path;
  request.headers = {{"Metadata-Flavor", "Google"}};
  request.limit = kGceMetadataLimit;
  const Result<HttpReply> reply = send(request);
  if (!reply.ok()) return reply.error().WithContext(host);
  const auto flavor = reply->headers.find("metadata-flavor");
  if (reply->status != 200 || flavor == reply->headers.end() || flavor->second != "Google")
    return Error{ErrorCode::kNotFound,
                 host + " has no " + path + " (status " + std::to_string(reply->status) + ")"};
  return reply->body;
}

Result<GceIdentity::Token> GceIdentity::ReadToken(const HttpRequest& request,
                                                  const GceSend& send) const {
  const Result<HttpReply> reply = send(request);
  if (!reply.ok()) return reply.error().WithContext(request.url);
  if (reply->status != 200)
    return Error{reply->status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kPermissionDenied,
                 request.url + ": " + WhyNoToken(*reply)};
  const LooseJson json = ParseJson(reply->body);
  Token token{TextAt(json, "access_token"), world_.wall_s() + NumberAt(json, "expires_in", 3600)};
  if (token.value.empty()) {  // Of who impersonates.
    token.value = TextAt(json, "accessToken");
    token.expires_s = ParseCloudTime(TextAt(json, "expireTime")).value_or(token.expires_s);
  }
  if (token.value.empty())
    return Error{ErrorCode::kCorrupt, request.url + ": its answer has no token"};
  return token;
}

}  // namespace troupe::gce
