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

#include "collective_groups/membership/coordinators.h"
#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"

namespace troupe::groups {

inline constexpr Duration kGroupKeyTtl = seconds(24 * 3600);  // Unless refreshed.
inline constexpr Duration kEpochKeyTtl = seconds(600);
inline constexpr Duration kStoreLoadRetry = milliseconds(50);
inline constexpr Duration kReopenDelay =
    seconds(1);  // From a deposed coordinator to its successor.
inline constexpr size_t kEarlyEventsMax = 10'000;

class GroupService final : public Coordinators {
 public:
  // Takes the notice down; it does not call the service.
  using Tell = std::function<void(const std::string& group, const GroupNotice& notice)>;

  GroupService(EventLoop* loop, Lane* store_lane, Store* store, std::string owner, Tell tell,
               Duration key_ttl = kGroupKeyTtl);
  ~GroupService() override;

  // Starts (or, if the store has a record, continues) a group. Reports that arrive before the store
  // answered wait, kEarlyEventsMax of them; after park_timeout without an answer the group fails.
  // When a record of a higher term deposes the coordinator, another one continues the group from
  // that record: the store may only have gone back to what it held before. If another head does
  // own the group, no member speaks to this one, and its group parks.
  void Open(CoordinatorOptions options);
  // Forgets the group. Its keys are for whoever has opened it to delete, when nothing that is
  // durable names the group any more: were they gone before, its epochs could start over.
  void Close(const std::string& group);
  // Keeps the keys of all groups for another lifetime.
  void Refresh();

  // Something that its coordinator is to know.
  void Feed(const std::string& group, const CoordinatorEvent& event);
  [[nodiscard]] const Coordinator* Find(const std::string& group) const override;

 private:
  struct Entry;
  struct Loaded;
  void Load(const std::string& group, Time deadline);
  void OnLoaded(const std::string& group, Time deadline, Loaded loaded);
  void Reopen(const std::string& group);
  void Act(Entry& entry, const CoordinatorAction& action);
  std::optional<EpochRecord> DecodeOrKeepAside(const std::string& keys,
                                               const std::optional<std::string>& raw);
  void Persist(Entry& entry, const PersistRecord& request);
  void CheckSettled(Entry& entry);
  void CountParked() const;
  void Arm(Entry& entry);

  EventLoop* const loop_;
  Lane* const store_lane_;
  Store* const store_;
  const std::string owner_;
  const Tell tell_;
  const Duration key_ttl_;
  std::map<std::string, std::unique_ptr<Entry>> groups_;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::groups
