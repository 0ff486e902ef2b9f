// Follows what there is of one kind: a list, and a watch from there on. A watch that ends begins
// again; where it cannot go on, there is another list first.
//
// Thread: Follow on one, which it blocks until it is cancelled; KubeFeed any.
// Limits: kKubeNewsMax of what nobody has taken.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/kubernetes/kube_caller.h"
#include "autoscaler/kubernetes/kube_objects.h"
#include "autoscaler/kubernetes/kube_pods.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr size_t kKubeNewsMax = 100'000;
inline constexpr int kKubePage = 500;
inline constexpr size_t kKubePagesMax = 1000;
inline constexpr Duration kForbiddenPause = seconds(600);
inline constexpr Duration kWatchLasts = seconds(300);

// Something that was heard: a list, an event, that all is well (no `trouble`), or that it is not.
struct KubeNews {
  KubeKind kind = KubeKind::kPods;
  std::optional<KubeList<KubePod>> pods = std::nullopt;
  std::optional<KubeList<KubeNode>> nodes = std::nullopt;
  std::optional<KubeEvent> event = std::nullopt;
  Status trouble = Status::Ok();
};

// From the threads that follow to whoever takes it.
class KubeFeed {
 public:
  // False: too much has come, of this kind or of others, and nothing is kept of what nobody has
  // taken: a list is needed.
  bool Push(KubeNews news);
  std::vector<KubeNews> Take();

 private:
  std::mutex mu_;
  std::vector<KubeNews> news_;
  std::set<KubeKind> lost_;  // Of these, until a list has come.
};

class KubeWatch {
 public:
  KubeWatch(KubeKind kind, const KubeOptions* options, KubeIdentity* identity, KubeFeed* feed,
            const RequestSeams& seams)
      : kind_(kind), options_(options), feed_(feed), caller_(identity, seams, options->limit) {}

  // Until it is cancelled.
  void Follow();

 private:
  [[nodiscard]] KubeQuestion Question(const std::string& in, const char* verb) const;
  Status List();
  Result<std::string> ListPage(const std::string& in, const std::string& next, KubeNews& news);
  Status Watch();
  // What a line says. False: the watch is over.
  bool Take(std::string_view line, Status& over);
  Status Refused(const KubeSession& session, const KubeError& error, const std::string& in);
  bool Pause(const Status& round, Time begun, int& failures);

  const KubeKind kind_;
  const KubeOptions* const options_;
  KubeFeed* const feed_;
  KubeCaller caller_;
  std::string version_;  // From where a watch goes on; empty: a list is needed.
  std::optional<Duration> retry_after_;
};

}  // namespace troupe::kubernetes
