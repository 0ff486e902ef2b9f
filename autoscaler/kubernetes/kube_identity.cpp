#include "autoscaler/kubernetes/kube_identity.h"

#include <sstream>
#include <utility>
#include <vector>

#include "autoscaler/cloud_world.h"

namespace troupe::kubernetes {
namespace {

constexpr const char* kAccountFolder = "/var/run/secrets/kubernetes.io/serviceaccount";

std::string Trimmed(const std::string& text) {
  const size_t from = text.find_first_not_of(" \t\r\n");
  const size_t to = text.find_last_not_of(" \t\r\n");
  return from == std::string::npos ? "" : text.substr(from, to + 1 - from);
}

}  // namespace

KubeWorld RealKubeWorld() { return {&EnvironmentVariable, &ReadCloudFile, nullptr, &WallSeconds}; }

Result<std::string> KubeIdentity::ReadNamed(const std::string& path,
                                            const std::string& what) const {
  std::optional<std::string> text = world_.read(path);
  if (text) return std::move(*text);
  return Error{ErrorCode::kInvalidArgument, what + " cannot be read: " + path};
}

Result<KubeContext> KubeIdentity::ServiceAccount(const std::string& looked) const {
  const std::string host = world_.variable("KUBERNETES_SERVICE_HOST").value_or("");
  const std::string port = world_.variable("KUBERNETES_SERVICE_PORT").value_or("443");
  const std::string folder = kAccountFolder;
  const std::string none = "no credentials for Kubernetes: " + looked;
  if (host.empty())
    return Error{ErrorCode::kNotFound, none + ", and this is no pod (KUBERNETES_SERVICE_HOST)"};
  if (!world_.read(folder + "/token"))
    return Error{ErrorCode::kNotFound, none + ", and this pod has no " + folder +
                                           "/token (automountServiceAccountToken)"};
  KubeContext context;
  context.source = "the service account of this pod";
  const bool bare = host.find(':') != std::string::npos && !host.starts_with('[');
  context.server = "https://" + (bare ? "[" + host + "]" : host) + ":" + port;
  context.token_file = folder + "/token";
  context.ca_file = folder + "/ca.crt";
  context.kube_namespace = Trimmed(world_.read(folder + "/namespace").value_or(""));
  return context;
}

Result<KubeContext> KubeIdentity::Context() const {
  std::vector<std::string> paths;
  std::string looked;
  const std::string listed = world_.variable("KUBECONFIG").value_or("");
  if (!choice_.kubeconfig.empty()) {
    paths = {choice_.kubeconfig};
    looked = "kubernetes.kubeconfig is " + choice_.kubeconfig;
  } else if (!listed.empty()) {
    std::istringstream words(listed);
    for (std::string path; std::getline(words, path, ':');) {
      if (!path.empty()) paths.push_back(path);
    }
    looked = "KUBECONFIG is " + listed;
  } else if (const std::string home = world_.variable("HOME").value_or(""); !home.empty()) {
    paths = {home + "/.kube/config"};
    looked = "KUBECONFIG is not set, and there is no " + paths[0];
  } else {
    looked = "neither KUBECONFIG nor HOME is set";
  }
  std::vector<KubeFile> files;
  for (const std::string& path : paths) {
    if (std::optional<std::string> text = world_.read(path)) files.push_back({path, *text});
  }
  const bool named = !choice_.kubeconfig.empty() || !listed.empty() || !choice_.context.empty();
  if (files.empty() && named)
    return Error{ErrorCode::kNotFound, "no credentials for Kubernetes: " + looked +
                                           (choice_.context.empty() || paths.empty()
                                                ? ", which cannot be read"
                                                : ", of which context " + choice_.context + " is")};
  if (files.empty()) return ServiceAccount(looked);
  Result<KubeContext> context = ReadKubeconfig(files, choice_.context);
  if (context.ok() || context.error().code != ErrorCode::kNotFound || named) return context;
  return ServiceAccount(context.error().message);
}

Result<KubePluginAnswer> KubeIdentity::AskPlugin(const KubeExec& exec) {
  const int64_t now_s = world_.wall_s();
  if (printed_ && (!printed_->expires_s || now_s < *printed_->expires_s - kPluginRenewAhead_s))
    return *printed_;
  ExecCommand command;
  command.argv = exec.args;
  command.argv.insert(command.argv.begin(), exec.command);
  command.env = exec.env;
  command.env["KUBERNETES_EXEC_INFO"] = exec.info;
  command.limit = kPluginLimit;
  const Result<std::string> out = world_.run(command);
  Result<KubePluginAnswer> answer =
      out.ok() ? ReadPluginAnswer(*out, exec.api_version) : out.error();
  // The old ones serve until they expire.
  if (!answer.ok() && printed_ && printed_->expires_s && now_s < *printed_->expires_s)
    return *printed_;
  if (!answer.ok()) {
    Error error = answer.error().WithContext("the plugin " + exec.command);
    if (error.code == ErrorCode::kNotFound && !exec.install_hint.empty())
      error.message += "; " + exec.install_hint;
    return error;
  }
  printed_ = std::move(*answer);
  return *printed_;
}

Result<KubeSession> KubeIdentity::SessionOf(const KubeContext& context) {
  KubeSession session;
  session.server = context.server;
  session.kube_namespace =
      choice_.kube_namespace.empty() ? context.kube_namespace : choice_.kube_namespace;
  if (session.kube_namespace.empty()) session.kube_namespace = "default";
  session.tls.server_name = context.tls_server_name;
  session.tls.insecure = context.insecure;
  session.proxy = context.proxy;
  session.impersonate = context.impersonate;
  session.source = context.source;
  session.tls.ca = context.ca;
  session.tls.certificate = context.certificate;
  session.tls.key = context.key;
  session.token = context.token;
  struct Part {
    const std::string& path;
    std::string& into;
    const char* what;
  };
  for (const Part& part :
       {Part{context.ca_file, session.tls.ca, "its certificate-authority"},
        Part{context.certificate_file, session.tls.certificate, "its client-certificate"},
        Part{context.key_file, session.tls.key, "its client-key"},
        Part{context.token_file, session.token, "its token"}}) {
    if (part.path.empty()) continue;
    Result<std::string> text = ReadNamed(part.path, part.what);
    if (!text.ok()) return text.error().WithContext(context.source);
    part.into = std::move(*text);
  }
  if (context.exec) {
    const Result<KubePluginAnswer> answer = AskPlugin(*context.exec);
    if (!answer.ok()) return answer.error().WithContext(context.source);
    if (!answer->token.empty()) session.token = answer->token;
    if (!answer->certificate.empty()) session.tls.certificate = answer->certificate;
    if (!answer->key.empty()) session.tls.key = answer->key;
  }
  session.token = Trimmed(session.token);
  return session;
}

Result<KubeSession> KubeIdentity::Session() {
  const std::lock_guard lock(mu_);
  const Result<KubeContext> context = Context();
  return context.ok() ? SessionOf(*context) : context.error();
}

void KubeIdentity::Forget(const KubeSession& refused) {
  const std::lock_guard lock(mu_);
  if (!printed_) return;
  const bool by_token = !printed_->token.empty();
  if (by_token ? Trimmed(printed_->token) == refused.token
               : printed_->certificate == refused.tls.certificate)
    printed_.reset();
}

}  // namespace troupe::kubernetes
