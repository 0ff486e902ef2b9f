#include "actors/api/placement_group.h"

#include "actors/api/future.h"
#include "actors/host/placing.h"
#include "runtime/process.h"
#include "scheduler/resources.h"

namespace troupe {
namespace {

constexpr Duration kRequestLimit = seconds(30);

actors::GroupRequest About(actors::PlacementGroupVerb verb, const std::string& id) {
  actors::GroupRequest request;
  request.verb = verb;
  request.spec.group = id;
  return request;
}

}  // namespace

namespace actors {

Future<PlacementGroupStatus> AskGroupLater(const std::shared_ptr<ActorSystem>& system,
                                           GroupRequest request, Duration limit) {
  if (system->directory_client() == nullptr)
    return Future<PlacementGroupStatus>::Failed(NoCluster());
  // Here, since a request with too many of them would not even reach the head.
  for (size_t i = 0; i < request.add.size(); ++i) {
    const auto needs = ResourceSet::FromMap(request.add[i].resources);
    if (!needs.ok()) {
      return Future<PlacementGroupStatus>::Failed(
          needs.error().WithContext("bundle " + std::to_string(i)));
    }
  }
  if (request.verb == PlacementGroupVerb::kCreate) request.spec.group = kGroupId + RandomId();
  Future<PlacementGroupStatus> answer;
  const bool made = request.verb == PlacementGroupVerb::kCreate;
  system->directory_client()->Group(
      std::move(request), limit,
      [answer, made, weak = std::weak_ptr<ActorSystem>(system)](auto status) {
        if (const auto alive = weak.lock(); alive && made && status.ok())
          alive->WatchGroup(status->id);
        answer.Complete(std::move(status));
      });
  return answer;
}

Result<PlacementGroupStatus> AskGroup(const std::shared_ptr<ActorSystem>& system,
                                      GroupRequest request, Duration limit) {
  return AskGroupLater(system, std::move(request), limit).Get();
}

Result<PlacementGroupStatus> CreateGroup(const std::shared_ptr<ActorSystem>& system,
                                         const PlacementGroupOptions& options) {
  GroupRequest request = About(actors::PlacementGroupVerb::kCreate, "");
  request.spec.name = options.name;
  request.spec.detached = options.detached;
  request.spec.strategy = options.strategy;
  request.spec.priority = options.priority;
  request.add = options.bundles;
  return AskGroup(system, std::move(request), kRequestLimit);
}

Result<PlacementGroupStatus> FindGroup(const std::shared_ptr<ActorSystem>& system,
                                       const std::string& name) {
  GroupRequest request = About(actors::PlacementGroupVerb::kFind, "");
  request.spec.name = name;
  return AskGroup(system, std::move(request), kRequestLimit);
}

}  // namespace actors

Status PlacementGroup::Wait(Duration limit) const {
  const Result<PlacementGroupStatus> placed =
      actors::AskGroup(system_, About(actors::PlacementGroupVerb::kAwait, id_), limit);
  if (placed.ok()) return Status::Ok();
  if (placed.error().code != ErrorCode::kDeadlineExceeded) return placed.error();
  const Result<PlacementGroupStatus> now = Look(seconds(1));
  if (!now.ok()) return placed.error();
  if (now->placed()) return Status::Ok();
  return Error{ErrorCode::kDeadlineExceeded,
               "placement group " + id_ + " is " + now->state + ": " + now->reason};
}

Result<PlacementGroupStatus> PlacementGroup::Look(Duration limit) const {
  return actors::AskGroup(system_, About(actors::PlacementGroupVerb::kStatus, id_), limit);
}

Status PlacementGroup::Resize(const std::vector<PlacementBundle>& add,
                              const std::vector<uint32_t>& remove) const {
  actors::GroupRequest request = About(actors::PlacementGroupVerb::kResize, id_);
  request.add = add;
  request.remove = remove;
  const auto answer = actors::AskGroup(system_, std::move(request), kRequestLimit);
  return answer.ok() ? Status::Ok() : Status(answer.error());
}

Status PlacementGroup::Remove() const {
  const auto answer =
      actors::AskGroup(system_, About(actors::PlacementGroupVerb::kRemove, id_), kRequestLimit);
  return answer.ok() ? Status::Ok() : Status(answer.error());
}

}  // namespace troupe
