// The state of the scheduler, and its parts by source; scheduler.h says what it does.
// Thread: one.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/internal/records.h"
#include "scheduler/scheduler.h"

namespace troupe {

using namespace sched;            // NOLINT(google-build-using-namespace): one library's own names
using namespace sched::internal;  // NOLINT(google-build-using-namespace): in its private header.

class Scheduler::Impl {
 public:
  explicit Impl(SchedulerOptions options) : options_(options) {}
  SchedulerDecision Step(Time now, const SchedulerEvent& event);
  [[nodiscard]] Time next_wake() const;
  [[nodiscard]] std::vector<NodeStatus> Nodes() const;
  [[nodiscard]] std::vector<LeaseStatus> Leases() const;
  [[nodiscard]] std::vector<GroupStatus> Groups() const;
  [[nodiscard]] std::vector<PromiseStatus> Promises() const;
  [[nodiscard]] std::vector<std::string> WaitingForRoom(size_t limit) const;
  [[nodiscard]] std::optional<LeaseStatus> FindLease(const std::string& id) const;
  [[nodiscard]] std::optional<GroupStatus> FindGroup(const std::string& id) const;

 private:
  using Slots = std::vector<uint32_t>;
  using Pieces = std::vector<Piece>;
  using Accept = std::function<bool(uint32_t node)>;
  enum class Mode { kHybrid, kLeastUsed, kFirst };
  enum class PlanFor { kPromise, kIdle, kNow };
  struct Plan {
    size_t placed = 0;
    std::set<uint32_t> beside;           // Nodes of those that were placed before.
    std::map<uint32_t, Capacity> after;  // By node.
  };
  struct Why {
    std::string text;
    bool impossible = false;
  };

  // scheduler.cpp: time and the queue.
  void Refuse(const std::string& what, ErrorCode code, const std::string& message);
  [[nodiscard]] Time NextTimeout() const;
  void Advance();
  void Quarantine(uint32_t node);
  void MarkDirty(uint32_t node);
  void SetWaiter(const Waiter& waiter, bool waits, bool fresh);
  void UpdateHead(uint32_t shape);
  void Serve();
  void ServeOne(const Waiter& waiter, bool try_all);
  void ServeShape(uint32_t shape, bool try_all);
  void On(const Recover& event) { recover_until_ = event.until; }
  void On(const Wake&) {}

  // scheduler_requests.cpp, scheduler_claims.cpp: leases and gangs.
  Status CheckResources(const ResourceSet& resources) const;
  Status Check(const LeaseRequest& request) const;
  Status CheckBundles(const Group& group, const ResourceSet& resources, int bundle) const;
  Status CheckGang(const RequestGang& event) const;
  static std::string ShapeKey(const LeaseRequest& request);
  uint32_t UseShape(const LeaseRequest& request);
  void LeaveShape(uint32_t shape);
  bool AnswerRepeat(const LeaseRequest& request);
  uint32_t AddLease(const LeaseRequest& request);
  void Enqueue(uint32_t lease);
  void Dequeue(uint32_t lease);
  uint32_t& ListOf(const Lease& lease);
  void Settle(uint32_t lease, uint32_t node, uint32_t bundle, uint64_t devices);
  void Grant(uint32_t lease, uint32_t node, uint32_t bundle, uint64_t devices);
  [[nodiscard]] Need HeldBy(const Lease& lease) const;
  void SetLent(const std::string& lease, bool lent);
  void TellGranted(uint32_t lease);
  void WriteGrants();
  void Unlist(uint32_t lease);
  void Unsettle(uint32_t lease);
  void End(uint32_t lease);
  void Revoke(uint32_t lease, const std::string& reason, bool again);
  void ServeGang(uint32_t gang, bool try_all);
  Status TakeClaim(const Claim& claim, uint32_t lease);
  void PlaceClaimed(uint32_t group, const ClaimGroup& event);
  void On(const Request& event);
  void On(const RequestGang& event);
  void On(const Confirm& event);
  void On(const Lend& event) { SetLent(event.lease, true); }
  void On(const TakeBack& event) { SetLent(event.lease, false); }
  void On(const Release& event);
  void On(const Cancel& event);
  void On(const Claim& event);
  void On(const ClaimGroup& event);

  // scheduler_search.cpp, scheduler_batch.cpp: places.
  [[nodiscard]] bool Allows(const Node& node, const Need& need, Order order) const;
  static Mode ModeOf(const Shape& shape);
  uint32_t Search(Shape& shape, Order order, Mode mode, const Accept& accept);
  uint32_t SearchTrees(Shape& shape, Mode mode, const Accept& accept);
  uint32_t SearchDirty(const Shape& shape, Order order);
  uint32_t SearchBundles(const Shape& shape, Order order);
  void SortLargestFirst(Pieces& pieces) const;
  size_t PlaceBatch(Pieces& pieces, PlacementStrategy strategy, size_t at_least, Slots beside,
                    Order order);
  uint32_t PlacePiece(const Piece& piece, PlacementStrategy strategy, const Slots& beside,
                      Order order);
  bool PlaceTogether(Pieces& pieces, const Slots& beside, Order order);
  bool TakeAll(Pieces& pieces, uint32_t node, Order order);
  void Book(Piece& piece, uint32_t node);
  void Unbook(Pieces& pieces);
  size_t PlacePlan(Pieces& pieces, const Promise& promise);
  [[nodiscard]] bool MayHelp(const Pieces& pieces, Order order) const;

  // scheduler_groups.cpp
  static GroupState StateOf(const Group& group);
  [[nodiscard]] GroupChange Describe(const Group& group, GroupState state) const;
  Status CheckGroup(const std::string& id, const std::vector<BundleSpec>& bundles) const;
  uint32_t AddGroup(const std::string& id, PlacementStrategy strategy, int priority);
  void AddBundle(uint32_t group, uint32_t number, const BundleSpec& spec, uint64_t batch);
  void GroupWaits(uint32_t group);
  void BundlesChanged(uint32_t group);
  void PlaceBundle(uint32_t group, uint32_t number, uint32_t node, uint64_t devices);
  void UnplaceBundle(uint32_t group, uint32_t number, const std::string& reason, bool for_good);
  void RemoveBundle(uint32_t group, uint32_t number, const std::string& reason);
  void RevokeWaiting(uint32_t shape, const std::string& reason);
  void RevokeUnfit(uint32_t group);
  void ServeGroup(uint32_t group, bool try_all);
  void On(const CreateGroup& event);
  void On(const ResizeGroup& event);
  void On(const RemoveGroup& event);

  // scheduler_nodes.cpp
  void NodeChanged(uint32_t node);
  void NodeSwitched(uint32_t node);
  void TellDrain(uint32_t lease);
  void LoseNode(uint32_t node, const std::string& reason);
  void On(const NodeUp& event);
  void On(const NodeHealth& event);
  void On(const NodeGone& event);

  // scheduler_promises.cpp: room for who has waited long.
  [[nodiscard]] Time SinceOf(const Waiter& waiter) const;
  [[nodiscard]] PlacementStrategy StrategyOf(const Waiter& waiter) const;
  [[nodiscard]] size_t AtLeastOf(const Waiter& waiter, size_t pieces) const;
  [[nodiscard]] Slots NodesOf(const Waiter& waiter) const;
  [[nodiscard]] Pieces PiecesOf(const Waiter& waiter) const;
  void KeepPromises();
  bool MakePromise(const Waiter& waiter);
  bool PromiseNode(Promise promise, const Shape& shape);
  bool PromiseBundle(Promise promise, const Shape& shape);
  bool PromiseBatch(Promise promise);
  [[nodiscard]] Plan PlanBatch(Pieces& pieces, const Waiter& waiter, PlanFor how) const;
  void PlanOnNode(Pieces& pieces, uint32_t node, Order order, PlanFor how, bool one,
                  Plan& plan) const;
  void HoldPlan(Promise promise, const Pieces& pieces);
  void DropPromise(Order order);
  void RenewPromise(Order order);
  void LookForPromises();

  // scheduler_reasons.cpp, scheduler_status.cpp: for people.
  [[nodiscard]] std::string Obstacle(const Capacity& capacity, const Need& need) const;
  [[nodiscard]] std::string Needs(const Shape& shape) const;
  [[nodiscard]] uint32_t FirstOf(const Waiter& waiter) const;
  [[nodiscard]] std::string NameOf(Order order) const;
  static std::string NotUsable(const Node& node);
  [[nodiscard]] Why WhyNode(const Shape& shape, Order order, const Plan& plan, bool apart) const;
  [[nodiscard]] Why WhyBundle(const Shape& shape, Order order) const;
  [[nodiscard]] Why WhyBatch(const Waiter& waiter) const;
  [[nodiscard]] Why Recovering() const;
  [[nodiscard]] Why WhyGroup(const Group& group) const;
  [[nodiscard]] Why WhyLease(const Lease& lease) const;
  [[nodiscard]] std::string Behind(const Lease& lease) const;
  [[nodiscard]] LeaseStatus StatusOf(const Lease& lease) const;
  [[nodiscard]] GroupStatus StatusOf(const Group& group) const;

  const SchedulerOptions options_;
  Time now_;
  SchedulerDecision decision_;  // Of this Step.
  Time recover_until_;          // Nothing is placed before.
  Slots to_tell_;               // Leases that were granted in it.
  std::map<uint32_t, std::string> changed_groups_;

  Cluster cluster_;
  SlotTable<Shape> shapes_;
  SlotTable<Lease> leases_;
  SlotTable<Group> groups_;
  std::map<uint32_t, Gang> gangs_;
  uint64_t last_number_ = 0;
  uint32_t last_gang_ = 0;
  uint64_t batch_ = 0;

  std::set<Waiter> waiters_;  // In the order of service.
  std::set<Waiter> fresh_;    // Those to be held against all nodes.
  Slots dirty_;               // Nodes that may have more room than when the others were blocked,
  Slots walked_;              // and those that the waiters are being held against now.
  std::map<Order, Promise> promises_;
  std::set<Order> hopeless_;  // Those for whom no place was found to promise.
  Time check_promises_at_ = Time::Never();
  std::set<std::pair<Time, uint32_t>> asides_;  // Until when; nodes.
  uint32_t oldest_unconfirmed_ = kNone;
  uint32_t newest_unconfirmed_ = kNone;
};

}  // namespace troupe
