#include "autoscaler/kubernetes/kube_inventory.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace troupe::kubernetes {
namespace {

constexpr Duration kSpotEnds = seconds(15);  // GKE gives pods so long when it takes a machine.

// Of how Kubernetes numbers what changes; none: it is no number.
std::optional<uint64_t> NumberOf(const std::string& version) {
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(version.data(), version.data() + version.size(), number);
  if (error != std::errc() || end != version.data() + version.size()) return std::nullopt;
  return number;
}

bool IsOlder(const std::string& one, const std::string& other) {
  const auto a = NumberOf(one);
  const auto b = NumberOf(other);
  return a && b && *a < *b;
}

// How long after its taint a machine takes its pods back. None: it does not.
std::optional<Duration> LeadOf(const Taint& taint, const KubePod& pod) {
  const Duration grace = seconds(pod.grace_s);
  const std::string& key = taint.key;
  if (key == "node.kubernetes.io/out-of-service") return Duration::zero();
  if (key == "cloud.google.com/impending-node-termination") return std::min(grace, kSpotEnds);
  if (key == "karpenter.sh/disrupted" || key == "karpenter.sh/disruption" ||
      key == "ToBeDeletedByClusterAutoscaler" || key.starts_with("aws-node-termination-handler/"))
    return grace;
  // A machine that is not heard of may be again; whether its node is, the head knows better.
  if (taint.effect != "NoExecute" || key == "node.kubernetes.io/unreachable" ||
      key == "node.kubernetes.io/not-ready")
    return std::nullopt;
  std::optional<Duration> lead = grace;
  for (const Toleration& toleration : pod.tolerations) {
    if (!taint.IsToleratedBy(toleration)) continue;
    if (!toleration.seconds) return std::nullopt;
    lead = seconds(std::max<int64_t>(0, *toleration.seconds)) + grace;
  }
  return lead;
}

bool HasPart(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(
      parts, [&](const char* part) { return text.find(part) != std::string::npos; });
}

}  // namespace

bool KubeInventory::WasGone(const std::string& uid) const {
  return std::ranges::find(gone_, uid) != gone_.end();
}

void KubeInventory::Lost(Known& known) {
  if (known.gone) return;
  known.gone = true;
  gone_.push_back(known.pod.uid);
  if (gone_.size() > kGoneKept) gone_.pop_front();
}

void KubeInventory::Seen(Time now, const KubePod& pod, std::optional<int64_t> wall_s) {
  Known& known = known_[pod.name];
  const bool other = !known.pod.uid.empty() && known.pod.uid != pod.uid;
  if (other || (known.gone && known.pod.uid != pod.uid)) {
    const bool hidden = known.hidden;
    known = Known{};
    known.hidden = hidden;
  }
  if (known.pod.uid == pod.uid && (known.gone || IsOlder(pod.version, known.pod.version))) return;
  if (known.pod.uid.empty()) known.made_at = now;
  if (pod.stuck != known.pod.stuck || pod.stuck_container != known.pod.stuck_container) {
    const bool image = pod.stuck.find("ImagePull") != std::string::npos &&
                       known.pod.stuck.find("ImagePull") != std::string::npos;
    if (!image) known.stuck_at = now;  // Those two take turns.
  }
  known.pod = pod;
  known.listed = true;
  if (pod.deletion_s) {
    // Told as it happens it has its whole grace. Later this host's clock says what is left of it.
    const int64_t left_s = wall_s ? std::clamp<int64_t>(*pod.deletion_s - *wall_s, 0,
                                                        std::max<int64_t>(0, pod.deletion_grace_s))
                                  : pod.deletion_grace_s;
    const Time at = now + seconds(left_s);
    known.taken_at = std::min(at, known.taken_at.value_or(at));
  }
  if (!pod.disruption.empty() && !known.disrupted_at)
    known.disrupted_at = now + seconds(pod.grace_s);
}

void KubeInventory::ListedPods(Time now, int64_t wall_s, const std::vector<KubePod>& pods,
                               const std::string& version) {
  std::set<std::string> names;
  for (const KubePod& pod : pods) {
    names.insert(pod.name);
    Seen(now, pod, wall_s);
  }
  for (auto& [name, known] : known_) {
    if (names.contains(name) || known.pod.uid.empty()) continue;
    // It may have been made after the list was.
    const auto made = NumberOf(known.pod.version);
    const auto listed = NumberOf(version);
    const bool newer = made && listed ? *made > *listed : now < known.made_at + kPodListLag;
    if (!known.listed && newer) continue;
    Lost(known);
  }
}

void KubeInventory::Told(Time now, const KubeEvent& event) {
  if (event.node) {
    if (event.kind == KubeEvent::Kind::kDeleted) {
      nodes_.erase(event.node->name);
    } else {
      SeenNode(now, *event.node);
    }
  }
  if (!event.pod) return;
  Seen(now, *event.pod, std::nullopt);
  if (event.kind != KubeEvent::Kind::kDeleted) return;
  Known& known = known_[event.pod->name];
  if (known.pod.uid == event.pod->uid) Lost(known);
}

void KubeInventory::SeenNode(Time now, const KubeNode& node) {
  NodeTaints& entry = nodes_[node.name];
  entry.taints = node.taints;
  std::erase_if(entry.since, [&](const auto& one) {
    return std::ranges::none_of(node.taints,
                                [&](const Taint& taint) { return taint.key == one.first; });
  });
  for (const Taint& taint : node.taints) entry.since.emplace(taint.key, now);
}

void KubeInventory::ListedNodes(Time now, const std::vector<KubeNode>& nodes) {
  std::set<std::string> names;
  for (const KubeNode& node : nodes) {
    names.insert(node.name);
    SeenNode(now, node);
  }
  std::erase_if(nodes_, [&](const auto& entry) { return !names.contains(entry.first); });
}

void KubeInventory::Made(Time now, const KubePod& pod) {
  Known& known = known_[pod.name];
  if (known.pod.uid == pod.uid) return;  // The watch was faster.
  known.pod = pod;
  known.made_at = now;
  known.gone = WasGone(pod.uid);
}

void KubeInventory::Ending(Time now, const std::string& name) {
  const auto found = known_.find(name);
  if (found == known_.end() || std::exchange(found->second.ending, true)) return;
  found->second.ending_at = now;
}

void KubeInventory::Gone(const std::string& name) {
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  found->second.ending = true;
  Lost(found->second);
}

void KubeInventory::LastWords(const std::string& uid, const std::string& words) {
  for (auto& [name, known] : known_) {
    if (known.pod.uid == uid) known.words = words;
  }
}

void KubeInventory::Show(const std::string& name) {
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  found->second.hidden = false;
  if (found->second.pod.uid.empty() || found->second.gone) known_.erase(found);
}

bool KubeInventory::IsOurs(const Known& known) const {
  return TagOf(known.pod.tags, kLifeTag) == life_;
}

bool KubeInventory::WantsWords(const Known& known) const {
  return known.pod.ended && !known.pod.ended_container.empty() && !known.ending && !known.gone &&
         IsOurs(known);
}

std::vector<std::string> KubeInventory::TakeRelics(Time now) {
  std::vector<std::string> relics;
  for (auto& [name, known] : known_) {
    if (!known.pod.ended || known.pod.deletion_s || known.gone || IsOurs(known)) continue;
    if (!known.relic_at) known.relic_at = now + kRelicAge;
    if (now < *known.relic_at) continue;
    known.relic_at = now + kEndAgain;
    relics.push_back(name);
  }
  return relics;
}

bool KubeInventory::HasWords(const Known& known, Time now) {
  return known.words || (known.words_at && now >= *known.words_at + kWordsPatience);
}

std::vector<WordsAsked> KubeInventory::TakeWords(Time now) {
  std::vector<WordsAsked> asked;
  for (auto& [name, known] : known_) {
    if (known.words_at || !WantsWords(known)) continue;
    known.words_at = now;
    asked.push_back({name, known.pod.uid, known.pod.ended_container});
  }
  return asked;
}

WordsAsked KubeInventory::WordsOf(const std::string& name) const {
  const auto found = known_.find(name);
  if (found == known_.end() || !found->second.pod.started || found->second.gone) return {};
  const KubePod& pod = found->second.pod;
  return {name, pod.uid, pod.container};
}

std::string KubeInventory::EndText(const Known& known) {
  std::string text = known.pod.end;
  if (text.empty())
    text = "it was deleted" + (known.pod.disruption.empty() ? "" : ": " + known.pod.disruption);
  const std::string words = known.words.value_or("");
  return text + (words.empty() ? "" : "; its last words: " + words);
}

std::optional<Status> KubeInventory::JudgeOne(Time now, const std::string& name, Time until) {
  const auto found = known_.find(name);
  const Known none;
  const Known& known = found == known_.end() ? none : found->second;
  const KubePod& pod = known.pod;
  const std::string told = "pod " + name;
  if (known.pod.uid.empty() || known.gone)
    return Error{ErrorCode::kUnavailable, told + " has gone: " + EndText(known)};
  if (pod.ended) {
    if (WantsWords(known) && !HasWords(known, now)) return std::nullopt;
    return Error{ErrorCode::kUnavailable, told + " has ended: " + EndText(known)};
  }
  if (pod.deletion_s) return Error{ErrorCode::kUnavailable, told + " was deleted by somebody else"};
  if (pod.started) return Status::Ok();
  if (pod.node.empty() && now >= until) {
    const std::string why =
        pod.unschedulable.empty() ? "the scheduler has not said why" : pod.unschedulable;
    return Error{ErrorCode::kResourceExhausted, "no capacity: " + told + " had no place: " + why};
  }
  if (pod.stuck.empty()) return std::nullopt;
  const std::string why = "container " + pod.stuck_container + " of " + told + ": " + pod.stuck +
                          (pod.stuck_message.empty() ? "" : ": " + pod.stuck_message);
  const bool image = HasPart(pod.stuck, {"ImagePull", "Registry", "ImageInspect"});
  const bool never = HasPart(pod.stuck, {"InvalidImageName", "ErrImageNeverPull"}) ||
                     (image && HasPart(pod.stuck_message, {"not found", "does not exist",
                                                           "manifest unknown", "unauthorized"}));
  if (never) return Error{ErrorCode::kInvalidArgument, why};
  if (now < known.stuck_at + (image ? kImagePatience : kStuckPatience)) return std::nullopt;
  return Error{image ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument, why};
}

std::optional<Status> KubeInventory::Judge(Time now, const std::vector<std::string>& names,
                                           Time until) {
  bool all = true;
  for (const std::string& name : names) {
    const std::optional<Status> one = JudgeOne(now, name, until);
    if (one && !one->ok()) return one;
    all = all && one;
  }
  return all ? std::optional<Status>(Status::Ok()) : std::nullopt;
}

PodEnd KubeInventory::EndOf(Time now, const std::string& name) const {
  const auto found = known_.find(name);
  if (found == known_.end() || found->second.pod.uid.empty()) return {};
  const Known& known = found->second;
  PodEnd end;
  end.uid = known.pod.uid;
  end.gone = known.gone;
  const Duration grace = seconds(std::max(known.pod.grace_s, known.pod.deletion_grace_s));
  const bool late = known.ending && now >= known.ending_at + grace + kEndAgain;
  end.grace_s = late ? 0 : std::min(kEndGrace_s, known.pod.grace_s);
  // One whose end was asked for without that being seen is asked again.
  end.asked = known.ending && known.pod.deletion_s && !late;
  return end;
}

std::optional<Time> KubeInventory::TakenBackAt(const Known& known) const {
  std::optional<Time> at;
  const auto sooner = [&](std::optional<Time> other) {
    if (other) at = std::min(*other, at.value_or(*other));
  };
  sooner(known.taken_at);
  if (!known.taken_at) sooner(known.disrupted_at);
  const auto node = nodes_.find(known.pod.node);
  if (node == nodes_.end()) return at;
  for (const Taint& taint : node->second.taints) {
    const std::optional<Duration> lead = LeadOf(taint, known.pod);
    if (lead) sooner(node->second.since.at(taint.key) + *lead);
  }
  return at;
}

std::vector<Machine> KubeInventory::Take(Time now) {
  std::vector<Machine> machines;
  std::erase_if(known_, [&](const auto& entry) {
    const Known& known = entry.second;
    if (known.hidden) return false;
    if (known.pod.uid.empty() || (known.gone && known.ending)) return true;
    Machine machine;
    machine.id = entry.first;
    machine.offer = known.pod.offer;
    machine.request_id = known.pod.request_id;
    machine.tags = known.pod.tags;
    machine.detail = known.pod.node.empty() ? "" : "on " + known.pod.node;
    machine.state = known.pod.started ? "running" : "pending";
    const bool others_end = known.pod.deletion_s && !IsOurs(known);
    const bool over = known.pod.ended && (!WantsWords(known) || HasWords(known, now));
    if (known.ending || known.gone || over || others_end) machine.state = "stopping";
    if (machine.state == "stopping" && !known.ending) machine.ended = EndText(known);
    const std::optional<Time> at = TakenBackAt(known);
    if (at && machine.state != "stopping")
      machine.preempted_in_s = std::max(0.0, ToSeconds(*at - now));
    machines.push_back(std::move(machine));
    return known.gone;
  });
  return machines;
}

}  // namespace troupe::kubernetes
