// GroupService: the shell around the coordinators of all groups on the head.
//
// Turns reports, deaths, store answers and timers into events of each group's Coordinator, and its
// decisions into commands, store writes and notices to the owner of the service.
// Thread: the loop.
// Owns: the coordinators. Store calls go through the given lane.
// Invariants: GM-7 (a record is stored before the coordinator learns that it may speak).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "collective_groups/membership/coordinator.h"
#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/store.h"

namespace troupe::groups {

// Keys of a group: "group/<name>/record", "group/<name>/term", "group/<name>/epoch/<n>" (members
// and link addresses), "group/<name>/unreadable" (a record that could not be decoded, for people).
inline constexpr Duration kGroupKeyTtl = seconds(24 * 3600);  // Unless refreshed.
inline constexpr Duration kEpochKeyTtl = seconds(600);
inline constexpr Duration kStoreLoadRetry = milliseconds(50);
inline constexpr Duration kReopenDelay =
    seconds(1);  // From a deposed coordinator to its successor.
inline constexpr size_t kEarlyEventsMax = 10'000;

struct GroupCallbacks {
  std::function<void(const MemberId& to, const Command& command)> send;
  std::function<void(const MemberId& id, const std::string& reason)> fence;
  std::function<void(const EpochActivated& activated)> activated;
  // Once all members of an active epoch have told their pause: the longest.
  std::function<void(const View& view, Duration pause)> settled;
  std::function<void(const GroupStalled& stalled)> stalled;
  std::function<void(const GroupUnreachable& unreachable)> unreachable;
  std::function<void(const std::string& reason)> parked;
  std::function<void(const std::string& reason)> failed;
  std::function<void()> ended;
};

class GroupService {
 public:
  GroupService(EventLoop* loop, Lane* store_lane, Store* store, std::string owner,
               Duration key_ttl = kGroupKeyTtl);
  ~GroupService();

  // Starts (or, if the store has a record, continues) a group. Reports that arrive before the store
  // answered wait, kEarlyEventsMax of them; after park_timeout without an answer the group fails.
  // When a record of a higher term deposes the coordinator, another one continues the group from
  // that record: the store may only have gone back to what it held before. If another head does
  // own the group, no member speaks to this one, and its group parks.
  void Open(CoordinatorOptions options, GroupCallbacks callbacks);
  // Forgets the group and deletes its keys.
  void Close(const std::string& group);
  // Keeps the keys of all groups for another lifetime.
  void Refresh();

  void OnReport(const std::string& group, const Report& report);
  void OnDeath(const std::string& group, const MemberId& id, const std::string& reason);
  void Drain(const std::string& group, const MemberId& id, const std::string& reason);
  void SetMinimum(const std::string& group, uint32_t min_members);
  void BeginTraining(const std::string& group, const TrainingBegins& training);
  void SetOrder(const std::string& group, std::vector<std::string> order);
  // Null if there is none (yet).
  [[nodiscard]] const Coordinator* Find(const std::string& group) const;

 private:
  struct Entry;
  struct Loaded;
  void Load(const std::string& group, Time deadline);
  void OnLoaded(const std::string& group, Time deadline, Loaded loaded);
  void Reopen(const std::string& group);
  void Feed(const std::string& group, const CoordinatorEvent& event);
  void Act(Entry& entry, const CoordinatorAction& action);
  std::optional<EpochRecord> DecodeOrKeepAside(const std::string& group,
                                               const std::optional<std::string>& raw);
  void Persist(Entry& entry, const PersistRecord& request);
  void CheckSettled(Entry& entry);
  void CountParked() const;
  void Arm(Entry& entry);

  EventLoop* const loop_;
  Lane* const store_lane_;
  Store* const store_;
  const std::string owner_;
  const Duration key_ttl_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<std::string, std::unique_ptr<Entry>> groups_;
};

}  // namespace troupe::groups
