// Nodes that come, change and go.
#include <algorithm>
#include <utility>

#include "scheduler/internal/core.h"
#include "scheduler/node_table.h"

namespace troupe {

// It has more room, or less.
void Scheduler::Impl::NodeChanged(uint32_t slot) {
  cluster_.Changed(slot);
  MarkDirty(slot);
}

// Whether it may be used has changed: for those outside of groups and for those in its bundles.
void Scheduler::Impl::NodeSwitched(uint32_t slot) {
  NodeChanged(slot);
  LookForPromises();
  const Node& node = cluster_.nodes[slot];
  const std::vector<BundleRef> bundles = node.bundles;
  for (const BundleRef& ref : bundles) {
    if (node.usable()) {
      BundlesChanged(ref.group);
    } else if (const Hold& hold = groups_[ref.group].bundles.at(ref.number).hold; hold.on) {
      RenewPromise(Order(hold.by));
    }
  }
  if (!node.usable() && node.hold.on) RenewPromise(Order(node.hold.by));
}

void Scheduler::Impl::TellDrain(uint32_t lease) {
  const Node& node = cluster_.nodes[leases_[lease].node];
  decision_.drains.push_back(DrainNotice{leases_[lease].id, node.id, node.drain_deadline});
}

void Scheduler::Impl::LoseNode(uint32_t slot, const std::string& reason) {
  Node& node = cluster_.nodes[slot];
  const std::string text =
      "node " + node.id + " is gone" + (reason.empty() ? "" : ": " + reason.substr(0, 1000));
  node.alive = false;
  NodeSwitched(slot);
  while (node.leases != kNone) {
    const uint32_t lease = node.leases;
    Revoke(lease, text, leases_[lease].state == LeaseState::kGranted);
  }
  while (!node.bundles.empty()) {
    const BundleRef ref = node.bundles.back();
    UnplaceBundle(ref.group, ref.number, text, false);
    GroupWaits(ref.group);
    changed_groups_.insert_or_assign(ref.group, text);
  }
  asides_.erase({node.aside_until, slot});
  std::erase(dirty_, slot);
  cluster_.RemoveNode(slot);
}

void Scheduler::Impl::On(const NodeUp& event) {
  const auto refuse = [&](ErrorCode code, const std::string& message) {
    Refuse(event.node, code,
           "node \"" + event.node.substr(0, kSchedulerIdBytesMax) + "\": " + message);
  };
  if (event.node.empty() || event.node.size() > kSchedulerIdBytesMax) {
    return refuse(ErrorCode::kInvalidArgument,
                  "an id has 1 to " + std::to_string(kSchedulerIdBytesMax) + " bytes");
  }
  for (const Status& status :
       {CheckNodeGpus(event.total), CheckResources(event.total), CheckLabels(event.labels)}) {
    if (!status.ok()) return refuse(status.error().code, status.error().message);
  }
  const uint32_t known = cluster_.nodes.Find(event.node);
  if (known != kNone) {
    const Node& node = cluster_.nodes[known];
    if (event.incarnation < node.incarnation) {
      return refuse(ErrorCode::kFenced, "a newer incarnation is there");
    }
    if (event.incarnation == node.incarnation) {
      if (node.labels == event.labels &&
          cluster_.names.ToResources(node.capacity.total()) == event.total) {
        return;
      }
      return refuse(ErrorCode::kConflict,
                    "it is there with other resources or labels; it must join anew, as the next "
                    "incarnation");
    }
    LoseNode(known, "it joined anew");
  } else if (cluster_.nodes.size() >= kNodesMax) {
    return refuse(ErrorCode::kResourceExhausted,
                  "the cluster has " + std::to_string(kNodesMax) + " nodes, its limit");
  }
  Node node;
  node.id = event.node;
  node.incarnation = event.incarnation;
  node.labels = event.labels;
  Need total = cluster_.names.ToNeed(event.total);
  const int64_t devices = total.gpu / kOne;
  const uint64_t all = ~uint64_t{0};
  // Each device of a node is whole, whatever their number.
  node.capacity = Capacity(std::move(total), devices == 0 ? 0 : all >> (64 - devices));
  MarkDirty(cluster_.AddNode(std::move(node)));
  LookForPromises();
}

void Scheduler::Impl::On(const NodeHealth& event) {
  const uint32_t slot = cluster_.nodes.Find(event.node);
  if (slot == kNone) {
    return Refuse(event.node, ErrorCode::kNotFound, "there is no node \"" + event.node + "\"");
  }
  Node& node = cluster_.nodes[slot];
  const bool was_usable = node.usable();
  const Time deadline = event.draining ? event.drain_deadline : Time::Never();
  const bool news = event.draining && (!node.draining || deadline < node.drain_deadline);
  node.alive = event.alive;
  node.draining = event.draining;
  node.drain_deadline = deadline;
  if (news) {
    for (uint32_t lease = node.leases; lease != kNone; lease = leases_[lease].next) {
      TellDrain(lease);
    }
    for (const BundleRef& ref : node.bundles) {
      const Bundle& bundle = groups_[ref.group].bundles.at(ref.number);
      for (uint32_t lease = bundle.leases; lease != kNone; lease = leases_[lease].next) {
        TellDrain(lease);
      }
    }
  }
  if (node.usable() != was_usable) NodeSwitched(slot);
}

void Scheduler::Impl::On(const NodeGone& event) {
  const uint32_t slot = cluster_.nodes.Find(event.node);
  if (slot != kNone) LoseNode(slot, event.reason);
}

}  // namespace troupe
