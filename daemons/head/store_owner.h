// One head per store: the right to keep a cluster's records in a store that others reach as well.
//
// The owner is a supervisor, whose heads follow one another; its claim is refreshed while a head
// lives, and ends by itself kOwnerLease after the last one. The cluster whose records lie there is
// noted, too: those of another one are neither taken up nor written over.
// Thread: Take and Forget block; Keep from the loop. The lane and the store outlive this.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"

namespace troupe::daemons {

inline constexpr Duration kOwnerLease = seconds(10);

class StoreOwner {
 public:
  // `cluster`: what all heads of a cluster have in common, its public key.
  StoreOwner(Store* store, std::string owner, std::string cluster);
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;

  // kUnavailable while another owner has it, kPermissionDenied if the records are of another
  // cluster, or what the store says.
  Status Take();
  // Refreshes the claim until this is destroyed; `lost`, on the loop, when another owner has it.
  void Keep(EventLoop* loop, Lane* lane, std::function<void()> lost);
  // Removes all that a head keeps: the cluster is over.
  Status Forget();

 private:
  void Refresh();

  Store* const store_;
  const std::string owner_;
  const std::string cluster_;
  Lane* lane_ = nullptr;
  std::function<void()> lost_;
  std::optional<LoopScope> scope_;  // Last.
};

}  // namespace troupe::daemons
