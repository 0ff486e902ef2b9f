#include "daemons/head/store_owner.h"

#include <optional>
#include <utility>

#include "runtime/log.h"

namespace troupe::daemons {
namespace {

constexpr const char* kOwner = "head/owner";
constexpr const char* kCluster = "head/cluster";
constexpr Duration kRefresh = kOwnerLease / 4;

// One key, which is to have one value: `set` if it has none.
Result<bool> Agree(Store& store, const char* key, const std::string& value, Duration ttl) {
  const Result<std::optional<std::string>> known = store.Get(key);
  if (!known.ok()) return known.error();
  if (known->has_value() && **known != value) return false;
  const Status set = store.CompareAndSet(key, *known, value, ttl);
  if (set.ok()) return true;
  if (set.error().code == ErrorCode::kConflict) return false;
  return set.error();
}

}  // namespace

StoreOwner::StoreOwner(Store* store, std::string owner, std::string cluster)
    : store_(store), owner_(std::move(owner)), cluster_(std::move(cluster)) {}

Status StoreOwner::Take() {
  const Result<bool> ours = Agree(*store_, kOwner, owner_, kOwnerLease);
  if (!ours.ok()) return ours.error();
  if (!*ours) {
    return Error{
        ErrorCode::kUnavailable,
        "another head keeps its records under the same prefix of this Redis; end that one, "
        "or give this cluster a --redis-prefix of its own"};
  }
  const Result<bool> same = Agree(*store_, kCluster, cluster_, Store::kNoExpiry);
  if (!same.ok()) return same.error();
  if (*same) return Status::Ok();
  return Error{ErrorCode::kPermissionDenied,
               "the records in this store are of a cluster with another key; start its head with "
               "that key (cluster.key and cluster.key.head), end it with `troupe down`, or choose "
               "another --redis-prefix or --store-dir"};
}

void StoreOwner::Keep(EventLoop* loop, Lane* lane, std::function<void()> lost) {
  scope_.emplace(loop);
  lane_ = lane;
  lost_ = std::move(lost);
  Refresh();
}

// A store that is away keeps the claim as it is, or has lost it; then it is made anew.
void StoreOwner::Refresh() {
  (void)lane_->Post([this, store = store_, owner = owner_, back = scope_->back()] {
    const Result<bool> ours = Agree(*store, kOwner, owner, kOwnerLease);
    if (!ours.ok() || *ours) return;
    back.Post([this] { lost_(); });
  });
  scope_->CallAfter(kRefresh, [this] { Refresh(); });
}

Status StoreOwner::Forget() {
  for (const char* kind : {"job/", "actor/", "actor_group/", "actor_state/", "collective/",
                           "group/", "placement_group/", "head/"}) {
    const Result<size_t> gone = store_->DeletePrefix(kind);
    if (!gone.ok()) return gone.error().WithContext("the cluster's records cannot be removed");
  }
  return Status::Ok();
}

}  // namespace troupe::daemons
