#include "actors/api/cluster.h"

#include "actors/host/placing.h"
#include "actors/host/task_pool.h"
#include "scheduler/resources.h"

namespace troupe {
namespace actors {
namespace {

Result<ActorAddress> Await(const std::function<void(ActorDirectoryClient::OnAddress)>& ask,
                           Duration limit) {
  const Future<ActorAddress> address;
  ask([address](Result<ActorAddress> result) { address.Complete(std::move(result)); });
  return address.Get(limit);
}

}  // namespace

ActorBlueprint MakeBlueprint(const CallLimits& limits, const std::string& type,
                             std::string arguments) {
  return {type,
          std::move(arguments),
          limits.max_concurrency,
          limits.mailbox_depth,
          limits.mailbox_bytes,
          limits.overflow,
          limits.threads};
}

void PlaceAsync(const std::shared_ptr<ActorSystem>& system, const ActorOptions& options,
                const ActorBlueprint& blueprint, OnRef done) {
  if (system->directory_client() == nullptr) return done(NoCluster());
  if (const Status s = CheckProgram(options); !s.ok()) return done(s.error());
  if (const Status s = CheckConcurrency(blueprint); !s.ok()) return done(s.error());
  // Here, since a request with too many of them would not even reach the head.
  if (const auto needs = ResourceSet::FromMap(options.resources); !needs.ok())
    return done(needs.error());
  system->directory_client()->Create(
      SpecOf(*system, options, blueprint),
      [system, done = std::move(done)](const Result<ActorAddress>& address) {
        if (address.ok()) return done(system->Refer(*address));
        done(address.error());
      });
}

Result<std::shared_ptr<ActorRef>> Place(const std::shared_ptr<ActorSystem>& system,
                                        const ActorOptions& options,
                                        const ActorBlueprint& blueprint, bool wait) {
  const std::string cannot = "cannot spawn " + blueprint.type;
  const Future<std::shared_ptr<ActorRef>> placed;
  PlaceAsync(system, options, blueprint,
             [placed](Result<std::shared_ptr<ActorRef>> ref) { placed.Complete(std::move(ref)); });
  Result<std::shared_ptr<ActorRef>> ref = placed.Get();
  if (!ref.ok()) return ref.error().WithContext(cannot);
  if (!wait) return ref;
  // It waits as every call does, and fails with the reason if the actor cannot be.
  const Future<std::string> there;
  (void)(*ref)->Call(kPing, "", CallOptions{options.timeout, true},
                     [there](Result<std::string> r) { there.Complete(std::move(r)); });
  const Result<std::string> pong = there.Get();
  if (pong.ok()) return ref;
  if (pong.error().code == ErrorCode::kDeadlineExceeded)
    (*ref)->Kill(false, "it did not start in time", [](const Result<std::string>&) {});
  return pong.error().WithContext(cannot);
}

Result<ActorAddress> StartBeside(const std::shared_ptr<ActorSystem>& system,
                                 const ActorAddress& there, const ActorBlueprint& blueprint) {
  if (there.process.peer.empty())
    return Error{ErrorCode::kUnavailable, "it is not known yet where " + there.actor + " is"};
  const Pack<ActorBlueprint> arguments{{blueprint}};
  return CallRef<ActorAddress>(system, system->Refer(ActorSystem::HostOf(there.process)), "spawn",
                               wire::Encode(kArgumentsType, arguments), CallOptions{})
      .Get();
}

Result<ActorAddress> FindNamed(const std::shared_ptr<ActorSystem>& system, const std::string& name,
                               const std::string& type, Duration limit) {
  if (system->directory_client() == nullptr) return NoCluster();
  Result<ActorAddress> address = Await(
      [&](const ActorDirectoryClient::OnAddress& done) {
        system->directory_client()->Lookup(name, limit, done);
      },
      kUntilComplete);
  if (!address.ok() || type.empty() || address->type == type) return address;
  return Error{ErrorCode::kInvalidArgument,
               "the actor named \"" + name + "\" is a " + address->type + ", not a " + type};
}

std::shared_ptr<PendingCall> SubmitTask(const std::shared_ptr<ActorSystem>& system,
                                        const TaskOptions& options, const std::string& task,
                                        std::string arguments, const CallDone& done) {
  if (system->directory_client() != nullptr)
    return system->tasks().Submit(options, task, std::move(arguments), done);
  done(NoCluster());
  return nullptr;
}

LaterCall::Make TaskSubmitter(const std::shared_ptr<ActorSystem>& system,
                              const TaskOptions& options, const std::string& task) {
  return [system, options, task](std::string arguments, Duration left, const CallDone& done) {
    TaskOptions rest = options;
    rest.timeout = left;
    return SubmitTask(system, rest, task, std::move(arguments), done);
  };
}

}  // namespace actors

namespace {

constexpr Duration kCollectiveLimit = seconds(30);

}  // namespace

Result<PlacementGroup> Cluster::CreatePlacementGroup(const PlacementGroupOptions& options) const {
  Result<PlacementGroupStatus> created = actors::CreateGroup(system_, options);
  if (!created.ok()) return created.error().WithContext("cannot create a placement group");
  return PlacementGroup(system_, created->id);
}

Status Cluster::CreateCollectiveGroup(const CollectiveGroupOptions& options,
                                      std::vector<std::string> actors) const {
  actors::CollectiveRequest request;
  request.verb = actors::CollectiveVerb::kCreate;
  request.spec.name = options.name;
  request.spec.size = static_cast<uint32_t>(actors.size());
  request.spec.elastic = options.elastic;
  request.spec.min_size = options.min_size;
  request.spec.actors = std::move(actors);
  const auto made = actors::AskCollective(system_, std::move(request), kCollectiveLimit);
  return made.ok() ? Status::Ok() : Status(made.error());
}

Status Cluster::DestroyCollectiveGroup(const std::string& name) const {
  actors::CollectiveRequest request;
  request.verb = actors::CollectiveVerb::kDestroy;
  request.spec.name = name;
  const auto gone = actors::AskCollective(system_, std::move(request), kCollectiveLimit);
  return gone.ok() ? Status::Ok() : Status(gone.error());
}

Result<PlacementGroup> Cluster::GetPlacementGroup(const std::string& name) const {
  Result<PlacementGroupStatus> found = actors::FindGroup(system_, name);
  if (!found.ok()) return found.error();
  return PlacementGroup(system_, found->id);
}

Cluster Cluster::Current() {
  CallContext* const context = CallContext::Current();
  if (context != nullptr) return Cluster(context->system().shared_from_this());
  throw ActorError(Error{ErrorCode::kInvalidArgument,
                         "Cluster::Current() is for methods of actors; elsewhere use the Cluster "
                         "that troupe::Init returned"});
}

}  // namespace troupe
