// CollectiveGroups: the collective groups of actors: who may be in which, and which of an actor's
// lives is a member. Their epochs are the business of groups::GroupService.
//
// A membership is one stay of one life of an actor in a group, and has a number that is given once:
// an actor that joins again, because it was restarted or had been silent for too long, is another
// member to its peers.
// Thread: the head's loop.
// Owns: nothing; records are in the store, coordinators with the group service.
// Invariants:
//   CG-1 of one actor at most one membership in a group is alive; none has the number of another,
//        also not in an earlier group of the same name.
//   CG-2 a request that is repeated has its effect once.
//   CG-3 what was answered is in the store, unless that was away.
//   CG-4 a fixed group has each rank at most once, and ends when the actor of one is dead for good.
//   CG-5 of one group all members train, in a loop that takes them from epoch to epoch, or none.
//   CG-6 epochs of one life of a group only grow: what is kept of them goes behind its record.
// Limits: kCollectiveGroupsMax groups of kCollectiveMembersMax members.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "actors/core/directory.h"
#include "collective_groups/membership/coordinators.h"
#include "daemons/head/core/head_queue.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kCollectiveGroupsMax = 10'000;
inline constexpr const char* kCollectiveRecords = "collective/";
inline constexpr Duration kEndedGroupKept = seconds(300);  // Why it has ended, for its members.

// What is durable of a group.
struct CollectiveRecord {
  struct Seat {
    std::string actor;  // Empty: free.
    uint64_t incarnation = 0;
    uint64_t number = 0;    // 0: not joined.
    std::string process;    // Where its commands go.
    std::string request;    // That made it a member.
    std::string leaving;    // Why it is to leave; empty: it is not.
    std::string dismissed;  // Why it may not join for a while; empty: it may.
    template <class A>
    void Fields(A& a) {
      a(actor, incarnation, number, process, request, leaving, dismissed);
    }
  };
  actors::CollectiveSpec spec;
  std::vector<Seat> seats;
  uint64_t joins = 0;  // The number of the last membership.
  uint64_t life = 0;   // Tells the group from all others of its name.
  bool stays = false;  // It is there as long as the group of actors that has its name.
  // Its epochs are kept under keys of this life. Older releases had one place for all lives.
  bool own_keys = false;
  template <class A>
  void Fields(A& a) {
    a(spec, seats, joins, life, stays, own_keys);
  }
};

class CollectiveGroups {
 public:
  // `new_id`: hexadecimal digits that nothing else has.
  CollectiveGroups(HeadQueue* queue, const actors::Directory* directory,
                   const groups::Coordinators* coordinators, std::function<std::string()> new_id)
      : queue_(queue),
        directory_(directory),
        coordinators_(coordinators),
        new_id_(std::move(new_id)) {}
  // From the store, after the actors.
  void Restore(const std::map<std::string, std::string>& records);
  // Whether there is a group whose epochs are named by these keys, or may be.
  [[nodiscard]] bool HasEpochs(const std::string& keys) const;

  void OnRequest(const std::string& from, const actors::CollectiveRequest& request);
  // A report of a member of `group`, as GroupService names it; false: it is none of these.
  bool OnReport(const std::string& from, const std::string& group, const groups::Report& report);
  // What the coordinator of a group that OnReport would take has to tell.
  void OnNotice(const std::string& group, const groups::GroupNotice& notice);
  // Something has changed about the actor.
  void OnActor(const std::string& actor);
  void OwnerGone(const std::string& owner);
  // The elastic group of a group of actors is to have these members, and ends with them: none.
  void SetMembers(const step::SetGroupMembers& members);
  // A member leaves it at the next boundary of all, and does not come back.
  void Drain(const std::string& name, const std::string& actor, const std::string& reason);
  // These members are out of it at once, until all are taken in again.
  void Dismiss(const std::string& name, const std::vector<std::string>& actors,
               const std::string& reason);
  void Readmit(const std::string& name);
  // The store is empty. A group whose epochs nobody knows any more begins another life.
  void OnStoreLost();
  [[nodiscard]] bool Has(const std::string& name) const { return groups_.contains(name); }
  [[nodiscard]] bool HasMember(const std::string& actor) const { return of_actor_.contains(actor); }
  void OnTick();
  void RefreshKeys();
  [[nodiscard]] std::vector<actors::CollectiveStatus> List() const;

 private:
  using Record = CollectiveRecord;

  [[nodiscard]] Result<uint64_t> Join(const std::string& from,
                                      const actors::CollectiveRequest& request);
  [[nodiscard]] Result<Record::Seat*> SeatFor(Record& record,
                                              const actors::CollectiveRequest& request);
  [[nodiscard]] Status Create(const actors::CollectiveSpec& spec);
  [[nodiscard]] Status CheckSpec(const actors::CollectiveSpec& spec) const;
  void Leave(const actors::CollectiveRequest& request);
  // The membership of the seat is over.
  void End(Record& record, Record::Seat& seat, const std::string& reason);
  void Remove(const std::string& name, const std::string& reason);
  void Open(const Record& record);
  void BeginAgain(Record& record);
  void BeginLife(Record& record) const;
  // What names its epochs in the store.
  [[nodiscard]] static std::string EpochsOf(const Record& record);
  void TellOrder(const Record& record);
  [[nodiscard]] Status Agree(Record& record, const actors::CollectiveRequest& request);
  void BeginTraining(const Record& record);
  void OnCommand(const std::string& name, const groups::SendCommand& send);
  void OnFenced(const std::string& name, const groups::MemberId& id);
  // Something that the coordinator of the group of this name is to know.
  void Tell(const std::string& name, groups::CoordinatorEvent event);
  [[nodiscard]] uint64_t FirstNumber() const;
  void Keep(const std::string& name);
  // Of the membership of this number; a later one of the same process is not meant.
  void Expel(const std::string& process, const std::string& group, uint64_t number,
             const std::string& reason, bool for_good = false);
  [[nodiscard]] std::string Describe(const Record& record, const Record::Seat& seat) const;
  [[nodiscard]] actors::CollectiveStatus StatusOf(const Record& record) const;
  [[nodiscard]] Error NoGroup(const std::string& name) const;

  HeadQueue* const queue_;
  const actors::Directory* const directory_;
  const groups::Coordinators* const coordinators_;
  const std::function<std::string()> new_id_;
  std::map<std::string, Record> groups_;
  std::set<std::string> unreadable_;                           // Names of those whose records are.
  std::map<std::string, std::set<std::string>> of_actor_;      // Names of groups.
  std::map<std::string, std::pair<std::string, Time>> ended_;  // Why, and when.
};

}  // namespace troupe::daemons
