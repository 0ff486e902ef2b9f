// Machines that are pods of Kubernetes.
//
// What there is follows from a watch, so that a list is answered at once. An order is answered when
// its pods run, or with why they do not. Requests wait for Kubernetes on threads of this source, so
// that its owner never does; what has come is told in Step. docs/decisions/0047-* says why pods are
// made as they are.
// Thread: one, beside its own.
// Owns: kKubeCreateThreads + kKubeEndThreads + 4 threads at most, started when there is something
// to ask; the destructor cancels what is under way and joins them.
// Limits: kKubeWaitingMax requests wait.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autoscaler/kubernetes/kube_api.h"
#include "autoscaler/kubernetes/kube_identity.h"
#include "autoscaler/kubernetes/kube_inventory.h"
#include "autoscaler/kubernetes/kube_pods.h"
#include "autoscaler/kubernetes/kube_watch.h"
#include "autoscaler/machine_source.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"

namespace troupe::kubernetes {

inline constexpr size_t kKubeCreateThreads = 8;
inline constexpr size_t kKubeEndThreads = 8;
inline constexpr size_t kKubeWaitingMax = 10'000;
// So long what was heard last is good while nothing new can be heard.
inline constexpr Duration kKubeStale = seconds(30);

struct KubeTools {
  KubeWorld world;  // Its `run` is replaced.
  HttpLinkMaker link;
  const Clock* clock = nullptr;
};
// Those of libcurl and of this process.
[[nodiscard]] KubeTools RealKubeTools(const Clock* clock);

class KubeMachines final : public MachineSource {
 public:
  KubeMachines(KubeOptions options, KubeTools tools);
  ~KubeMachines() override;
  KubeMachines(const KubeMachines&) = delete;
  KubeMachines& operator=(const KubeMachines&) = delete;

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  void Printed(const std::string& id, const std::function<void(const std::string&)>& done) override;
  void Withdraw(const std::string& request_id) override;
  bool Step(Time now) override;

 private:
  enum Lane : size_t { kCreate, kEnd, kWords, kPods, kNodes, kLanes };
  struct Order {
    MachineOrder order;
    Answer done;
    std::vector<std::string> names;
    std::shared_ptr<std::atomic<bool>> wanted;
    std::optional<Time> made_at;   // None: they are being made.
    std::optional<Status> failed;  // Its pods are being ended.
  };
  struct Heard {
    bool listed = false;
    Status trouble = Status::Ok();
    Time since;  // When the trouble began.
  };

  KubeWorld WithRun(KubeWorld world);
  void Begin();
  void Made(const std::string& request, const Result<std::vector<KubePod>>& made);
  bool Hear(Time now);
  void HearOne(Time now, const KubeNews& news);
  bool JudgeOrders(Time now);
  void Fail(const std::string& request, const Status& why);
  void Finish(const std::string& request, Result<std::vector<Machine>> answer);
  void AskWords(Time now);
  bool AnswerLists(Time now);

  const KubeOptions options_;
  const Clock* const clock_;
  KubeInventory inventory_;
  std::map<std::string, Order> orders_;  // By request.
  std::vector<Answer> lists_;            // Asked for, and not yet answered.
  bool begun_ = false;
  Heard pods_;
  bool told_of_nodes_ = false;
  KubeFeed feed_;
  KubeIdentity identity_;
  RequestLanes lanes_;  // Last: its threads end first.
};

}  // namespace troupe::kubernetes
