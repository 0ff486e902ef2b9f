// Pods and machines of the cluster, as far as a fleet needs to know them.
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

#include "autoscaler/kubernetes/kube_errors.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

struct Toleration {
  std::string key;  // Empty: of all.
  std::string value;
  std::string effect;  // Empty: of all.
  bool exists = false;
  std::optional<int64_t> seconds;
};

struct Taint {
  std::string key;
  std::string value;
  std::string effect;
  [[nodiscard]] bool IsToleratedBy(const Toleration& toleration) const;
};

struct KubePod {
  std::string name;
  std::string uid;
  std::string version;
  std::string offer;
  std::string request_id;
  std::map<std::string, std::string> tags;
  std::string container;  // That becomes the node.
  std::string node;       // Of the cluster; empty: it has no place yet.
  std::vector<Toleration> tolerations;
  int64_t grace_s = 30;
  int64_t made_s = 0;         // Since 1970.
  std::string unschedulable;  // What the scheduler says of it.
  bool started = false;       // Its containers run, or have run.
  std::string stuck;          // "ImagePullBackOff", of a container that waits.
  std::string stuck_message;  // And why.
  std::string stuck_container;
  bool ended = false;
  std::string end;                    // "exit code 137, OOMKilled"
  std::string ended_container;        // Whose last words are worth looking for; empty: of none.
  std::optional<int64_t> deletion_s;  // Since 1970: its grace is over then.
  int64_t deletion_grace_s = 0;
  std::string disruption;  // Why it is taken, of one that is; with what is said of it.
};

struct KubeNode {
  std::string name;
  std::vector<Taint> taints;
};

template <class T>
struct KubeList {
  std::vector<T> items;
  std::string version;
  std::string next;  // Of the next page; empty: this is the last.
};

// A line of a watch.
struct KubeEvent {
  enum class Kind { kSeen, kDeleted, kBookmark, kError };
  Kind kind = Kind::kSeen;
  std::string version;                        // Of the object, or the bookmark.
  std::optional<KubePod> pod = std::nullopt;  // One of the two, of those that are seen.
  std::optional<KubeNode> node = std::nullopt;
  std::optional<KubeError> error = std::nullopt;
};

enum class KubeKind { kPods, kNodes };

[[nodiscard]] Result<KubePod> ReadPod(std::string_view json);
[[nodiscard]] Result<KubeList<KubePod>> ReadPodList(std::string_view json);
[[nodiscard]] Result<KubeList<KubeNode>> ReadNodeList(std::string_view json);
[[nodiscard]] Result<KubeEvent> ReadEvent(KubeKind kind, std::string_view line);

}  // namespace troupe::kubernetes
