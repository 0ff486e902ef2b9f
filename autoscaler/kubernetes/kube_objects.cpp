#include "autoscaler/kubernetes/kube_objects.h"

#include <algorithm>
#include <utility>

#include "autoscaler/cloud_text.h"
#include "autoscaler/internal/read_json.h"
#include "autoscaler/kubernetes/kube_pods.h"

namespace troupe::kubernetes {
namespace {

constexpr size_t kToldMax = 400;

std::string Told(const LooseJson& json, const char* key) {
  return Printable(TextAt(json, key), kToldMax);
}

std::string Joined(const std::string& reason, const std::string& message) {
  return reason + (reason.empty() || message.empty() ? "" : ": ") + message;
}

std::vector<Toleration> TolerationsOf(const LooseJson& spec) {
  std::vector<Toleration> tolerations;
  for (const LooseJson& one : ListAt(spec, "tolerations")) {
    Toleration toleration;
    toleration.key = TextAt(one, "key");
    toleration.value = TextAt(one, "value");
    toleration.effect = TextAt(one, "effect");
    toleration.exists = TextAt(one, "operator") == "Exists";
    if (At(one, "tolerationSeconds").is_number_integer())
      toleration.seconds = NumberAt(one, "tolerationSeconds");
    tolerations.push_back(std::move(toleration));
  }
  return tolerations;
}

void ReadConditions(const LooseJson& status, KubePod& pod) {
  for (const LooseJson& condition : ListAt(status, "conditions")) {
    const std::string type = TextAt(condition, "type");
    const std::string is = TextAt(condition, "status");
    if (type == "PodScheduled" && is == "False" && TextAt(condition, "reason") == "Unschedulable") {
      pod.unschedulable = Told(condition, "message");
      if (pod.unschedulable.empty()) pod.unschedulable = "the scheduler does not say why";
    }
    if (type == "DisruptionTarget" && is == "True") {
      pod.disruption = Joined(TextAt(condition, "reason"), Told(condition, "message"));
      if (pod.disruption.empty()) pod.disruption = "DisruptionTarget";
    }
  }
}

// "exit code 137, OOMKilled". Kubernetes says Error or Completed where it knows no reason.
std::string EndOf(const LooseJson& terminated) {
  const std::string reason = TextAt(terminated, "reason");
  std::string end = "exit code " + std::to_string(NumberAt(terminated, "exitCode"));
  if (!reason.empty() && reason != "Error" && reason != "Completed") end += ", " + reason;
  const std::string message = Told(terminated, "message");
  return message.empty() ? end : end + " (" + message + ")";
}

void ReadContainers(const LooseJson& statuses, const std::string& wanted, bool init, KubePod& pod) {
  for (const LooseJson& container : statuses) {
    const std::string name = TextAt(container, "name");
    const LooseJson& state = At(container, "state");
    const LooseJson& waiting = At(state, "waiting");
    const std::string reason = TextAt(waiting, "reason");
    if (!reason.empty() && reason != "ContainerCreating" && reason != "PodInitializing" &&
        pod.stuck.empty()) {
      pod.stuck = reason;
      pod.stuck_message = Told(waiting, "message");
      pod.stuck_container = name;
    }
    const LooseJson& terminated = At(state, "terminated");
    const bool failed = NumberAt(terminated, "exitCode") != 0;
    if (terminated.is_object() && (init ? failed : name == wanted)) {
      pod.ended = pod.ended || !init;
      pod.end = (init ? "container " + name + ": " : "") + EndOf(terminated);
      pod.ended_container = name;
    }
    if (!init && name == wanted && (At(state, "running").is_object() || terminated.is_object()))
      pod.started = true;
  }
}

// Which container becomes the node: the one that mounts our secret.
std::string NodeContainerOf(const LooseJson& spec) {
  for (const LooseJson& container : ListAt(spec, "containers")) {
    for (const LooseJson& mount : ListAt(container, "volumeMounts")) {
      if (TextAt(mount, "mountPath") == kBootFolder) return TextAt(container, "name");
    }
  }
  const auto& containers = ListAt(spec, "containers");
  return containers.empty() ? "" : TextAt(containers.front(), "name");
}

KubePod PodOf(const LooseJson& json) {
  KubePod pod;
  const LooseJson& metadata = At(json, "metadata");
  const LooseJson& spec = At(json, "spec");
  const LooseJson& status = At(json, "status");
  pod.name = TextAt(metadata, "name");
  pod.uid = TextAt(metadata, "uid");
  pod.version = TextAt(metadata, "resourceVersion");
  pod.made_s = ParseCloudTime(TextAt(metadata, "creationTimestamp")).value_or(0);
  const auto annotations = WordsAt(metadata, "annotations");
  const auto word = [&](const char* name) {
    const auto found = annotations.find(name);
    return found == annotations.end() ? std::string() : found->second;
  };
  pod.request_id = word(kRequestAnnotation);
  pod.offer = word(kOfferAnnotation);
  const LooseJson tags{{"tags", ParseJson(word(kTagsAnnotation))}};
  pod.tags = WordsAt(tags, "tags");
  pod.node = TextAt(spec, "nodeName");
  pod.tolerations = TolerationsOf(spec);
  pod.grace_s = std::max<int64_t>(0, NumberAt(spec, "terminationGracePeriodSeconds", 30));
  pod.deletion_s = ParseCloudTime(TextAt(metadata, "deletionTimestamp"));
  pod.deletion_grace_s = NumberAt(metadata, "deletionGracePeriodSeconds", pod.grace_s);
  ReadConditions(status, pod);
  const LooseJson& init = At(status, "initContainerStatuses");
  const LooseJson& containers = At(status, "containerStatuses");
  const std::string wanted = NodeContainerOf(spec);
  pod.container = wanted;
  if (init.is_array()) ReadContainers(init, wanted, true, pod);
  if (containers.is_array()) ReadContainers(containers, wanted, false, pod);
  const std::string phase = TextAt(status, "phase");
  pod.ended = pod.ended || phase == "Failed" || phase == "Succeeded";
  // Why the pod as a whole is over, such as Evicted, tells more than how its container ended.
  const std::string why = Joined(TextAt(status, "reason"), Told(status, "message"));
  if (pod.ended && !why.empty()) pod.end = why + (pod.end.empty() ? "" : "; " + pod.end);
  if (pod.ended && !pod.disruption.empty() && why.empty())
    pod.end = pod.disruption + "; " + pod.end;
  if (pod.ended && pod.end.empty()) pod.end = "it is " + phase;
  return pod;
}

KubeNode NodeOf(const LooseJson& json) {
  KubeNode node;
  node.name = TextAt(At(json, "metadata"), "name");
  for (const LooseJson& taint : ListAt(At(json, "spec"), "taints"))
    node.taints.push_back({TextAt(taint, "key"), TextAt(taint, "value"), TextAt(taint, "effect")});
  return node;
}

template <class T, class Read>
Result<KubeList<T>> ListOf(std::string_view text, const char* kind, Read read) {
  const LooseJson json = ParseJson(text);
  if (!At(json, "items").is_array() && TextAt(json, "kind") != kind)
    return Error{ErrorCode::kCorrupt, std::string("its answer is no ") + kind};
  KubeList<T> list;
  for (const LooseJson& item : ListAt(json, "items")) list.items.push_back(read(item));
  list.version = TextAt(At(json, "metadata"), "resourceVersion");
  list.next = TextAt(At(json, "metadata"), "continue");
  return list;
}

}  // namespace

bool Taint::IsToleratedBy(const Toleration& toleration) const {
  if (!toleration.effect.empty() && toleration.effect != effect) return false;
  if (toleration.key.empty()) return toleration.exists;
  return toleration.key == key && (toleration.exists || toleration.value == value);
}

Result<KubePod> ReadPod(std::string_view text) {
  const LooseJson json = ParseJson(text);
  if (TextAt(At(json, "metadata"), "uid").empty())
    return Error{ErrorCode::kCorrupt, "its answer is no Pod"};
  return PodOf(json);
}

Result<KubeList<KubePod>> ReadPodList(std::string_view json) {
  return ListOf<KubePod>(json, "PodList", &PodOf);
}

Result<KubeList<KubeNode>> ReadNodeList(std::string_view json) {
  return ListOf<KubeNode>(json, "NodeList", &NodeOf);
}

Result<KubeEvent> ReadEvent(KubeKind kind, std::string_view line) {
  const LooseJson json = ParseJson(line);
  const LooseJson& object = At(json, "object");
  const std::string type = TextAt(json, "type");
  if (type.empty() || !object.is_object())
    return Error{ErrorCode::kCorrupt, "a line of it is no event"};
  KubeEvent event;
  event.version = TextAt(At(object, "metadata"), "resourceVersion");
  if (type == "ERROR") {
    event.kind = KubeEvent::Kind::kError;
    event.error = ReadKubeStatus(static_cast<int>(NumberAt(object, "code", 500)), object.dump());
    return event;
  }
  if (type == "BOOKMARK") {
    event.kind = KubeEvent::Kind::kBookmark;
    return event;
  }
  event.kind = type == "DELETED" ? KubeEvent::Kind::kDeleted : KubeEvent::Kind::kSeen;
  if (kind == KubeKind::kPods) {
    event.pod = PodOf(object);
  } else {
    event.node = NodeOf(object);
  }
  return event;
}

}  // namespace troupe::kubernetes
