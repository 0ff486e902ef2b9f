// Where the API is and who asks it: a kubeconfig, or the service account of the pod that this runs
// in. They are looked for as kubectl does it: the cluster file's, KUBECONFIG, ~/.kube/config, the
// service account.
//
// Files are read again with each session, so that a token that was renewed is used at once; what a
// plugin has printed is kept until it expires, or is refused. No secret stands in an error.
// Thread: any. Whoever needs a session while another thread runs a plugin waits for it, no longer
// than its limit.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "autoscaler/exec_command.h"
#include "autoscaler/kubernetes/kube_config.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr int64_t kPluginRenewAhead_s = 60;  // Of an expiry.
inline constexpr Duration kPluginLimit = seconds(60);

// What is asked of the world; tests have one of their own.
struct KubeWorld {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::function<std::optional<std::string>(const std::string& path)> read;
  std::function<Result<std::string>(const ExecCommand&)> run;  // What it prints.
  std::function<int64_t()> wall_s;                             // Seconds since 1970.
};
// Without `run`, which is the caller's.
[[nodiscard]] KubeWorld RealKubeWorld();

// What a cluster file says of it; empty: not given.
struct KubeChoice {
  std::string kubeconfig;  // A path.
  std::string context;
  std::string kube_namespace;
};

// With what requests are sent now.
struct KubeSession {
  std::string server;  // "https://10.0.0.1:6443".
  std::string kube_namespace;
  HttpTls tls;
  std::string proxy;
  std::string token;        // Empty: a certificate, or nobody.
  std::string impersonate;  // A user.
  std::string source;       // For people.
};

class KubeIdentity {
 public:
  KubeIdentity(KubeWorld world, KubeChoice choice)
      : world_(std::move(world)), choice_(std::move(choice)) {}

  // kNotFound: there are no credentials; it says where they were looked for.
  Result<KubeSession> Session();
  // These were refused: what is kept of them is not used again.
  void Forget(const KubeSession& refused);
  [[nodiscard]] int64_t Wall_s() const { return world_.wall_s(); }

 private:
  [[nodiscard]] Result<KubeContext> Context() const;
  [[nodiscard]] Result<KubeContext> ServiceAccount(const std::string& looked) const;
  Result<KubePluginAnswer> AskPlugin(const KubeExec& exec);
  [[nodiscard]] Result<std::string> ReadNamed(const std::string& path,
                                              const std::string& what) const;
  Result<KubeSession> SessionOf(const KubeContext& context);

  const KubeWorld world_;
  const KubeChoice choice_;
  std::mutex mu_;  // Of what follows.
  std::optional<KubePluginAnswer> printed_;
};

}  // namespace troupe::kubernetes
