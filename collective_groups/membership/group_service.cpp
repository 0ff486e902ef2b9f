#include "collective_groups/membership/group_service.h"

#include <algorithm>
#include <deque>

#include "collective_groups/membership/group_keys.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::groups {
namespace {

constexpr uint8_t kRecordType = 60;
constexpr uint8_t kAddressesType = 61;

std::string Key(const std::string& keys, const std::string& leaf) {
  return KeysOfGroup(keys) + leaf;
}

const std::string& KeysOf(const CoordinatorOptions& options) {
  return options.keys.empty() ? options.group : options.keys;
}

struct EpochAddresses {
  View view;
  std::vector<Report> reports;  // Their offers are the rendezvous addresses.
  template <class A>
  void Fields(A& a) {
    a(view, reports);
  }
};

}  // namespace

struct GroupService::Entry {
  std::string name;
  CoordinatorOptions options;
  std::unique_ptr<Coordinator> coordinator;  // Null until the store answered.
  std::deque<CoordinatorEvent> early;
  TimerId timer = kNoTimer;
  Time due = Time::Never();  // Of the timer.
  bool planned = false;
  std::optional<std::string> raw;  // What the store holds, as far as is known, byte for byte.
  bool unsettled = false;          // The active epoch's pauses are not all known yet.
};

GroupService::GroupService(EventLoop* loop, Lane* store_lane, Store* store, std::string owner,
                           Tell tell, Duration key_ttl)
    : loop_(loop),
      store_lane_(store_lane),
      store_(store),
      owner_(std::move(owner)),
      tell_(std::move(tell)),
      key_ttl_(key_ttl) {}

GroupService::~GroupService() {
  for (auto& [name, entry] : groups_) loop_->Cancel(entry->timer);
}

void GroupService::Open(CoordinatorOptions options) {
  const std::string group = options.group;
  if (groups_.contains(group)) return;
  auto entry = std::make_unique<Entry>();
  entry->name = group;
  entry->options = std::move(options);
  entry->options.owner = owner_;
  groups_[group] = std::move(entry);
  Load(group, loop_->Now() + groups_.at(group)->options.park_timeout);
}

// What the store holds of a group: `raw` also if it cannot be decoded.
struct GroupService::Loaded {
  int64_t counter = 0;  // 0: the store did not answer.
  std::optional<std::string> raw;
  std::optional<EpochRecord> record;
};

// The term and the record are read until the store answers: without them an epoch could be used
// twice.
void GroupService::Load(const std::string& group, Time deadline) {
  const std::string keys = KeysOf(groups_.at(group)->options);
  (void)store_lane_->Post([this, group, keys, deadline, back = scope_.back()] {
    Loaded loaded;
    Result<std::optional<std::string>> bytes = store_->Get(Key(keys, "record"));
    if (bytes.ok()) {
      loaded.raw = std::move(*bytes);
      loaded.record = DecodeOrKeepAside(keys, loaded.raw);
      const Result<int64_t> counter = store_->Increment(Key(keys, "term"));
      loaded.counter = counter.ok() ? *counter : 0;
    }
    back.Post(
        [this, group, deadline, loaded = std::move(loaded)] { OnLoaded(group, deadline, loaded); });
  });
}

void GroupService::OnLoaded(const std::string& group, Time deadline, Loaded loaded) {
  const auto it = groups_.find(group);
  if (it == groups_.end() || it->second->coordinator) return;
  Entry& entry = *it->second;
  if (loaded.counter == 0) {
    if (loop_->Now() >= deadline) {
      return tell_(
          group,
          GroupFailed{"the store (Redis) did not answer for " +
                      std::to_string(static_cast<int64_t>(ToSeconds(entry.options.park_timeout))) +
                      " s"});
    }
    scope_.CallAfter(kStoreLoadRetry, [this, group, deadline] {
      if (groups_.contains(group)) Load(group, deadline);
    });
    return;
  }
  // The store may have lost the counter and kept the record.
  const uint64_t known = loaded.record ? loaded.record->term : 0;
  entry.options.term = std::max(static_cast<uint64_t>(loaded.counter), known + 1);
  entry.raw = std::move(loaded.raw);
  entry.coordinator =
      std::make_unique<Coordinator>(entry.options, std::move(loaded.record), loop_->Now());
  std::deque<CoordinatorEvent> early;
  early.swap(entry.early);
  for (const CoordinatorEvent& event : early) Feed(group, event);
  Feed(group, Tick{});
}

void GroupService::Reopen(const std::string& group) {
  const auto it = groups_.find(group);
  if (it == groups_.end() || !it->second->coordinator) return;
  LogWarning("group ", group, ": the store has a record of a later coordinator; going on from it");
  loop_->Cancel(it->second->timer);
  it->second->due = Time::Never();
  it->second->unsettled = false;
  it->second->options = it->second->coordinator->options();
  it->second->coordinator.reset();
  scope_.CallAfter(kReopenDelay, [this, group] {
    if (!groups_.contains(group)) return;
    Load(group, loop_->Now() + groups_.at(group)->options.park_timeout);
  });
}

// A record of a newer release, or one with a flipped byte, is kept for people and then treated as
// absent: the members' reports bring the group back. On the store's lane.
std::optional<EpochRecord> GroupService::DecodeOrKeepAside(const std::string& keys,
                                                           const std::optional<std::string>& raw) {
  if (!raw) return std::nullopt;
  Result<EpochRecord> decoded = wire::DecodeRecord<EpochRecord>(kRecordType, *raw);
  if (decoded.ok()) return std::move(*decoded);
  LogError("group ", keys, ": its record in the store cannot be read and is replaced from what ",
           "its members report; the bytes are kept in ", Key(keys, "unreadable"), ": ",
           decoded.error().message);
  (void)store_->Put(Key(keys, "unreadable"), *raw, key_ttl_);
  return std::nullopt;
}

void GroupService::Close(const std::string& group) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  loop_->Cancel(it->second->timer);
  groups_.erase(it);
  metrics::Remove(metrics::Id::kGroupMembers, group);
  CountParked();
}

// Puts back what the store has lost: the record, and the term, which must not start over while
// members remember a higher one.
void GroupService::Refresh() {
  for (const auto& [group, entry] : groups_) {
    if (!entry->coordinator || !entry->coordinator->record() || !entry->raw) continue;
    // Against the same value: what another coordinator has written since stays as it is.
    const std::string& keys = KeysOf(entry->options);
    (void)store_lane_->Post([this, key = Key(keys, "record"), term_key = Key(keys, "term"),
                             bytes = *entry->raw, term = entry->options.term] {
      const Status same = store_->CompareAndSet(key, bytes, bytes, key_ttl_);
      if (!same.ok() && same.error().code == ErrorCode::kConflict)
        (void)store_->CompareAndSet(key, std::nullopt, bytes, key_ttl_);
      (void)store_->CompareAndSet(term_key, std::nullopt, std::to_string(term), key_ttl_);
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

const Coordinator* GroupService::Find(const std::string& group) const {
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : it->second->coordinator.get();
}

void GroupService::Feed(const std::string& group, const CoordinatorEvent& event) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return;
  Entry& entry = *it->second;
  if (const auto* died = std::get_if<MemberDied>(&event); died != nullptr && trace::On())
    trace::Instant("death noticed", {{"member", died->id.ToString()}, {"how", died->reason}});
  if (!entry.coordinator) {
    // The oldest may go: members repeat what they have to say.
    if (entry.early.size() >= kEarlyEventsMax) entry.early.pop_front();
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
  if (entry.unsettled) CheckSettled(entry);
  Arm(entry);
}

void GroupService::Act(Entry& entry, const CoordinatorAction& action) {
  if (const auto* a = std::get_if<SendCommand>(&action)) {
    tell_(entry.name, *a);
  } else if (const auto* a = std::get_if<PersistRecord>(&action)) {
    Persist(entry, *a);
  } else if (const auto* a = std::get_if<FenceMember>(&action)) {
    tell_(entry.name, *a);
  } else if (const auto* a = std::get_if<EpochActivated>(&action)) {
    metrics::Set(metrics::Id::kGroupMembers, static_cast<double>(a->view.members.size()),
                 entry.name);
    if (a->known) return tell_(entry.name, *a);  // The rest was told by the one before.
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
    entry.planned = a->planned;
    tell_(entry.name, *a);
    // Off the recovery path: members and addresses of the epoch, for whoever looks into the store.
    EpochAddresses addresses{a->view, entry.coordinator->members()};
    (void)store_lane_->Post(
        [this, key = Key(KeysOf(entry.options), "epoch/" + std::to_string(a->view.epoch)),
         bytes = wire::Encode(kAddressesType, addresses)] {
          (void)store_->Put(key, bytes, kEpochKeyTtl);
        });
  } else if (const auto* a = std::get_if<GroupStalled>(&action)) {
    metrics::Add(metrics::Id::kGroupStalls, 1, a->removed ? "yes" : "no");
    if (trace::On()) trace::Instant("stall", {{"operation", a->operation}});
    tell_(entry.name, *a);
  } else if (const auto* a = std::get_if<GroupUnreachable>(&action)) {
    LogWarning("group ", entry.name, ": ", a->reason);
    tell_(entry.name, *a);
  } else if (const auto* a = std::get_if<GroupParked>(&action)) {
    tell_(entry.name, *a);
  } else if (const auto* a = std::get_if<GroupFailed>(&action)) {
    tell_(entry.name, *a);
  } else if (std::holds_alternative<GroupEnded>(action)) {
    tell_(entry.name, GroupEnded{});
  } else if (std::holds_alternative<Deposed>(action)) {
    scope_.Post([this, group = entry.name] { Reopen(group); });
  }
}

void GroupService::Persist(Entry& entry, const PersistRecord& request) {
  const std::string group = entry.name;
  const std::string keys = KeysOf(entry.options);
  (void)store_lane_->Post([this, group, keys, raw = entry.raw, request, back = scope_.back()] {
    const trace::Span span("persist epoch");
    const std::string key = Key(keys, "record");
    std::optional<std::string> held = wire::Encode(kRecordType, request.record);
    const Status status = store_->CompareAndSet(key, raw, *held, key_ttl_);
    StoreAnswered answer{request.request, status.ok() ? ErrorCode::kOk : status.error().code, {}};
    if (answer.code == ErrorCode::kConflict) {
      Result<std::optional<std::string>> actual = store_->Get(key);
      if (!actual.ok()) {
        answer.code = actual.error().code;
      } else {
        held = std::move(*actual);
        answer.actual = DecodeOrKeepAside(keys, held);
      }
    }
    back.Post([this, group, answer = std::move(answer), held = std::move(held)] {
      const bool known = answer.code == ErrorCode::kOk || answer.code == ErrorCode::kConflict;
      if (const auto it = groups_.find(group); known && it != groups_.end()) it->second->raw = held;
      Feed(group, answer);
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
  tell_(entry.name, EpochSettled{view, microseconds(longest)});
}

void GroupService::Arm(Entry& entry) {
  loop_->Cancel(entry.timer);
  const Time next = entry.coordinator->NextDeadline();
  entry.due = next == Time::Never() ? next : std::max(next, loop_->Now() + microseconds(500));
  if (next == Time::Never()) return;
  entry.timer = loop_->CallAt(entry.due, [this, group = entry.name] { Feed(group, Tick{}); });
}

}  // namespace troupe::groups
