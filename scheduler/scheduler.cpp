#include "scheduler/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

// With more changed nodes than this a search looks at all of them at once.
constexpr size_t kDirtyMax = 16;

}  // namespace

Scheduler::Scheduler(SchedulerOptions options) : impl_(std::make_unique<Impl>(options)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

SchedulerDecision Scheduler::Step(Time now, const SchedulerEvent& event) {
  return impl_->Step(now, event);
}
Time Scheduler::next_wake() const { return impl_->next_wake(); }
std::vector<NodeStatus> Scheduler::Nodes() const { return impl_->Nodes(); }
std::vector<LeaseStatus> Scheduler::Leases() const { return impl_->Leases(); }
std::vector<GroupStatus> Scheduler::Groups() const { return impl_->Groups(); }
std::vector<PromiseStatus> Scheduler::Promises() const { return impl_->Promises(); }
std::vector<std::string> Scheduler::WaitingForRoom(size_t limit) const {
  return impl_->WaitingForRoom(limit);
}
std::optional<LeaseStatus> Scheduler::FindLease(const std::string& id) const {
  return impl_->FindLease(id);
}
std::optional<GroupStatus> Scheduler::FindGroup(const std::string& id) const {
  return impl_->FindGroup(id);
}

SchedulerDecision Scheduler::Impl::Step(Time now, const SchedulerEvent& event) {
  now_ = std::max(now_, now);
  Advance();
  Serve();  // What time has freed goes to those who waited before the event is looked at.
  std::visit([this](const auto& e) { On(e); }, event);
  Serve();
  KeepPromises();
  Serve();
  WriteGrants();
  for (const auto& [group, reason] : changed_groups_) {
    GroupChange change = Describe(groups_[group], StateOf(groups_[group]));
    change.reason = reason;
    decision_.groups.push_back(std::move(change));
  }
  changed_groups_.clear();
  return std::exchange(decision_, {});
}

Time Scheduler::Impl::next_wake() const {
  if (now_ < recover_until_) return std::min(recover_until_, NextTimeout());
  return std::min(check_promises_at_, NextTimeout());
}

Time Scheduler::Impl::NextTimeout() const {
  Time wake = Time::Never();
  if (oldest_unconfirmed_ != kNone) {
    wake = std::min(wake, leases_[oldest_unconfirmed_].since + options_.confirm_within);
  }
  if (!asides_.empty()) wake = std::min(wake, asides_.begin()->first);
  return wake;
}

void Scheduler::Impl::Refuse(const std::string& what, ErrorCode code, const std::string& message) {
  decision_.refused.push_back(Refused{what.substr(0, kSchedulerIdBytesMax), Error{code, message}});
}

// What time alone has brought about.
void Scheduler::Impl::Advance() {
  while (!asides_.empty() && asides_.begin()->first <= now_) {
    const uint32_t node = asides_.begin()->second;
    asides_.erase(asides_.begin());
    cluster_.nodes[node].aside = false;
    NodeSwitched(node);
  }
  while (oldest_unconfirmed_ != kNone &&
         leases_[oldest_unconfirmed_].since + options_.confirm_within <= now_) {
    const uint32_t lease = oldest_unconfirmed_;
    Quarantine(leases_[lease].node);
    Revoke(lease, "it was not confirmed in time", true);
  }
}

void Scheduler::Impl::Quarantine(uint32_t slot) {
  Node& node = cluster_.nodes[slot];
  if (node.aside) return;
  Duration pause = options_.aside_first;
  for (uint32_t i = 0; i < node.failures && pause < options_.aside_most; ++i) pause *= 2;
  ++node.failures;
  node.aside = true;
  node.aside_until = now_ + std::min(pause, options_.aside_most);
  asides_.emplace(node.aside_until, slot);
  NodeSwitched(slot);
}

// ---- the queue ----

// A node may hold more than when the waiting ones were last looked at.
void Scheduler::Impl::MarkDirty(uint32_t slot) {
  Node& node = cluster_.nodes[slot];
  if (node.dirty || !node.usable()) return;
  node.dirty = true;
  dirty_.push_back(slot);
}

void Scheduler::Impl::SetWaiter(const Waiter& waiter, bool waits, bool fresh) {
  if (!waits) {
    const auto at = waiters_.find(waiter);
    if (at == waiters_.end()) return;
    const bool heads =
        at == waiters_.begin() || std::prev(at)->order.neg_priority != waiter.order.neg_priority;
    // The next one of its priority may have waited longer since it last had a place.
    if (heads) check_promises_at_ = now_;
    waiters_.erase(at);
    fresh_.erase(waiter);
    return;
  }
  waiters_.insert(waiter);
  if (fresh) fresh_.insert(waiter);
}

// Whoever is first among the waiting of a shape stands for it in the queue.
void Scheduler::Impl::UpdateHead(uint32_t slot) {
  Shape& shape = shapes_[slot];
  std::optional<Waiter> head;
  if (!shape.waiting.empty()) {
    head = Waiter{shape.waiting.begin()->first, WaiterKind::kShape, slot};
  }
  if (head == shape.head) return;
  if (shape.head) SetWaiter(*shape.head, false, false);
  shape.head = head;
  if (head) {
    SetWaiter(*head, true, !shape.blocked);
  } else {
    shape.blocked = false;
  }
}

// Until nobody who waits can be placed. A blocked waiter is only held against nodes that changed
// since it was blocked; a fresh one against all.
void Scheduler::Impl::Serve() {
  while (now_ >= recover_until_ && (!dirty_.empty() || !fresh_.empty())) {
    if (dirty_.empty()) {
      const Waiter waiter = *fresh_.begin();
      fresh_.erase(fresh_.begin());
      ServeOne(waiter, true);
      continue;
    }
    walked_.swap(dirty_);
    for (const uint32_t node : walked_) cluster_.nodes[node].dirty = false;
    const bool many = walked_.size() > kDirtyMax;
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      const Waiter waiter = *it;
      ServeOne(waiter, fresh_.erase(waiter) > 0 || many);
      it = waiters_.upper_bound(waiter);
    }
    walked_.clear();
  }
}

void Scheduler::Impl::ServeOne(const Waiter& waiter, bool try_all) {
  switch (waiter.kind) {
    case WaiterKind::kShape:
      return ServeShape(waiter.id, try_all);
    case WaiterKind::kGang:
      return ServeGang(waiter.id, try_all);
    case WaiterKind::kGroup:
      return ServeGroup(waiter.id, try_all);
  }
}

void Scheduler::Impl::ServeShape(uint32_t slot, bool try_all) {
  Shape& shape = shapes_[slot];
  const auto [order, lease] = *shape.waiting.begin();
  if (shape.group != kNone) {
    if (!try_all) return;  // Its group says when a bundle has changed.
    const uint32_t number = SearchBundles(shape, order);
    shape.blocked = number == kNone;
    if (shape.blocked) return;
    Bundle& bundle = groups_[shape.group].bundles.at(number);
    const uint64_t devices = bundle.capacity.Take(shape.need);
    return Grant(lease, bundle.node, number, devices);
  }
  const uint32_t node = shape.blocked && !try_all
                            ? SearchDirty(shape, order)
                            : Search(shape, order, ModeOf(shape), [](uint32_t) { return true; });
  if (node == kNone) {
    shape.blocked = true;
    return;
  }
  // It was blocked for one who had less right perhaps, so the next is held against all nodes too.
  if (try_all) shape.blocked = false;
  const uint64_t devices = cluster_.nodes[node].capacity.Take(shape.need);
  Grant(lease, node, kNone, devices);
}

}  // namespace troupe
