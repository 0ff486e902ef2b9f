// ActorGroups: the groups of actors of a cluster, as a pure state machine: how many members each is
// to have, who leaves when it shrinks, who takes the place of those that were drained.
//
//   Create --> members are wanted --alive--> ... --died--> restarting --alive--> ...
//                                               --drain--> draining --> left; another is wanted
//                                               --ended for good--> lost
//
// A member is an actor. One that dies is started again by the directory, as the same member; who is
// drained is followed at once by another actor with another number, unless the group has become
// smaller. The workers of a training run are such a group; what is special about them is
// ActorGroupSpec::of_run, and what only the run knows: who has finished, who has left by itself,
// and that for now nobody is to join.
// Thread: one. Reads no clock.
// Invariants: AG-1 a group has at most max_size members that are not draining, and no two with one
// number, ever. AG-2 asking twice for the same is asking once. AG-3 every actor of a group is a
// member of exactly one, or is being ended. AG-4 a group with fewer than min_size members left, or
// with fewer than min_size alive for its limit, ends with a reason; that of a run is filled again.
// AG-5 a member that is to leave has left by its deadline, if it has one. AG-7 no life of a member
// begins that is to leave or has finished, nor of any while the group is closed.
// Limits: kActorGroupsMax groups of kGroupMembersMax members; kGroupEventsKept events of each; the
// ended are forgotten after kDeadKept.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/core/directory.h"
#include "daemons/head/core/actor_group.h"
#include "daemons/head/core/actor_group_actions.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kActorGroupsMax = 10'000;
inline constexpr size_t kGroupEventsKept = 1'000;
inline constexpr Duration kAskAgain = seconds(1);
inline constexpr Duration kReturnGrace = seconds(5);
inline constexpr Duration kDrainLimit = seconds(30);  // Where nobody has said another one.
inline constexpr Duration kNoDrainLimit = Duration::max();

class ActorGroups {
 public:
  // `first`: the number of its first member.
  [[nodiscard]] Status Create(Time now, const actors::ActorGroupSpec& spec,
                              ActorGroupActions& actions, uint32_t first = 0);
  // From the store; members that the directory does not know are then started, or told dead.
  void Restore(Time now, ActorGroupRecord record, ActorGroupActions& actions);
  // Who has to leave for it does so for `reason` within `limit`.
  [[nodiscard]] Status Resize(Time now, const std::string& group, uint32_t size,
                              const std::string& reason, Duration limit,
                              ActorGroupActions& actions);
  [[nodiscard]] Status Drain(Time now, const std::string& group, uint32_t member,
                             const std::string& reason, Duration limit, ActorGroupActions& actions);
  // Likewise, and nobody follows it: the group becomes smaller by one.
  [[nodiscard]] Status Shrink(Time now, const std::string& group, uint32_t member,
                              const std::string& reason, Duration limit,
                              ActorGroupActions& actions);
  // The directory does not know the actor of a member: what it was is not known either.
  void Missing(Time now, const std::string& actor, ActorGroupActions& actions);
  // Of a run's. The member has done what it was to do; it stays one. It has left, and its process
  // may take its time. While the group is closed nobody joins it, and room is not asked for.
  void Finished(const std::string& actor, ActorGroupActions& actions);
  void Left(const std::string& actor, const std::string& reason, ActorGroupActions& actions);
  void SetClosed(const std::string& group, bool closed, ActorGroupActions& actions);
  // A method is called of all members; one has returned from it. A collective of all cannot come
  // about any more then, so who has not returned kReturnGrace later is told so.
  void RunBegins(const std::string& group, ActorGroupActions& actions);
  void Returned(Time now, const std::string& group, uint32_t member);
  // Ending it again is no error.
  void End(Time now, const std::string& group, const std::string& reason,
           ActorGroupActions& actions);
  void OwnerGone(Time now, const std::string& owner, ActorGroupActions& actions);
  // What the directory says of an actor; of one that is no member nothing happens.
  void OnActor(Time now, const actors::ActorLocation& actor, ActorGroupActions& actions);
  void Tick(Time now, ActorGroupActions& actions);

  // Its id, by name or id. Empty: there is none.
  [[nodiscard]] std::string Find(const std::string& name) const;
  // With the events after `since`. Also of one that has ended lately. kNotFound.
  [[nodiscard]] Result<ActorGroupStatus> StatusOf(const std::string& group, uint64_t since) const;
  // Nothing if it has ended.
  [[nodiscard]] std::optional<ActorGroupRecord> RecordOf(const std::string& group) const;
  // Of all of its members.
  [[nodiscard]] std::vector<actors::ActorSpec> SpecsOf(const std::string& group) const;
  // Those of its members that wait for a place, by number.
  [[nodiscard]] std::vector<std::string> WaitingIn(const std::string& group) const;
  [[nodiscard]] std::optional<GroupMembership> MembershipOf(const std::string& group) const;
  // The group and the number of an actor's member.
  [[nodiscard]] std::optional<std::pair<std::string, uint32_t>> MemberOf(
      const std::string& actor) const;
  // Whether the actor is a member that is not to leave.
  [[nodiscard]] bool Stays(const std::string& actor) const;
  [[nodiscard]] std::vector<std::string> groups() const;

 private:
  using Group = ActorGroup;
  using Member = ActorGroup::Member;

  [[nodiscard]] Status Check(const actors::ActorGroupSpec& spec) const;
  [[nodiscard]] Result<Group*> Living(const std::string& group);
  void Note(Group& group, GroupEventKind kind, int32_t member, const std::string& detail,
            ActorGroupActions& actions);
  void Add(Group& group, uint32_t count, size_t at_least, ActorGroupActions& actions);
  void Fill(Group& group, ActorGroupActions& actions);
  // Of the actor's member; null: it is none.
  [[nodiscard]] std::pair<Group*, Member*> Lookup(const std::string& actor);
  static void Dismiss(Group& group, ActorGroupActions& actions);
  void StartDraining(Time now, Group& group, Member& member, const std::string& reason,
                     Duration limit, ActorGroupActions& actions);
  static void SetLimit(Time now, Member& member, Duration limit);
  void AskToLeave(Time now, const Group& group, Member& member, ActorGroupActions& actions);
  void Remove(Time now, Group& group, uint32_t number, const std::string& reason,
              ActorGroupActions& actions);
  void CheckSize(Time now, Group& group, const std::string& why, ActorGroupActions& actions);
  [[nodiscard]] static actors::ActorSpec SpecOf(const Group& group, const Member& member);
  [[nodiscard]] static uint32_t Staying(const Group& group);
  [[nodiscard]] static uint32_t Alive(const Group& group);

  std::map<std::string, Group> groups_;
  std::map<std::string, std::string> names_;                         // Of the living.
  std::map<std::string, std::pair<std::string, uint32_t>> members_;  // By actor.
  uint64_t lives_ = 0;
};

}  // namespace troupe::daemons
