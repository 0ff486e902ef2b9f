// The pods that there are, and what becomes of them, by what a list has said and a watch has told
// since.
//
// A pod whose making was answered for is there before it is told of. One whose order is under way
// is not shown: Judge says what becomes of the order. One that ends by itself is shown as ending
// once its last words are known, one that somebody else deletes as one that will be taken back.
// Pure.
// Thread: one.
// Limits: kGoneKept.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autoscaler/kubernetes/kube_objects.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr Duration kPodListLag = seconds(60);
inline constexpr Duration kImagePatience = seconds(60);  // With an image that cannot be pulled.
inline constexpr Duration kStuckPatience = seconds(10);  // With a container that cannot be made.
inline constexpr Duration kWordsPatience = seconds(10);  // For the last words of one.
inline constexpr Duration kEndAgain = seconds(30);       // After its grace, one that has not gone.
inline constexpr size_t kGoneKept = 1000;

inline constexpr Duration kRelicAge = seconds(5);  // Whose it is has read its words by then.

// Whose last words are to be read.
struct WordsAsked {
  std::string pod;
  std::string uid;
  std::string container;
};

// How one is to be ended now. Its node was emptied before, or nobody wants what it does: it need
// not have the whole of its grace.
inline constexpr int64_t kEndGrace_s = 10;
struct PodEnd {
  std::string uid;  // Empty: of whichever has the name.
  bool gone = false;
  bool asked = false;             // It ends already; there is nothing to ask.
  int64_t grace_s = kEndGrace_s;  // 0: it should have gone long ago.
};

class KubeInventory {
 public:
  // `life`: of this autoscaler: of others' pods no last words are read.
  explicit KubeInventory(std::string life) : life_(std::move(life)) {}

  // All there are, as of `version` of the list. `wall_s`: since 1970.
  void ListedPods(Time now, int64_t wall_s, const std::vector<KubePod>& pods,
                  const std::string& version);
  void ListedNodes(Time now, const std::vector<KubeNode>& nodes);
  void Told(Time now, const KubeEvent& event);

  // The answers to creating and to deleting.
  void Made(Time now, const KubePod& pod);
  void Ending(Time now, const std::string& name);
  void Gone(const std::string& name);
  void LastWords(const std::string& uid, const std::string& words);

  // An order's pods are hidden until it is answered.
  void Hide(const std::string& name) { known_[name].hidden = true; }
  void Show(const std::string& name);
  // What became of an order: nothing yet; success: all its pods run; or why not.
  // kResourceExhausted: it had no place by `until`.
  [[nodiscard]] std::optional<Status> Judge(Time now, const std::vector<std::string>& names,
                                            Time until);

  [[nodiscard]] PodEnd EndOf(Time now, const std::string& name) const;
  [[nodiscard]] std::vector<WordsAsked> TakeWords(Time now);
  // Of one that runs; nobody's if it does not.
  [[nodiscard]] WordsAsked WordsOf(const std::string& name) const;
  // Pods of another autoscaler that have ended, and that nobody has taken away.
  [[nodiscard]] std::vector<std::string> TakeRelics(Time now);
  // What there is now.
  std::vector<Machine> Take(Time now);

 private:
  struct Known {
    KubePod pod;  // Without a name: nothing is known of it yet.
    Time made_at;
    bool listed = false;  // Told of, and not only made.
    bool hidden = false;
    bool gone = false;
    bool ending = false;
    Time ending_at;
    Time stuck_at;
    std::optional<Time> taken_at;  // It is taken back then: by whoever deletes it.
    std::optional<Time> disrupted_at;
    std::optional<Time> relic_at;  // It is to be taken away then.
    std::optional<Time> words_at;  // They were asked for.
    std::optional<std::string> words;
  };
  struct NodeTaints {
    std::vector<Taint> taints;
    std::map<std::string, Time> since;  // By key.
  };

  void Seen(Time now, const KubePod& pod, std::optional<int64_t> wall_s);
  void Lost(Known& known);
  void SeenNode(Time now, const KubeNode& node);
  [[nodiscard]] bool IsOurs(const Known& known) const;
  [[nodiscard]] bool WantsWords(const Known& known) const;
  [[nodiscard]] static bool HasWords(const Known& known, Time now);
  [[nodiscard]] std::optional<Time> TakenBackAt(const Known& known) const;
  [[nodiscard]] static std::string EndText(const Known& known);
  std::optional<Status> JudgeOne(Time now, const std::string& name, Time until);
  [[nodiscard]] bool WasGone(const std::string& uid) const;

  const std::string life_;
  std::map<std::string, Known> known_;  // By name.
  std::map<std::string, NodeTaints> nodes_;
  std::deque<std::string> gone_;  // Uids, the newest last.
};

}  // namespace troupe::kubernetes
