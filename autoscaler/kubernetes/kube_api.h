// What KubeMachines has done by its threads: pods made and ended, and their last words read, each
// as one call that waits.
//
// A pod is made before the secret that holds its boot script, and waits for that: so the secret
// names its owner when it is made, and there is never one that nobody owns.
// Thread: one at a time. The identity is shared.
#pragma once

#include <string>
#include <vector>

#include "autoscaler/kubernetes/kube_caller.h"
#include "autoscaler/kubernetes/kube_inventory.h"
#include "autoscaler/kubernetes/kube_objects.h"
#include "autoscaler/kubernetes/kube_pods.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr int kWordsLines = 5;
inline constexpr Duration kWordsLimit = seconds(5);

struct KubeDeleted {
  Status status = Status::Ok();
  bool gone = false;  // There is none of it.
};

class KubeApi {
 public:
  KubeApi(const KubeOptions* options, KubeIdentity* identity, RequestSeams seams)
      : options_(options), caller_(identity, std::move(seams), options->limit) {}

  // All of an order's pods, or none: what was made of one that fails is ended again. If that is not
  // known to have been done, kDeadlineExceeded.
  Result<std::vector<KubePod>> Create(const MachineOrder& order);
  KubeDeleted Delete(const std::string& name, const std::string& uid, int64_t grace_s);
  // The end of what it has printed, on one line; empty: nothing can be read.
  std::string LastWords(const WordsAsked& asked);

 private:
  Result<std::string> Namespace();
  Result<std::vector<KubePod>> CreateAll(const std::string& in, const KubeOffer& offer,
                                         const MachineOrder& order, Time until);
  Result<KubePod> CreatePod(const std::string& in, const KubeOffer& offer,
                            const MachineOrder& order, int index, Time until);
  // One of that name that is there already, if it is of this order.
  Result<KubePod> MadeBefore(const std::string& in, const MachineOrder& order, int index,
                             Time until);
  KubeDeleted DeleteUntil(const std::string& in, const std::string& name, const std::string& uid,
                          int64_t grace_s, Time until);

  const KubeOptions* const options_;
  KubeCaller caller_;
};

}  // namespace troupe::kubernetes
