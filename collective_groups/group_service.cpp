#include "collective_groups/group_service.h"

#include <algorithm>
#include <deque>

#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::groups {
namespace {

constexpr uint8_t kRecordType = 60;
constexpr uint8_t kAddressesType = 61;

std::string Key(const std::string& group, const std::string& leaf) {
  return "group/" + group + "/" + leaf;
}

struct EpochAddresses {
  View view;
  std::vector<Report> reports;  // Their offers are the rendezvous addresses.
  template <class A>
  void Fields(A& a) {
    a(view, reports);
  }
};

std::optional<std::string> EncodeRecord(const std::optional<EpochRecord>& record) {
  if (!record) return std::nullopt;
  return wire::Encode(kRecordType, *record);
}

}  // namespace

struct GroupService::Entry {
  std::string name;
  CoordinatorOptions options;
  GroupCallbacks callbacks;
  std::unique_ptr<Coordinator> coordinator;  // Null until the store answered.
  std::deque<CoordinatorEvent> early;
  TimerId timer = kNoTimer;
  Time due = Time::Never();  // Of the timer.
  bool planned = false;
  bool unsettled = false;  // The active epoch's pauses are not all known yet.
};

GroupService::GroupService(EventLoop* loop, BlockingLane* store_lane, Store* store,
                           std::string owner, Duration key_ttl)
    : loop_(loop),
      store_lane_(store_lane),
      store_(store),
      owner_(std::move(owner)),
      key_ttl_(key_ttl) {}

GroupService::~GroupService() {
  *alive_ = false;
  for (auto& [name, entry] : groups_) loop_->Cancel(entry->timer);
}

void GroupService::Open(CoordinatorOptions options, GroupCallbacks callbacks) {
  const std::string group = options.group;
  if (groups_.contains(group)) return;
  auto entry = std::make_unique<Entry>();
  entry->name = group;
  entry->options = std::move(options);
  entry->options.owner = owner_;
  entry->callbacks = std::move(callbacks);
  groups_[group] = std::move(entry);
  // The term and the record are read until the store answers: without them an epoch could be used
  // twice.
  (void)store_lane_->Post([this, group, alive = alive_, loop = loop_] {
    Result<int64_t> term = Error{ErrorCode::kUnavailable, ""};
    Result<std::optional<std::string>> bytes = std::optional<std::string>();
    for (int attempt = 0; attempt < 600; ++attempt) {
      bytes = store_->Get(Key(group, "record"));
      if (bytes.ok()) term = store_->Increment(Key(group, "term"));
      if (bytes.ok() && term.ok()) break;
      std::this_thread::sleep_for(milliseconds(50));
    }
    std::optional<EpochRecord> record;
    if (bytes.ok() && *bytes) {
      Result<EpochRecord> decoded = wire::Decode<EpochRecord>(kRecordType, **bytes);
      if (decoded.ok()) record = std::move(*decoded);
    }
    const int64_t number = term.ok() ? *term : 0;
    loop->Post([this, group, alive, record = std::move(record), number] {
      if (!*alive) return;
      const auto it = groups_.find(group);
      if (it == groups_.end() || it->second->coordinator) return;
      Entry& entry = *it->second;
      if (number == 0) {
        entry.callbacks.failed("the store (Redis) did not answer for 30 s");
        return;
      }
      entry.options.term = static_cast<uint64_t>(number);
      entry.coordinator = std::make_unique<Coordinator>(entry.options, record, loop_->Now());
      std::deque<CoordinatorEvent> early;
      early.swap(entry.early);
      for (const CoordinatorEvent& event : early) Feed(group, event);
      Feed(group, Tick{});
    });
  });
}

void GroupService::Close(const std::string& group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  loop_->Cancel(it->second->timer);
  groups_.erase(it);
  metrics::Remove(metrics::Id::kGroupMembers, group);
  CountParked();
  (void)store_lane_->Post([this, group] { (void)store_->DeletePrefix(Key(group, "")); });
}

void GroupService::Refresh() {
  for (const auto& [group, entry] : groups_) {
    if (!entry->coordinator || !entry->coordinator->record()) continue;
    // Against the same value: what another coordinator has written since stays as it is.
    (void)store_lane_->Post(
        [this, key = Key(group, "record"), bytes = EncodeRecord(entry->coordinator->record())] {
          const Status same = store_->CompareAndSet(key, bytes, *bytes, key_ttl_);
          if (same.ok() || same.error().code != ErrorCode::kConflict) return;
          (void)store_->CompareAndSet(key, std::nullopt, *bytes, key_ttl_);  // The store lost it.
        });
  }
}

void GroupService::CountParked() const {
  metrics::Set(metrics::Id::kGroupsParked,
               static_cast<double>(std::count_if(groups_.begin(), groups_.end(), [](const auto& g) {
                 const Coordinator* c = g.second->coordinator.get();
                 return c != nullptr && c->phase() == GroupPhase::kParked;
               })));
}

void GroupService::OnReport(const std::string& group, const Report& report) {
  Feed(group, ReportReceived{report});
}
void GroupService::OnDeath(const std::string& group, const MemberId& id,
                           const std::string& reason) {
  if (trace::On()) trace::Instant("death noticed", {{"member", id.ToString()}, {"how", reason}});
  Feed(group, MemberDied{id, reason});
}
void GroupService::Drain(const std::string& group, const MemberId& id, const std::string& reason) {
  Feed(group, DrainRequested{id, reason});
}
void GroupService::SetMinimum(const std::string& group, uint32_t min_members) {
  Feed(group, LimitsChanged{min_members});
}

const Coordinator* GroupService::Find(const std::string& group) const {
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : it->second->coordinator.get();
}

void GroupService::Feed(const std::string& group, const CoordinatorEvent& event) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  Entry& entry = *it->second;
  if (!entry.coordinator) {
    entry.early.push_back(event);
    return;
  }
  if (entry.due != Time::Never() && loop_->Now() > entry.due + EventLoop::kStoppedFrom) {
    const Resumed resumed{loop_->Now() - std::exchange(entry.due, Time::Never())};
    LogWarning("group ", group, ": the head was stopped for ", ToMilliseconds(resumed.stopped),
               " ms; it does not count as silence of the members");
    Feed(group, resumed);
    return Feed(group, event);
  }
  const GroupPhase before = entry.coordinator->phase();
  const CoordinatorDecision decision = entry.coordinator->Step(loop_->Now(), event);
  if (trace::On() && entry.coordinator->phase() != before) {
    trace::Enter("group " + group, GroupPhaseName(entry.coordinator->phase()),
                 {{"why", decision.reason}});
  }
  if (!decision.reason.empty()) LogInfo("group ", group, ": ", decision.reason);
  if (entry.coordinator->phase() != before) CountParked();
  for (const CoordinatorAction& action : decision.actions) Act(entry, action);
  if (!groups_.contains(group)) return;  // An action's callback closed it.
  if (entry.unsettled) CheckSettled(entry);
  Arm(entry);
}

void GroupService::Act(Entry& entry, const CoordinatorAction& action) {
  if (const auto* a = std::get_if<SendCommand>(&action)) {
    entry.callbacks.send(a->to, a->command);
  } else if (const auto* a = std::get_if<PersistRecord>(&action)) {
    Persist(entry, *a);
  } else if (const auto* a = std::get_if<FenceMember>(&action)) {
    entry.callbacks.fence(a->id, a->reason);
  } else if (const auto* a = std::get_if<EpochActivated>(&action)) {
    entry.unsettled = true;
    if (trace::On()) {
      trace::Complete(
          "epoch " + std::to_string(a->view.epoch), loop_->Now() - a->took,
          {{"reason", a->view.reason}, {"size", static_cast<int64_t>(a->view.members.size())}},
          "epochs of " + entry.name);
    }
    const char* cause = EpochCauseName(a->cause);
    metrics::Add(metrics::Id::kGroupEpochs, 1, cause);
    metrics::Observe(metrics::Id::kGroupRecovery, a->took, cause);
    metrics::Set(metrics::Id::kGroupMembers, static_cast<double>(a->view.members.size()),
                 entry.name);
    entry.planned = a->planned;
    entry.callbacks.activated(*a);
    // Off the recovery path: members and addresses of the epoch, for whoever looks into the store.
    EpochAddresses addresses{a->view, entry.coordinator->members()};
    (void)store_lane_->Post([this, key = Key(entry.name, "epoch/" + std::to_string(a->view.epoch)),
                             bytes = wire::Encode(kAddressesType, addresses)] {
      (void)store_->Put(key, bytes, kEpochKeyTtl);
    });
  } else if (const auto* a = std::get_if<GroupStalled>(&action)) {
    metrics::Add(metrics::Id::kGroupStalls, 1, a->removed ? "yes" : "no");
    if (trace::On()) trace::Instant("stall", {{"operation", a->operation}});
    entry.callbacks.stalled(*a);
  } else if (const auto* a = std::get_if<GroupParked>(&action)) {
    entry.callbacks.parked(a->reason);
  } else if (const auto* a = std::get_if<GroupFailed>(&action)) {
    entry.callbacks.failed(a->reason);
  } else if (std::holds_alternative<GroupEnded>(action)) {
    entry.callbacks.ended();
  } else if (std::holds_alternative<Deposed>(action)) {
    entry.callbacks.failed("another head took the group over");
  }
}

void GroupService::Persist(Entry& entry, const PersistRecord& request) {
  const std::string group = entry.name;
  (void)store_lane_->Post([this, group, request, alive = alive_, loop = loop_] {
    const trace::Span span("persist epoch");
    const std::string key = Key(group, "record");
    const Status status = store_->CompareAndSet(
        key, EncodeRecord(request.expected), wire::Encode(kRecordType, request.record), key_ttl_);
    StoreAnswered answer{request.request, status.ok() ? ErrorCode::kOk : status.error().code, {}};
    if (answer.code == ErrorCode::kConflict) {
      Result<std::optional<std::string>> actual = store_->Get(key);
      if (!actual.ok()) {
        answer.code = actual.error().code;
      } else if (*actual) {
        Result<EpochRecord> decoded = wire::Decode<EpochRecord>(kRecordType, **actual);
        if (decoded.ok()) answer.actual = std::move(*decoded);
      }
    }
    loop->Post([this, alive, group, answer = std::move(answer)] {
      if (*alive) Feed(group, answer);
    });
  });
}

void GroupService::CheckSettled(Entry& entry) {
  const View& view = entry.coordinator->view();
  uint64_t longest = 0;
  size_t known = 0;
  for (const Report& r : entry.coordinator->members()) {
    if (r.state != MemberState::kActive || r.epoch != view.epoch) continue;
    longest = std::max(longest, r.pause_us);
    ++known;
  }
  if (known < view.members.size() && entry.coordinator->phase() == GroupPhase::kActive) return;
  entry.unsettled = false;
  metrics::Observe(metrics::Id::kGroupPause, microseconds(longest), entry.planned ? "yes" : "no");
  entry.callbacks.settled(view, microseconds(longest));
}

void GroupService::Arm(Entry& entry) {
  loop_->Cancel(entry.timer);
  const Time next = entry.coordinator->NextDeadline();
  entry.due = next == Time::Never() ? next : std::max(next, loop_->Now() + microseconds(500));
  if (next == Time::Never()) return;
  entry.timer = loop_->CallAt(entry.due, [this, group = entry.name] { Feed(group, Tick{}); });
}

}  // namespace troupe::groups
