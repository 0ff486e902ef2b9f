#include "autoscaler/kubernetes_spec.h"

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace troupe {
namespace {

using PodJson = nlohmann::ordered_json;
using FailPod = std::function<void(const std::vector<std::string>& inside, const std::string&)>;

constexpr Range<Duration> kPodSpan{milliseconds(1), seconds(7 * 86400)};
constexpr int64_t kGraceMax_s = 86400;
constexpr const char* kNodeContainer = "troupe";
constexpr const char* kTemplateType = "a mapping, or the name of a file";

const PodJson* In(const PodJson& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && found != json.end() && !found->is_null() ? &*found : nullptr;
}

std::string TextIn(const PodJson& json, const char* key) {
  const PodJson* found = In(json, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

// Its {"metadata", "spec"}, whichever of the three it is.
std::optional<PodJson> PodIn(const PodJson& given, const FailPod& fail) {
  const std::string kind = TextIn(given, "kind");
  if (!kind.empty() && kind != "Pod" && kind != "PodTemplate") {
    fail({"kind"}, "expected Pod or PodTemplate, got " + kind + "; give its pod template alone");
    return std::nullopt;
  }
  std::vector<std::string> path;
  const PodJson* pod = &given;
  if (kind == "PodTemplate" || (In(given, "spec") == nullptr && In(given, "template") != nullptr)) {
    path = {"template"};
    pod = In(given, "template");
  }
  if (pod == nullptr || In(*pod, "spec") == nullptr || !In(*pod, "spec")->is_object()) {
    path.emplace_back("spec");
    fail(path, "a pod's spec is missing");
    return std::nullopt;
  }
  for (const auto& [key, value] : pod->items()) {
    if (key == "metadata" || key == "spec") continue;
    if (path.empty() && (key == "apiVersion" || key == "kind" || key == "status")) continue;
    auto at = path;
    at.push_back(key);
    fail(at, "a pod template has metadata and spec, nothing else");
  }
  return PodJson{
      {"metadata", In(*pod, "metadata") == nullptr ? PodJson::object() : *In(*pod, "metadata")},
      {"spec", *In(*pod, "spec")}};
}

// Which container becomes the node. None: told.
std::optional<size_t> NodeContainer(const PodJson& spec, const FailPod& fail) {
  const PodJson* containers = In(spec, "containers");
  if (containers == nullptr || !containers->is_array() || containers->empty()) {
    fail({"spec", "containers"}, "at least one container is needed");
    return std::nullopt;
  }
  std::optional<size_t> named;
  for (size_t i = 0; i < containers->size(); ++i) {
    if (!(*containers)[i].is_object()) {
      fail({"spec", "containers", std::to_string(i)}, "expected a mapping");
      return std::nullopt;
    }
    if (TextIn((*containers)[i], "name") == kNodeContainer) named = i;
  }
  if (!named && containers->size() == 1) named = 0;
  if (!named)
    fail({"spec", "containers"}, "which one becomes the node? Of several it is called troupe");
  return named;
}

void CheckContainer(const PodJson& container, size_t index, const FailPod& fail) {
  const std::string at = std::to_string(index);
  for (const char* key : {"command", "args"}) {
    if (In(container, key) != nullptr)
      fail({"spec", "containers", at, key},
           "the node's container runs the node; commands before it go into nodes.setup");
  }
  if (TextIn(container, "image").empty())
    fail({"spec", "containers", at, "image"}, "which image? Or give kubernetes.image");
}

void CheckSpec(const PodJson& spec, const FailPod& fail, PodTemplate& pod) {
  if (const PodJson* restarts = In(spec, "restartPolicy");
      restarts != nullptr && *restarts != "Never")
    fail({"spec", "restartPolicy"}, "must be Never: a node that has ended is replaced by another");
  const PodJson* grace = In(spec, "terminationGracePeriodSeconds");
  if (grace == nullptr) return;
  if (!grace->is_number_integer() || *grace < 0 || *grace > kGraceMax_s) {
    fail({"spec", "terminationGracePeriodSeconds"}, "expected a number of seconds up to 86400");
  } else {
    pod.grace = seconds(grace->get<int64_t>());
  }
}

void CheckMetadata(const PodJson& metadata, const std::string& kube_namespace,
                   const FailPod& fail) {
  for (const char* part : {"labels", "annotations"}) {
    const PodJson* words = In(metadata, part);
    if (words == nullptr) continue;
    if (!words->is_object()) {
      fail({"metadata", part}, "expected a mapping of words");
      continue;
    }
    for (const auto& [key, value] : words->items()) {
      if (key.starts_with(kKubeDomain))
        fail({"metadata", part, key}, "names that begin with troupe.dev/ are not yours");
      if (!value.is_string())
        fail({"metadata", part, key}, "expected a string; write it in quotes");
    }
  }
  const std::string other = TextIn(metadata, "namespace");
  if (!other.empty() && other != kube_namespace)
    fail({"metadata", "namespace"}, "pods go into kubernetes.namespace; name " + other + " there");
}

PodTemplate Checked(const PodJson& given, const std::string& image,
                    const std::string& kube_namespace, const FailPod& fail) {
  PodTemplate pod;
  std::optional<PodJson> parts = PodIn(given, fail);
  if (!parts) return pod;
  PodJson& spec = (*parts)["spec"];
  CheckMetadata((*parts)["metadata"], kube_namespace, fail);
  CheckSpec(spec, fail, pod);
  const std::optional<size_t> index = NodeContainer(spec, fail);
  if (!index) return pod;
  PodJson& container = spec["containers"][*index];
  if (!image.empty()) container["image"] = image;
  CheckContainer(container, *index, fail);
  if (TextIn(container, "name").empty()) container["name"] = kNodeContainer;
  pod.container = TextIn(container, "name");
  pod.json = parts->dump();
  return pod;
}

PodTemplate ReadTemplate(const ConfigMap& map, const std::string& folder, const std::string& image,
                         const std::string& kube_namespace) {
  const std::string text = map.Json("template", kTemplateType);
  const PodJson given = PodJson::parse(text.empty() ? "null" : text);
  if (given.is_null()) {
    if (image.empty()) return {};
    const PodJson plain{{"spec", {{"containers", {{{"name", kNodeContainer}, {"image", image}}}}}}};
    return Checked(plain, "", kube_namespace, [](const auto&, const auto&) {});
  }
  if (given.is_object()) {
    return Checked(given, image, kube_namespace,
                   [&](const std::vector<std::string>& inside, const std::string& what) {
                     map.FailInside("template", inside, what);
                   });
  }
  if (!given.is_string()) {
    map.Fail("template", std::string("expected ") + kTemplateType);
    return {};
  }
  const std::filesystem::path path = std::filesystem::path(folder) / given.get<std::string>();
  const Result<ConfigDocument> document = ConfigDocument::ParseFile(path.string());
  if (!document.ok()) {
    map.Fail("template", document.error().message);
    return {};
  }
  const ConfigMap root = document->Root();
  PodTemplate pod = Checked(PodJson::parse(root.Json("", kTemplateType)), image, kube_namespace,
                            [&](const std::vector<std::string>& inside, const std::string& what) {
                              root.FailInside("", inside, what);
                            });
  if (const Status status = document->Finish(); !status.ok())
    map.Fail("template", status.error().message);
  return pod;
}

}  // namespace

KubernetesSpec ReadKubernetes(const ConfigMap& root, const std::string& folder, bool chosen) {
  const ConfigMap map = root.Map("kubernetes");
  KubernetesSpec spec;
  spec.kube_namespace = map.String("namespace", "");
  spec.kubeconfig = map.String("kubeconfig", "");
  spec.context = map.String("context", "");
  spec.image = map.String("image", "");
  spec.pod = ReadTemplate(map, folder, spec.image, spec.kube_namespace);
  spec.timeout = map.Span("timeout", spec.timeout, kPodSpan);
  spec.interval = map.Span("interval", spec.interval, kPodSpan);
  spec.schedule_within = map.Span("schedule_within", spec.schedule_within, kPodSpan);
  if (!chosen && root.Has("kubernetes"))
    root.Fail("kubernetes", "is of no use without provider: kubernetes");
  return spec;
}

PodTemplate ReadPodOfPool(const ConfigMap& pool, const std::string& folder,
                          const KubernetesSpec& spec) {
  const std::string image = pool.String("image", "");
  if (pool.Has("template") || spec.pod.empty())
    return ReadTemplate(pool, folder, image.empty() ? spec.image : image, spec.kube_namespace);
  (void)pool.Json("template", kTemplateType);
  if (image.empty()) return spec.pod;
  PodTemplate pod = spec.pod;
  PodJson parts = PodJson::parse(pod.json);
  for (PodJson& container : parts["spec"]["containers"]) {
    if (TextIn(container, "name") == pod.container) container["image"] = image;
  }
  pod.json = parts.dump();
  return pod;
}

}  // namespace troupe
