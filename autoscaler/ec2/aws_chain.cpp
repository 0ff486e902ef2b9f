#include "autoscaler/ec2/aws_chain.h"

#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "autoscaler/cloud_text.h"
#include "autoscaler/cloud_world.h"
#include "autoscaler/ec2/aws_credentials_json.h"
#include "autoscaler/ec2/aws_xml.h"

namespace troupe::ec2 {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr size_t kSaidMax = 300;
constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kMetadataHost = "http://169.254.169.254";
// Where plain HTTP leaves nobody else a chance to listen, or is the agent of ECS or EKS.
constexpr std::array<std::string_view, 6> kPlainHosts = {
    "localhost", "127.0.0.1", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};

Error NotSetUp(std::string why) { return {ErrorCode::kNotFound, std::move(why)}; }

// The host of http://HOST:PORT/path, or empty for other schemes.
std::string_view PlainHostOf(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return {};
  url.remove_prefix(kScheme.size());
  url = url.substr(0, url.find_first_of("/?#"));
  if (url.starts_with('[')) return url.substr(0, url.find(']') + 1);
  return url.substr(0, url.find(':'));
}

bool IsPlainHost(std::string_view host) {
  for (const std::string_view known : kPlainHosts) {
    if (host == known) return true;
  }
  return false;
}

std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

std::string ValueOf(const AwsProfile& profile, const char* key) {
  const auto found = profile.find(key);
  return found == profile.end() ? "" : found->second;
}

std::optional<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kFileBytesMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

struct AwsChain::Profiles {
  std::string config_path;
  std::string credentials_path;
  AwsProfiles all;  // Of both; what credentials says goes before.
};

AwsWorld RealAwsWorld() {
  AwsWorld world;
  world.variable = &EnvironmentVariable;
  world.read = &ReadWhole;
  world.wall_s = &WallSeconds;
  return world;
}

AwsChain::AwsChain(AwsWorld world, AwsChoice choice)
    : world_(std::move(world)), choice_(std::move(choice)) {}

std::string AwsChain::Variable(const std::string& name) const {
  return world_.variable(name).value_or("");
}

std::string AwsChain::ProfileName() const {
  if (!choice_.profile.empty()) return choice_.profile;
  for (const char* name : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (const std::string profile = Variable(name); !profile.empty()) return profile;
  }
  return "default";
}

AwsChain::Profiles AwsChain::ReadProfiles() const {
  const std::string home = Variable("HOME");
  const auto path_of = [&](const char* name, const char* usual) {
    std::string path = Variable(name);
    if (path.empty()) return home + "/.aws/" + usual;
    return path.starts_with("~/") ? home + path.substr(1) : path;
  };
  Profiles profiles;
  profiles.config_path = path_of("AWS_CONFIG_FILE", "config");
  profiles.credentials_path = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  profiles.all = ParseAwsProfiles(world_.read(profiles.config_path).value_or(""), true);
  for (auto& [name, profile] :
       ParseAwsProfiles(world_.read(profiles.credentials_path).value_or(""), false)) {
    for (const auto& [key, value] : profile) profiles.all[name][key] = value;
  }
  return profiles;
}

Result<AwsCredentials> AwsChain::Credentials(const AwsSend& send) const {
  using Link = Result<AwsCredentials> (AwsChain::*)(const AwsSend&) const;
  std::string tried;
  const auto ask = [&](const char* name,
                       Result<AwsCredentials> found) -> std::optional<Result<AwsCredentials>> {
    if (found.ok()) return found;
    tried += std::string(tried.empty() ? "" : "; ") + name + ": " + found.error().message;
    if (found.error().code == ErrorCode::kNotFound) return std::nullopt;
    return Error{found.error().code == ErrorCode::kUnavailable ||
                         found.error().code == ErrorCode::kDeadlineExceeded
                     ? ErrorCode::kUnavailable
                     : ErrorCode::kPermissionDenied,
                 "no credentials for AWS: " + tried};
  };
  // A profile that the cluster file names goes before the keys of a shell.
  if (!choice_.profile.empty()) {
    auto found = ask("profile", OfProfile(send));
    return found ? *found
                 : Error{ErrorCode::kPermissionDenied,
                         "no credentials for AWS: " + tried + "; ec2.profile asks for this one"};
  }
  if (auto found = ask("environment", OfVariables())) return *found;
  constexpr std::array<std::pair<const char*, Link>, 4> kLinks = {
      {{"web identity", &AwsChain::OfWebIdentity},
       {"profile", &AwsChain::OfProfile},
       {"container", &AwsChain::OfContainer},
       {"instance role", &AwsChain::OfInstance}}};
  for (const auto& [name, link] : kLinks) {
    if (auto found = ask(name, (this->*link)(send))) return *found;
  }
  return Error{ErrorCode::kPermissionDenied, "no credentials for AWS: " + tried};
}

Result<AwsCredentials> AwsChain::OfVariables() const {
  AwsCredentials found;
  found.key_id = Variable("AWS_ACCESS_KEY_ID");
  found.secret = Variable("AWS_SECRET_ACCESS_KEY");
  found.token = Variable("AWS_SESSION_TOKEN");
  found.source = "the environment";
  if (found.key_id.empty()) return NotSetUp("AWS_ACCESS_KEY_ID is not set");
  if (found.secret.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not"};
  return found;
}

Result<AwsCredentials> AwsChain::OfWebIdentity(const AwsSend& send) const {
  const std::string file = Variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (file.empty()) return NotSetUp("AWS_WEB_IDENTITY_TOKEN_FILE is not set");
  const std::string role = Variable("AWS_ROLE_ARN");
  if (role.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not"};
  return AssumeWithWebIdentity(role, file, Variable("AWS_ROLE_SESSION_NAME"), send);
}

Result<AwsCredentials> AwsChain::OfProfile(const AwsSend& send) const {
  const Profiles profiles = ReadProfiles();
  const std::string name = ProfileName();
  if (!profiles.all.contains(name)) {
    const std::string why = "neither " + profiles.credentials_path + " nor " +
                            profiles.config_path + " has the profile " + name;
    if (name == "default" && choice_.profile.empty()) return NotSetUp(why);
    return Error{ErrorCode::kInvalidArgument, why};
  }
  Result<AwsCredentials> found = OfProfileNamed(name, profiles, {}, send);
  if (found.ok()) found->source = "profile " + name;
  return found;
}

// A profile names another one, each once.
// NOLINTNEXTLINE(misc-no-recursion)
Result<AwsCredentials> AwsChain::OfProfileNamed(const std::string& name, const Profiles& profiles,
                                                std::set<std::string> seen,
                                                const AwsSend& send) const {
  const auto found = profiles.all.find(name);
  if (found == profiles.all.end())
    return Error{ErrorCode::kInvalidArgument, "there is no profile " + name};
  const AwsProfile& profile = found->second;
  // One that names itself as its source means its keys.
  const bool first = seen.insert(name).second;
  if (first && !ValueOf(profile, "role_arn").empty())
    return OfRole(name, profile, profiles, seen, send);
  AwsCredentials credentials;
  credentials.key_id = ValueOf(profile, "aws_access_key_id");
  credentials.secret = ValueOf(profile, "aws_secret_access_key");
  credentials.token = ValueOf(profile, "aws_session_token");
  if (!credentials.key_id.empty() && !credentials.secret.empty()) return credentials;
  if (!credentials.key_id.empty() || !credentials.secret.empty())
    return Error{
        ErrorCode::kInvalidArgument,
        "profile " + name + " has only one of aws_access_key_id and aws_secret_access_key"};
  if (!first)
    return Error{ErrorCode::kInvalidArgument,
                 "profile " + name + " is its own source_profile, and has no keys"};
  if (const std::string command = ValueOf(profile, "credential_process"); !command.empty()) {
    const Result<std::string> printed = world_.run(command);
    Result<AwsCredentials> parsed =
        printed.ok() ? ParseCredentialsJson(*printed) : Result<AwsCredentials>(printed.error());
    if (!parsed.ok()) return parsed.error().WithContext("credential_process of profile " + name);
    return parsed;
  }
  if (profile.contains("sso_session") || profile.contains("sso_start_url"))
    return Error{ErrorCode::kInvalidArgument,
                 "profile " + name +
                     " signs on with SSO; give another profile `credential_process = aws configure "
                     "export-credentials --profile " +
                     name + " --format process`"};
  return NotSetUp("profile " + name + " has no credentials");
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<AwsCredentials> AwsChain::OfRole(const std::string& name, const AwsProfile& profile,
                                        const Profiles& profiles, const std::set<std::string>& seen,
                                        const AwsSend& send) const {
  const std::string role = ValueOf(profile, "role_arn");
  const std::string session = ValueOf(profile, "role_session_name");
  const auto wrong = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, "profile " + name + ": " + why};
  };
  if (const std::string file = ValueOf(profile, "web_identity_token_file"); !file.empty())
    return AssumeWithWebIdentity(role, file, session, send);
  if (!ValueOf(profile, "mfa_serial").empty())
    return wrong("it asks for a code of mfa_serial, and nobody is there to type it");
  const std::string source = ValueOf(profile, "source_profile");
  const std::string kind = ValueOf(profile, "credential_source");
  if (source.empty() == kind.empty())
    return wrong("role_arn needs one of source_profile and credential_source");
  Result<AwsCredentials> signer = Error{};
  if (!source.empty()) {
    if (source != name && seen.contains(source)) return wrong("its source_profile names it again");
    signer = OfProfileNamed(source, profiles, seen, send);
  } else if (kind == "Environment") {
    signer = OfVariables();
  } else if (kind == "EcsContainer") {
    signer = OfContainer(send);
  } else if (kind == "Ec2InstanceMetadata") {
    signer = OfInstance(send);
  } else {
    return wrong("credential_source is one of Environment, EcsContainer and Ec2InstanceMetadata");
  }
  if (!signer.ok()) {
    Error error = signer.error().WithContext("profile " + name);
    if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kInvalidArgument;
    return error;
  }
  AwsParameters parameters = {
      {"Action", "AssumeRole"},
      {"Version", "2011-06-15"},
      {"RoleArn", role},
      {"RoleSessionName", session.empty() ? "troupe-" + std::to_string(world_.wall_s()) : session}};
  if (const std::string id = ValueOf(profile, "external_id"); !id.empty())
    parameters.emplace_back("ExternalId", id);
  if (const std::string span = ValueOf(profile, "duration_seconds"); !span.empty())
    parameters.emplace_back("DurationSeconds", span);
  Result<AwsCredentials> assumed = AskTokenService(parameters, &*signer, send);
  if (!assumed.ok()) return assumed.error().WithContext("profile " + name);
  return assumed;
}

Result<AwsCredentials> AwsChain::AssumeWithWebIdentity(const std::string& role,
                                                       const std::string& token_file,
                                                       const std::string& session,
                                                       const AwsSend& send) const {
  const std::optional<std::string> token = world_.read(token_file);
  if (!token)
    return Error{ErrorCode::kInvalidArgument, "the token file " + token_file + " cannot be read"};
  const std::string name = session.empty() ? "troupe-" + std::to_string(world_.wall_s()) : session;
  Result<AwsCredentials> assumed = AskTokenService({{"Action", "AssumeRoleWithWebIdentity"},
                                                    {"Version", "2011-06-15"},
                                                    {"RoleArn", role},
                                                    {"RoleSessionName", name},
                                                    {"WebIdentityToken", OneLine(*token)}},
                                                   nullptr, send);
  if (assumed.ok()) assumed->source = "web identity";
  return assumed;
}

Result<AwsCredentials> AwsChain::AskTokenService(const AwsParameters& parameters,
                                                 const AwsCredentials* signer,
                                                 const AwsSend& send) const {
  const Result<std::string> region = Region(send);
  if (!region.ok()) return Error{ErrorCode::kInvalidArgument, region.error().message};
  HttpRequest request = SignedPost(Endpoint("sts", *region), "sts", *region,
                                   signer == nullptr ? AwsCredentials{} : *signer, parameters);
  if (signer == nullptr) request.aws.reset();
  request.limit = kTokenServiceLimit;
  const Result<HttpReply> reply = send(request);
  const std::string& action = parameters.front().second;
  if (!reply.ok()) return reply.error().WithContext(action + " at " + request.url);
  const Result<XmlElement> xml = ParseXml(reply->body);
  if (reply->status != 200) {
    const XmlElement error = xml.ok() ? xml->Child("Error") : XmlElement{};
    const bool mine = reply->status >= 400 && reply->status < 500 && reply->status != 429;
    return Error{
        mine ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable,
        action + ": " +
            (error.TextOf("Code").empty() ? "status " + std::to_string(reply->status)
                                          : Printable(error.TextOf("Code"), 60) + ": " +
                                                Printable(error.TextOf("Message"), kSaidMax))};
  }
  if (!xml.ok()) return xml.error().WithContext(action);
  const XmlElement& found = xml->Child(action + "Result").Child("Credentials");
  AwsCredentials credentials;
  credentials.key_id = found.TextOf("AccessKeyId");
  credentials.secret = found.TextOf("SecretAccessKey");
  credentials.token = found.TextOf("SessionToken");
  credentials.expires_s = ParseCloudTime(found.TextOf("Expiration"));
  if (credentials.key_id.empty() || credentials.secret.empty() || !credentials.expires_s)
    return Error{ErrorCode::kCorrupt, action + ": its answer has no credentials"};
  return credentials;
}

Result<AwsCredentials> AwsChain::OfContainer(const AwsSend& send) const {
  const std::string relative = Variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = Variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty())
    return NotSetUp("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set");
  HttpRequest request;
  request.url = relative.empty() ? full : kContainerHost + relative;
  request.limit = kMetadataLimit;
  if (!request.url.starts_with("https://") && !IsPlainHost(PlainHostOf(request.url)))
    return Error{ErrorCode::kInvalidArgument,
                 "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither HTTPS nor of this host"};
  std::string token = Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    const std::optional<std::string> text = world_.read(file);
    if (!text) return Error{ErrorCode::kInvalidArgument, file + " cannot be read"};
    token = OneLine(*text);
  }
  if (token.find_first_of("\r\n") != std::string::npos)
    return Error{ErrorCode::kInvalidArgument, "the container's authorization token has two lines"};
  if (!token.empty()) request.headers.emplace_back("Authorization", token);
  const Result<HttpReply> reply = send(request);
  if (!reply.ok()) return reply.error().WithContext(request.url);
  if (reply->status != 200)
    return Error{reply->status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kPermissionDenied,
                 request.url + " answers with status " + std::to_string(reply->status)};
  Result<AwsCredentials> found = ParseCredentialsJson(reply->body);
  if (found.ok()) found->source = "the container";
  return found;
}

// kNotFound: there is no such service, or it has no such thing.
Result<std::string> AwsChain::AskMetadata(const std::string& path, const AwsSend& send) const {
  if (Variable("AWS_EC2_METADATA_DISABLED") == "true")
    return NotSetUp("AWS_EC2_METADATA_DISABLED is true");
  std::string base = Variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (base.empty()) base = kMetadataHost;
  while (base.ends_with('/')) base.pop_back();
  HttpRequest ask;
  ask.method = "PUT";
  ask.url = base + "/latest/api/token";
  ask.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "60"}};
  ask.limit = kMetadataLimit;
  const Result<HttpReply> token = send(ask);
  if (!token.ok()) return NotSetUp(base + ": " + token.error().message);
  if (token->status != 200 || token->body.find_first_of("\r\n") != std::string::npos)
    return NotSetUp(base + " gives no token, but status " + std::to_string(token->status));
  ask.method = "GET";
  ask.url = base + path;
  ask.headers = {{"X-aws-ec2-metadata-token", token->body}};
  const Result<HttpReply> reply = send(ask);
  if (!reply.ok()) return reply.error().WithContext(base);
  if (reply->status == 404) return NotSetUp(ask.url + " does not exist");
  if (reply->status != 200)
    return Error{ErrorCode::kUnavailable,
                 ask.url + " answers with status " + std::to_string(reply->status)};
  return reply->body;
}

Result<AwsCredentials> AwsChain::OfInstance(const AwsSend& send) const {
  const std::string path = "/latest/meta-data/iam/security-credentials/";
  const Result<std::string> roles = AskMetadata(path, send);
  if (!roles.ok()) return roles.error();
  const std::string role = roles->substr(0, roles->find_first_of("\r\n"));
  if (role.empty()) return NotSetUp("the instance has no role");
  const Result<std::string> said = AskMetadata(path + role, send);
  if (!said.ok()) return said.error();
  Result<AwsCredentials> found = ParseCredentialsJson(*said);
  if (found.ok()) found->source = "the instance's role " + Printable(role, 64);
  return found;
}

Result<std::string> AwsChain::Region(const AwsSend& send) const {
  if (!choice_.region.empty()) return choice_.region;
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (std::string region = Variable(name); !region.empty()) return region;
  }
  const Profiles profiles = ReadProfiles();
  const std::string name = ProfileName();
  if (const auto found = profiles.all.find(name); found != profiles.all.end()) {
    if (std::string region = ValueOf(found->second, "region"); !region.empty()) return region;
  }
  const Result<std::string> told = AskMetadata("/latest/meta-data/placement/region", send);
  if (told.ok() && !told->empty() && told->size() < 64) return OneLine(*told);
  return Error{ErrorCode::kInvalidArgument,
               "no region: ec2.region, AWS_REGION and AWS_DEFAULT_REGION are not set, profile " +
                   name + " of " + profiles.config_path + " has none, and there is no instance: " +
                   (told.ok() ? "its answer is no region" : told.error().message)};
}

std::string AwsChain::Endpoint(const std::string& service, const std::string& region) const {
  std::string url = service == "ec2" ? choice_.endpoint : "";
  if (url.empty())
    url = Variable(service == "ec2" ? "AWS_ENDPOINT_URL_EC2" : "AWS_ENDPOINT_URL_STS");
  if (url.empty()) url = Variable("AWS_ENDPOINT_URL");
  if (url.empty())
    url = "https://" + service + "." + region + ".amazonaws.com" +
          (region.starts_with("cn-") ? ".cn" : "");
  while (url.ends_with('/')) url.pop_back();
  return url + "/";
}

}  // namespace troupe::ec2
