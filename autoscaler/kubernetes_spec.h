// What a cluster file says of Kubernetes: how it is reached, and what the pods are like that become
// nodes.
//
// A template is a Pod, a PodTemplate or a PodTemplateSpec, in the cluster file or in a file beside
// it. Whatever it says goes to Kubernetes as it is; only what a node needs is looked at.
// Thread: plain values.
#pragma once

#include <string>
#include <string_view>

#include "runtime/clock.h"
#include "runtime/config.h"
#include "runtime/result.h"

namespace troupe {

struct PodTemplate {
  std::string json;              // {"metadata": {...}, "spec": {...}}; empty: there is none.
  std::string container;         // Its name, of the one that becomes the node.
  Duration grace = seconds(30);  // From SIGTERM to SIGKILL.
  [[nodiscard]] bool empty() const { return json.empty(); }
};

// Pods (autoscaler/kubernetes/kube_machines.h), one for each node.
struct KubernetesSpec {
  std::string kube_namespace;  // Empty, also of the next two: as kubectl finds it.
  std::string kubeconfig;      // From the file's folder on.
  std::string context;
  std::string image;                        // Of the node's container.
  PodTemplate pod;                          // Of pools without one of their own.
  Duration timeout = seconds(60);           // Of one order, deletion or listing.
  Duration interval = seconds(1);           // Between two looks at what was heard.
  Duration schedule_within = seconds(300);  // A pod that has no place by then is given up.
};

// The name under which labels and annotations of ours are known.
inline constexpr std::string_view kKubeDomain = "troupe.dev/";

// Of the root of a cluster file, whose folder is `folder`. `chosen`: provider: kubernetes.
[[nodiscard]] KubernetesSpec ReadKubernetes(const ConfigMap& root, const std::string& folder,
                                            bool chosen);
// The template of a pool: its own or that of all, with its image or that of all. Problems are told.
[[nodiscard]] PodTemplate ReadPodOfPool(const ConfigMap& pool, const std::string& folder,
                                        const KubernetesSpec& spec);

}  // namespace troupe
