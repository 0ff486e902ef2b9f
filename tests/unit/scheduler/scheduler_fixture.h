// A scheduler under a fake clock, and short ways to say what happens to it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace troupe {

using Amounts = std::map<std::string, double>;

inline ResourceSet Of(const Amounts& amounts) {
  const Result<ResourceSet> set = ResourceSet::FromMap(amounts);
  EXPECT_TRUE(set.ok()) << (set.ok() ? "" : set.error().message);
  return set.ok() ? *set : ResourceSet();
}

inline LabelSelector Select(const std::string& text) {
  const Result<LabelSelector> selector = LabelSelector::Parse(text);
  EXPECT_TRUE(selector.ok()) << (selector.ok() ? "" : selector.error().message);
  return selector.ok() ? *selector : LabelSelector();
}

class SchedulerTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.confirm_within = seconds(10);
    options.starvation_after = seconds(30);
    return options;
  }

  const SchedulerDecision& Do(const SchedulerEvent& event) {
    last_ = scheduler_.Step(now_, event);
    return last_;
  }
  // In steps, as a caller who keeps to next_wake would.
  void Pass(Duration time) {
    const Time end = now_ + time;
    while (scheduler_.next_wake() <= end) {
      now_ = std::max(now_, scheduler_.next_wake());
      Append(scheduler_.Step(now_, sched::Wake{}));
    }
    now_ = end;
  }
  void Append(const SchedulerDecision& more) {
    for (const auto& granted : more.granted) passed_.granted.push_back(granted);
    for (const auto& revoked : more.revoked) passed_.revoked.push_back(revoked);
  }

  void AddNode(const std::string& id, const Amounts& total, const Labels& labels = {}) {
    Do(sched::NodeUp{id, 1, Of(total), labels});
  }
  static sched::LeaseRequest Lease(const std::string& id, const Amounts& need, int priority = 0) {
    sched::LeaseRequest request;
    request.id = id;
    request.resources = Of(need);
    request.priority = priority;
    return request;
  }
  static sched::LeaseRequest InGroup(const std::string& id, const Amounts& need,
                                     const std::string& group, int bundle = sched::kAnyBundle) {
    sched::LeaseRequest request = Lease(id, need);
    request.group = group;
    request.bundle = bundle;
    return request;
  }
  // The node it is granted to at once; "waits", or the refusal.
  std::string Ask(const sched::LeaseRequest& request) {
    Do(sched::Request{request});
    for (const auto& granted : last_.granted) {
      if (granted.lease == request.id) return granted.node;
    }
    return last_.refused.empty() ? "waits" : "refused: " + last_.refused[0].error.message;
  }
  std::string Ask(const std::string& id, const Amounts& need, int priority = 0) {
    return Ask(Lease(id, need, priority));
  }
  void Run(const std::string& id) { Do(sched::Confirm{id, NodeOf(id)}); }
  void Release(const std::string& id) { Do(sched::Release{id}); }
  // The leases of the last Step's grants.
  std::vector<std::string> Granted() const {
    std::vector<std::string> ids;
    for (const auto& granted : last_.granted) ids.push_back(granted.lease);
    return ids;
  }
  std::vector<std::string> Revoked() const {
    std::vector<std::string> ids;
    for (const auto& revoked : last_.revoked) ids.push_back(revoked.lease);
    return ids;
  }
  std::string Refusal() const {
    return last_.refused.empty() ? "" : last_.refused[0].error.message;
  }
  std::string NodeOf(const std::string& id) const {
    const auto lease = scheduler_.FindLease(id);
    return lease ? lease->node : "gone";
  }
  std::string Reason(const std::string& id) const {
    const auto lease = scheduler_.FindLease(id);
    return lease ? lease->reason : "gone";
  }
  std::string Visible(const std::string& id) const {
    return VisibleDevices(IndicesOf(scheduler_.FindLease(id)->devices));
  }
  // "a a -": the nodes of a group's bundles.
  std::string Places(const std::string& group) const {
    const auto status = scheduler_.FindGroup(group);
    if (!status) return "gone";
    std::string text;
    for (const auto& bundle : status->bundles) {
      text += (text.empty() ? "" : " ") + (bundle.place.node.empty() ? "-" : bundle.place.node);
    }
    return text;
  }
  std::string State(const std::string& group) const {
    const auto status = scheduler_.FindGroup(group);
    return status ? std::string(sched::GroupStateName(status->state)) : "gone";
  }
  static sched::CreateGroup Group(const std::string& id, size_t bundles, const Amounts& each,
                                  PlacementStrategy strategy) {
    sched::CreateGroup group;
    group.group = id;
    group.bundles.assign(bundles, sched::BundleSpec{Of(each), {}});
    group.strategy = strategy;
    return group;
  }

  Time now_{1'000'000'000};
  Scheduler scheduler_{Options()};
  SchedulerDecision last_;
  SchedulerDecision passed_;  // Of Pass.
};

}  // namespace troupe
