// The files in which kubectl keeps clusters, users and contexts, and what the plugins print that
// such a file names.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace troupe::kubernetes {

struct KubeFile {
  std::string path;
  std::string text;
};

// A program that prints credentials.
struct KubeExec {
  std::string command;  // A name is looked for on PATH.
  std::vector<std::string> args;
  std::map<std::string, std::string> env;
  std::string api_version;
  std::string install_hint;
  std::string folder;  // Of the kubeconfig; only a command with a slash is looked for there.
  std::string info;    // For KUBERNETES_EXEC_INFO.
};

// A context, with its cluster and its user. Paths are whole; contents are decoded.
struct KubeContext {
  std::string source;  // "context dev of /home/me/.kube/config".
  std::string server;
  std::string kube_namespace;
  std::string ca;
  std::string ca_file;
  bool insecure = false;
  std::string tls_server_name;
  std::string proxy;
  std::string token;
  std::string token_file;
  std::string certificate;
  std::string certificate_file;
  std::string key;
  std::string key_file;
  std::string impersonate;
  std::optional<KubeExec> exec;
};

// What a plugin has printed.
struct KubePluginAnswer {
  std::string token;
  std::string certificate;
  std::string key;
  std::optional<int64_t> expires_s;  // Since 1970; none: good until it is refused.
};

// `context`: empty: the current one. Of several files the first that says something counts, as with
// kubectl. kNotFound: no file names a context, and none was asked for. kInvalidArgument: which file
// says what that cannot be.
[[nodiscard]] Result<KubeContext> ReadKubeconfig(const std::vector<KubeFile>& files,
                                                 const std::string& context);
// kCorrupt, without a word of what it says: it may be half a secret.
[[nodiscard]] Result<KubePluginAnswer> ReadPluginAnswer(std::string_view text,
                                                        const std::string& api_version);

}  // namespace troupe::kubernetes
