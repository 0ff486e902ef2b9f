#include "autoscaler/kubernetes/kube_pods.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "autoscaler/cloud_text.h"
#include "autoscaler/internal/read_json.h"
#include "autoscaler/kubernetes/kube_caller.h"

namespace troupe::kubernetes {
namespace {

constexpr size_t kLabelMax = 63;
constexpr size_t kNamePart = 22;  // Two of them, a digest and a number are less than a host's name.
// Nobody gains by two texts of one digest: a name that is taken is looked at before it counts.
constexpr size_t kDigest = 12;
constexpr const char* kBootVolume = "troupe-boot";
constexpr const char* kGpu = "nvidia.com/gpu";

bool IsLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool IsLabel(const std::string& text) {
  if (text.empty()) return true;
  return text.size() <= kLabelMax && IsLetter(text.front()) && IsLetter(text.back()) &&
         std::ranges::all_of(
             text, [](char c) { return IsLetter(c) || c == '-' || c == '_' || c == '.'; });
}

// Small letters, digits and dashes, with which a host's name may begin and go on.
std::string HostPart(const std::string& text) {
  std::string part;
  for (const char c : text.substr(0, kNamePart)) {
    const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    part += IsLetter(small) ? small : '-';
  }
  const size_t from = part.find_first_not_of('-');
  return from == std::string::npos ? "x" : part.substr(from);
}

LooseJson MetadataOf(const KubeOptions& options, const MachineOrder& order,
                     const std::string& name) {
  return {{"name", name},
          {"labels",
           {{"app.kubernetes.io/managed-by", "troupe"},
            {kClusterLabel, LabelValue(options.cluster)},
            {kPoolLabel, LabelValue(order.offer)},
            {kNodeLabel, LabelValue(TagOf(order.tags, kNodeTag))}}},
          {"annotations",
           {{kRequestAnnotation, order.request_id},
            {kOfferAnnotation, order.offer},
            {kTagsAnnotation, LooseJson(order.tags).dump()}}}};
}

// As Kubernetes writes amounts: whole ones, or thousandths.
std::string Quantity(double amount) {
  const auto thousandths = static_cast<int64_t>(std::llround(amount * 1000));
  if (thousandths % 1000 == 0) return std::to_string(thousandths / 1000);
  return std::to_string(std::max<int64_t>(1, thousandths)) + "m";
}

// Asks for what the node will have, where the template says nothing of it.
void AskFor(LooseJson& container, const std::string& resource, const std::string& amount,
            bool extended) {
  LooseJson& resources = container["resources"];
  if (!resources.is_object()) resources = LooseJson::object();
  for (const char* part : {"requests", "limits"}) {
    if (At(resources, part).is_null()) resources.erase(part);
    if (At(At(resources, part), resource.c_str()).is_null() == false) return;
  }
  // What is not shared, such as a GPU, has a limit, from which its request follows.
  resources[extended ? "limits" : "requests"][resource] = amount;
}

bool NamesGpu(const LooseJson& container) {
  for (const char* part : {"requests", "limits"}) {
    const LooseJson& amounts = At(At(container, "resources"), part);
    if (!amounts.is_object()) continue;
    for (const auto& [name, amount] : amounts.items()) {
      if (name.find("gpu") != std::string::npos) return true;
    }
  }
  return false;
}

void AskForAll(LooseJson& container, const std::map<std::string, double>& resources) {
  for (const auto& [name, amount] : resources) {
    if (amount <= 0) continue;
    if (name == "CPU") {
      AskFor(container, "cpu", Quantity(amount), false);
    } else if (name == "memory") {
      AskFor(container, "memory", std::to_string(std::llround(amount)), false);
    } else if (name == "GPU") {
      if (!NamesGpu(container)) AskFor(container, kGpu, Quantity(std::ceil(amount)), true);
    } else if (name.find('/') != std::string::npos) {
      AskFor(container, name, Quantity(std::ceil(amount)), true);
    }
  }
}

void Append(LooseJson& parent, const char* list, LooseJson value) {
  if (!At(parent, list).is_array()) parent[list] = LooseJson::array();
  parent[list].push_back(std::move(value));
}

// The node's container runs the script of the secret.
void AddBoot(LooseJson& spec, LooseJson& container, const MachineOrder& order) {
  Append(spec, "volumes", {{"name", kBootVolume}, {"secret", {{"secretName", SecretName(order)}}}});
  Append(container, "volumeMounts",
         {{"name", kBootVolume}, {"mountPath", kBootFolder}, {"readOnly", true}});
  container["command"] = {"/bin/sh", std::string(kBootFolder) + "/" + kBootKey};
}

void TakeWords(LooseJson& into, const LooseJson& from) {
  if (!from.is_object()) return;
  for (const auto& [name, value] : from.items()) {
    if (!into.contains(name)) into[name] = value;
  }
}

}  // namespace

std::string LabelValue(const std::string& text) {
  if (IsLabel(text)) return text;
  std::string begin = text.substr(0, kLabelMax - 14);
  for (char& c : begin) {
    if (!IsLetter(c) && c != '-' && c != '.') c = '_';
  }
  return "x" + begin + "-" + HexHash(text).substr(0, kDigest);
}

std::string PodSelector(const std::string& cluster) {
  return "labelSelector=" + Escaped(std::string(kClusterLabel) + "=" + LabelValue(cluster));
}

std::string SecretName(const MachineOrder& order) {
  std::string whole = order.request_id;
  for (const auto& [name, value] : order.tags) whole += '\0' + name + '\0' + value;
  const std::string node = TagOf(order.tags, kNodeTag);
  return HostPart(TagOf(order.tags, kClusterTag)) + "-" +
         HostPart(node.empty() ? order.offer : node) + "-" + HexHash(whole).substr(0, kDigest);
}

std::string PodName(const MachineOrder& order, int index) {
  return SecretName(order) + (index == 0 ? "" : "-" + std::to_string(index));
}

Result<std::string> PodBody(const KubeOptions& options, const KubeOffer& offer,
                            const MachineOrder& order, int index) {
  const LooseJson given = ParseJson(offer.pod);
  LooseJson spec = At(given, "spec");
  if (!spec.is_object() || !At(spec, "containers").is_array())
    return InvalidArgument("the template of pool " + order.offer + " is no pod");
  LooseJson metadata = MetadataOf(options, order, PodName(order, index));
  const LooseJson& theirs = At(given, "metadata");
  TakeWords(metadata["labels"], At(theirs, "labels"));
  TakeWords(metadata["annotations"], At(theirs, "annotations"));
  // Whoever tidies up nodes asks first; the template may say otherwise.
  TakeWords(metadata["annotations"], {{"karpenter.sh/do-not-disrupt", "true"},
                                      {"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"}});
  if (theirs.is_object()) {
    for (const auto& [name, value] : theirs.items()) {
      if (name == "finalizers") metadata[name] = value;
    }
  }
  spec["restartPolicy"] = "Never";
  for (LooseJson& container : spec["containers"]) {
    if (TextAt(container, "name") != offer.container) continue;
    AskForAll(container, offer.resources);
    AddBoot(spec, container, order);
  }
  return LooseJson{{"apiVersion", "v1"}, {"kind", "Pod"}, {"metadata", metadata}, {"spec", spec}}
      .dump();
}

std::string SecretBody(const KubeOptions& options, const MachineOrder& order,
                       const std::vector<PodOwner>& owners) {
  LooseJson metadata = MetadataOf(options, order, SecretName(order));
  for (const PodOwner& owner : owners) {
    Append(metadata, "ownerReferences",
           {{"apiVersion", "v1"}, {"kind", "Pod"}, {"name", owner.name}, {"uid", owner.uid}});
  }
  return LooseJson{{"apiVersion", "v1"},   {"kind", "Secret"},
                   {"metadata", metadata}, {"type", "Opaque"},
                   {"immutable", true},    {"stringData", {{kBootKey, order.user_data}}}}
      .dump();
}

std::string DeleteBody(const std::string& uid, int64_t grace_s) {
  LooseJson body{{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"gracePeriodSeconds", grace_s}};
  if (!uid.empty()) body["preconditions"] = {{"uid", uid}};
  return body.dump();
}

}  // namespace troupe::kubernetes
