#include "autoscaler/kubernetes/kube_api.h"

#include <utility>

#include "autoscaler/cloud_text.h"

namespace troupe::kubernetes {
namespace {

// What it does on the way out has a limit of its own.
constexpr Duration kTidyLimit = seconds(20);
constexpr size_t kWordsShown = 400;
constexpr size_t kWordsBytes = 4000;

}  // namespace

Result<std::string> KubeApi::Namespace() {
  const Result<KubeSession> session = caller_.identity().Session();
  return session.ok() ? Result<std::string>(session->kube_namespace) : session.error();
}

Result<KubePod> KubeApi::MadeBefore(const std::string& in, const MachineOrder& order, int index,
                                    Time until) {
  const KubeQuestion question{"get", "pods", in, order.offer};
  const std::string name = PodName(order, index);
  const KubeAnswer answer = caller_.Call({question, "GET", "pods/" + name}, until);
  if (!answer.ok()) return answer.Tell(question);
  Result<KubePod> pod = ReadPod(answer.body);
  if (!pod.ok()) return pod.error();
  if (pod->request_id == order.request_id && pod->tags == order.tags) return pod;
  return Error{ErrorCode::kUnavailable, "pod " + name + " is there, and of somebody else"};
}

Result<KubePod> KubeApi::CreatePod(const std::string& in, const KubeOffer& offer,
                                   const MachineOrder& order, int index, Time until) {
  const KubeQuestion question{"create", "pods", in, order.offer};
  const Result<std::string> body = PodBody(*options_, offer, order, index);
  if (!body.ok()) return body.error();
  const KubeAnswer answer = caller_.Call({question, "POST", "pods", "", *body}, until);
  if (answer.ok()) return ReadPod(answer.body);
  if (answer.Is(KubeFailure::kExists)) return MadeBefore(in, order, index, until);
  return answer.Tell(question);
}

Result<std::vector<KubePod>> KubeApi::CreateAll(const std::string& in, const KubeOffer& offer,
                                                const MachineOrder& order, Time until) {
  std::vector<KubePod> pods;
  std::vector<PodOwner> owners;
  for (int i = 0; i < order.count; ++i) {
    Result<KubePod> pod = CreatePod(in, offer, order, i, until);
    if (!pod.ok()) return pod.error();
    owners.push_back({pod->name, pod->uid});
    pods.push_back(std::move(*pod));
  }
  const KubeQuestion question{"create", "secrets", in, order.offer};
  const KubeAnswer secret =
      caller_.Call({question, "POST", "secrets", "", SecretBody(*options_, order, owners)}, until);
  if (!secret.ok() && !secret.Is(KubeFailure::kExists)) return secret.Tell(question);
  return pods;
}

Result<std::vector<KubePod>> KubeApi::Create(const MachineOrder& order) {
  const auto offer = options_->offers.find(order.offer);
  if (offer == options_->offers.end()) return InvalidArgument("no pool " + order.offer);
  if (order.user_data.size() > kBootMax)
    return InvalidArgument("the boot script has " + std::to_string(order.user_data.size()) +
                           " bytes, a secret takes 1000000: shorten nodes.setup or training.env");
  const Result<std::string> in = Namespace();
  if (!in.ok()) return in.error();
  Result<std::vector<KubePod>> made =
      CreateAll(*in, offer->second, order, caller_.Now() + caller_.limit());
  if (made.ok() || made.error().code == ErrorCode::kCancelled) return made;
  Error error = made.error();
  if (error.code == ErrorCode::kDeadlineExceeded || error.code == ErrorCode::kPeerGone ||
      error.code == ErrorCode::kCorrupt)
    error.code = ErrorCode::kUnavailable;
  const Time until = caller_.Now() + kTidyLimit;
  for (int i = 0; i < order.count; ++i) {
    const KubeDeleted deleted = DeleteUntil(*in, PodName(order, i), "", 0, until);
    if (!deleted.status.ok() && deleted.status.error().code != ErrorCode::kPermissionDenied)
      error.code = ErrorCode::kDeadlineExceeded;
  }
  return error;
}

KubeDeleted KubeApi::DeleteUntil(const std::string& in, const std::string& name,
                                 const std::string& uid, int64_t grace_s, Time until) {
  const KubeQuestion question{"delete", "pods", in};
  const KubeAnswer answer =
      caller_.Call({question, "DELETE", "pods/" + name, "", DeleteBody(uid, grace_s)}, until);
  if (answer.ok()) return {};
  // One that has its name, but not its uid, is another.
  const bool gone =
      answer.Is(KubeFailure::kMissing) || (!uid.empty() && answer.Is(KubeFailure::kConflict));
  return gone ? KubeDeleted{Status::Ok(), true} : KubeDeleted{answer.Tell(question), false};
}

KubeDeleted KubeApi::Delete(const std::string& name, const std::string& uid, int64_t grace_s) {
  const Result<std::string> in = Namespace();
  if (!in.ok()) return {in.error(), false};
  return DeleteUntil(*in, name, uid, grace_s, caller_.Now() + caller_.limit());
}

std::string KubeApi::LastWords(const WordsAsked& asked) {
  const Result<std::string> in = Namespace();
  if (!in.ok()) return "";
  const KubeAnswer answer = caller_.Call(
      {{"get", "pods/log", *in},
       "GET",
       "pods/" + asked.pod + "/log",
       "container=" + Escaped(asked.container) + "&tailLines=" + std::to_string(kWordsLines) +
           "&limitBytes=" + std::to_string(kWordsBytes)},
      caller_.Now() + kWordsLimit);
  if (!answer.ok()) return "";
  return LastOf(answer.body, kWordsShown);
}

}  // namespace troupe::kubernetes
