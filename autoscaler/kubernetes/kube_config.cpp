#include "autoscaler/kubernetes/kube_config.h"

#include <filesystem>
#include <utility>

#include "autoscaler/cloud_text.h"
#include "autoscaler/internal/read_json.h"
#include "runtime/config.h"

namespace troupe::kubernetes {
namespace {

constexpr const char* kPluginApi = "client.authentication.k8s.io/";

// One entry of a list of named things, and the file that has it.
struct Named {
  LooseJson value;
  std::string path;
};

// All files as one: of entries of the same name, and of the current context, the first counts.
struct Merged {
  std::map<std::string, Named> clusters;
  std::map<std::string, Named> users;
  std::map<std::string, Named> contexts;
  std::string current;
  std::string current_path;
};

Error Wrong(const std::string& path, const std::string& what) {
  return {ErrorCode::kInvalidArgument, path + ": " + what};
}

void TakeNamed(const LooseJson& root, const char* list, const char* what, const std::string& path,
               std::map<std::string, Named>& into) {
  for (const LooseJson& entry : ListAt(root, list))
    into.emplace(TextAt(entry, "name"), Named{At(entry, what), path});
}

Result<Merged> Merge(const std::vector<KubeFile>& files) {
  Merged merged;
  for (const KubeFile& file : files) {
    const Result<ConfigDocument> document = ConfigDocument::Parse(file.text, file.path);
    if (!document.ok()) return document.error();
    const LooseJson root = ParseJson(document->Root().Json("", "anything"));
    if (const Status status = document->Finish(); !status.ok()) return status.error();
    TakeNamed(root, "clusters", "cluster", file.path, merged.clusters);
    TakeNamed(root, "users", "user", file.path, merged.users);
    TakeNamed(root, "contexts", "context", file.path, merged.contexts);
    const std::string current = TextAt(root, "current-context");
    if (!merged.current.empty() || current.empty()) continue;
    merged.current = current;
    merged.current_path = file.path;
  }
  return merged;
}

std::string NamesIn(const std::map<std::string, Named>& things) {
  std::string names;
  for (const auto& [name, thing] : things) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "there is none" : "there are: " + names;
}

// From the folder of the file that names it on.
std::string PathOf(const Named& in, const char* key) {
  const std::string path = TextAt(in.value, key);
  if (path.empty()) return "";
  return (std::filesystem::path(in.path).parent_path() / path).string();
}

// Into `content`, or `file`.
Status TakeData(const Named& in, const char* name, std::string& content, std::string& file) {
  const std::string data = TextAt(in.value, (std::string(name) + "-data").c_str());
  file = data.empty() ? PathOf(in, name) : "";
  if (data.empty()) return Status::Ok();
  Result<std::string> decoded = DecodeBase64(data);
  if (!decoded.ok()) return Wrong(in.path, std::string(name) + "-data is no base64");
  content = std::move(*decoded);
  return Status::Ok();
}

Status TakeCluster(const Named& cluster, KubeContext& context) {
  context.server = TextAt(cluster.value, "server");
  if (!context.server.starts_with("http://") && !context.server.starts_with("https://"))
    return Wrong(cluster.path, "the server of its cluster is no https://HOST:PORT");
  while (context.server.ends_with('/')) context.server.pop_back();
  context.insecure = FlagAt(cluster.value, "insecure-skip-tls-verify");
  context.tls_server_name = TextAt(cluster.value, "tls-server-name");
  context.proxy = TextAt(cluster.value, "proxy-url");
  return TakeData(cluster, "certificate-authority", context.ca, context.ca_file);
}

// What a plugin may want to know of the cluster.
std::string InfoOf(const KubeExec& exec, const KubeContext& context, bool with_cluster) {
  LooseJson spec{{"interactive", false}};
  if (with_cluster) {
    LooseJson cluster{{"server", context.server}};
    if (!context.ca.empty()) cluster["certificate-authority-data"] = EncodeBase64(context.ca);
    if (!context.tls_server_name.empty()) cluster["tls-server-name"] = context.tls_server_name;
    if (context.insecure) cluster["insecure-skip-tls-verify"] = true;
    if (!context.proxy.empty()) cluster["proxy-url"] = context.proxy;
    spec["cluster"] = cluster;
  }
  return LooseJson{{"apiVersion", exec.api_version}, {"kind", "ExecCredential"}, {"spec", spec}}
      .dump();
}

Status TakeExec(const Named& user, KubeContext& context) {
  const LooseJson& given = At(user.value, "exec");
  if (!given.is_object()) return Status::Ok();
  KubeExec exec;
  exec.command = TextAt(given, "command");
  exec.api_version = TextAt(given, "apiVersion");
  exec.install_hint = TextAt(given, "installHint");
  exec.folder = std::filesystem::path(user.path).parent_path().string();
  if (exec.command.empty()) return Wrong(user.path, "the exec of its user names no command");
  if (exec.api_version != std::string(kPluginApi) + "v1" &&
      exec.api_version != std::string(kPluginApi) + "v1beta1")
    return Wrong(user.path, "the exec of its user has apiVersion \"" + exec.api_version +
                                "\"; v1 and v1beta1 of client.authentication.k8s.io are known");
  if (TextAt(given, "interactiveMode") == "Always")
    return Wrong(user.path, "the exec of its user asks people (interactiveMode: Always)");
  if (exec.command.find('/') != std::string::npos)
    exec.command = (std::filesystem::path(exec.folder) / exec.command).string();
  for (const LooseJson& word : ListAt(given, "args"))
    exec.args.push_back(word.is_string() ? word.get<std::string>() : word.dump());
  for (const LooseJson& one : ListAt(given, "env"))
    exec.env[TextAt(one, "name")] = TextAt(one, "value");
  exec.info = InfoOf(exec, context, FlagAt(given, "provideClusterInfo"));
  context.exec = std::move(exec);
  return Status::Ok();
}

Status TakeUser(const Named& user, KubeContext& context) {
  context.token = TextAt(user.value, "token");
  context.token_file = PathOf(user, "tokenFile");
  context.impersonate = TextAt(user.value, "as");
  if (At(user.value, "auth-provider").is_object())
    return Wrong(user.path,
                 "its user has an auth-provider, which Kubernetes knows no longer; "
                 "use exec");
  Status taken =
      TakeData(user, "client-certificate", context.certificate, context.certificate_file);
  if (taken.ok()) taken = TakeData(user, "client-key", context.key, context.key_file);
  return taken.ok() ? TakeExec(user, context) : taken;
}

}  // namespace

Result<KubeContext> ReadKubeconfig(const std::vector<KubeFile>& files, const std::string& context) {
  const Result<Merged> merged = Merge(files);
  if (!merged.ok()) return merged.error();
  const std::string name = context.empty() ? merged->current : context;
  std::string paths;
  for (const KubeFile& file : files) paths += (paths.empty() ? "" : ", ") + file.path;
  if (name.empty()) return Error{ErrorCode::kNotFound, paths + ": no current-context"};
  const auto found = merged->contexts.find(name);
  if (found == merged->contexts.end())
    return Wrong(paths, "no context is called " + name + "; " + NamesIn(merged->contexts));
  const Named& chosen = found->second;
  KubeContext read;
  read.source = "context " + name + " of " + chosen.path;
  read.kube_namespace = TextAt(chosen.value, "namespace");
  const std::string cluster_name = TextAt(chosen.value, "cluster");
  const auto cluster = merged->clusters.find(cluster_name);
  if (cluster == merged->clusters.end())
    return Wrong(chosen.path, "context " + name + " is of cluster \"" + cluster_name + "\"; " +
                                  NamesIn(merged->clusters));
  if (const Status taken = TakeCluster(cluster->second, read); !taken.ok()) return taken.error();
  const std::string user_name = TextAt(chosen.value, "user");
  const auto user = merged->users.find(user_name);
  if (!user_name.empty() && user == merged->users.end())
    return Wrong(chosen.path, "context " + name + " is of user \"" + user_name + "\"; " +
                                  NamesIn(merged->users));
  if (user == merged->users.end()) return read;
  const Status taken = TakeUser(user->second, read);
  return taken.ok() ? Result<KubeContext>(std::move(read)) : taken.error();
}

Result<KubePluginAnswer> ReadPluginAnswer(std::string_view text, const std::string& api_version) {
  const LooseJson root = ParseJson(text);
  if (TextAt(root, "kind") != "ExecCredential")
    return Error{ErrorCode::kCorrupt, "it did not print an ExecCredential"};
  if (const std::string version = TextAt(root, "apiVersion"); version != api_version)
    return Error{ErrorCode::kCorrupt, "it printed an ExecCredential of " + Printable(version, 60) +
                                          ", " + api_version + " was asked for"};
  const LooseJson& status = At(root, "status");
  KubePluginAnswer answer;
  answer.token = TextAt(status, "token");
  answer.certificate = TextAt(status, "clientCertificateData");
  answer.key = TextAt(status, "clientKeyData");
  if (answer.token.empty() && (answer.certificate.empty() || answer.key.empty()))
    return Error{ErrorCode::kCorrupt, "what it printed has neither a token nor a certificate"};
  const std::string expires = TextAt(status, "expirationTimestamp");
  if (expires.empty()) return answer;
  answer.expires_s = ParseCloudTime(expires);
  if (!answer.expires_s)
    return Error{ErrorCode::kCorrupt, "what it printed expires at no time that can be read"};
  return answer;
}

}  // namespace troupe::kubernetes
