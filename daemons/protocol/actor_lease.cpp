#include "daemons/protocol/actor_lease.h"

#include <cstdlib>

namespace troupe::daemons {

using sched::LeaseRequest;

namespace {

Result<LabelSelector> ParseAll(const std::vector<std::string>& terms) {
  LabelSelector all;
  for (const std::string& text : terms) {
    Result<LabelSelector> one = LabelSelector::Parse(text);
    if (!one.ok()) return one.error();
    all = all.And(*one);
  }
  return all;
}

}  // namespace

std::string MakeLeaseId(const std::string& actor, uint64_t incarnation) {
  return kActorLease + actor + "#" + std::to_string(incarnation);
}

std::pair<std::string, uint64_t> ParseLeaseId(const std::string& lease) {
  const size_t mark = lease.rfind('#');
  if (!lease.starts_with(kActorLease) || mark == std::string::npos) return {};
  const size_t begin = std::string_view(kActorLease).size();
  return {lease.substr(begin, mark - begin), std::strtoull(lease.c_str() + mark + 1, nullptr, 10)};
}

Result<LeaseRequest> LeaseFor(const actors::ActorSpec& spec, uint64_t incarnation) {
  const actors::PlacementWish& wish = spec.wish;
  LeaseRequest request;
  request.id = MakeLeaseId(spec.actor, incarnation);
  request.priority = wish.priority;
  request.node = wish.node;
  request.node_only = !wish.node.empty() && !wish.node_soft;
  request.group = wish.group;
  request.bundle = wish.bundle < 0 ? sched::kAnyBundle : wish.bundle;
  Result<ResourceSet> resources = ResourceSet::FromMap(wish.resources);
  if (!resources.ok()) return resources.error();
  request.resources = *resources;
  if (Status gpus = CheckGpuAmount(*resources); !gpus.ok()) return gpus.error();
  Result<PlacementStrategy> strategy = ParsePlacementStrategy(wish.strategy);
  if (!strategy.ok()) return strategy.error();
  request.strategy = *strategy;
  if (wish.labels.size() + wish.prefer.size() > actors::kActorLabelsMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "at most " + std::to_string(actors::kActorLabelsMax) + " label terms"};
  }
  Result<LabelSelector> labels = ParseAll(wish.labels);
  if (!labels.ok()) return labels.error();
  Result<LabelSelector> prefer = ParseAll(wish.prefer);
  if (!prefer.ok()) return prefer.error();
  request.labels = *labels;
  request.prefer = *prefer;
  return request;
}

Result<LeaseRequest> LeaseFor(const std::string& lease, const WorkerRoom& room) {
  Result<ResourceSet> resources = ResourceSet::FromMap(room.resources);
  if (!resources.ok()) return resources.error();
  LeaseRequest request;
  request.id = lease;
  request.resources = *resources;
  request.group = room.group;
  request.bundle = room.bundle < 0 ? sched::kAnyBundle : room.bundle;
  return request;
}

}  // namespace troupe::daemons
