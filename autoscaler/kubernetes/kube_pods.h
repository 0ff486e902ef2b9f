// How a node is asked for: the names, labels and bodies of a pod and of the secret that holds its
// boot script.
//
// A name follows from the order, so that repeating one makes nothing new. The whole of what labels
// have no room for stands in annotations.
// Pure.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/kubernetes/kube_identity.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr const char* kClusterLabel = "troupe.dev/cluster";
inline constexpr const char* kPoolLabel = "troupe.dev/pool";
inline constexpr const char* kNodeLabel = "troupe.dev/node";
inline constexpr const char* kRequestAnnotation = "troupe.dev/request";
inline constexpr const char* kOfferAnnotation = "troupe.dev/offer";
inline constexpr const char* kTagsAnnotation = "troupe.dev/tags";  // A JSON object.
inline constexpr const char* kBootKey = "boot.sh";
inline constexpr const char* kBootFolder = "/etc/troupe-boot";
// Of a secret; Kubernetes takes a MiB.
inline constexpr size_t kBootMax = 1'000'000;

// A pool.
struct KubeOffer {
  std::string pod;        // {"metadata", "spec"}, as JSON.
  std::string container;  // Which becomes the node.
  Duration grace = seconds(30);
  std::map<std::string, double> resources;  // Of the node.
};

struct KubeOptions {
  KubeChoice choice;
  std::string cluster;
  std::string life;  // Of this autoscaler.
  Duration limit = seconds(60);
  Duration schedule_within = seconds(300);
  Duration silence = seconds(90);  // A watch that says nothing for so long is over.
  std::map<std::string, KubeOffer> offers;
};

struct PodOwner {
  std::string name;
  std::string uid;
};

// At most 63 bytes, as a label's value may be: itself, or its begin and a digest.
[[nodiscard]] std::string LabelValue(const std::string& text);
// "labelSelector=...", of a cluster's pods.
[[nodiscard]] std::string PodSelector(const std::string& cluster);
// Of an order's pods, and of its secret.
[[nodiscard]] std::string PodName(const MachineOrder& order, int index);
[[nodiscard]] std::string SecretName(const MachineOrder& order);
// kInvalidArgument: the template is no pod.
[[nodiscard]] Result<std::string> PodBody(const KubeOptions& options, const KubeOffer& offer,
                                          const MachineOrder& order, int index);
// The garbage collector removes it when the last of its owners has gone.
[[nodiscard]] std::string SecretBody(const KubeOptions& options, const MachineOrder& order,
                                     const std::vector<PodOwner>& owners);
// `uid`: empty: of whichever pod has the name.
[[nodiscard]] std::string DeleteBody(const std::string& uid, int64_t grace_s);

}  // namespace troupe::kubernetes
