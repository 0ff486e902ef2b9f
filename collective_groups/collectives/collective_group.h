// CollectiveGroup: a group as the methods of an actor use it: one blocking call per collective.
//
// An actor computes, answers calls and sleeps between its collectives, and must not hold up the
// others then. So a thread of its own takes the member from epoch to epoch, whenever no collective
// of it runs; a collective of the whole group is also a step boundary (see GroupAgent), so that
// joiners come in between two of them.
// Thread: any; collectives of one group run one after the other, in the same order on all members.
// Owns: the agent, the thread.
// Invariants: GM-15 all members fail alike. In a fixed group a collective that was cut short for a
// member fails for each, once: who had not begun it yet is told so when it does; what nobody had
// begun is not disturbed. In an elastic one each member that stays gets exactly one error when the
// members change, of the collective that was cut short or of the next one, unless it asks for the
// new view first: all have to come to the point where those that are new begin. A member that was
// declared dead and is not fails in the same way: its next membership knows what its callers have
// seen.
// Limits: one collective at a time; every call has a deadline. A collective that misses it ends the
// epoch for all members.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collective_groups/membership/group_agent.h"

namespace troupe::groups {

// What the callers of a member have seen of the group.
struct CollectivePast {
  uint64_t life = 0;   // Of the group: another one of the same name has another.
  ActiveView known;    // The one that they know of; epoch 0: none yet.
  bool told = false;   // They have had an error since.
  bool fresh = true;   // The member has not been in any view.
  uint64_t begun = 0;  // Of a fixed group: collectives of everybody that they have begun.
};

struct CollectiveGroupOptions {
  std::string name;  // For errors.
  bool elastic = false;
  CollectivePast past;  // Of the membership that this one follows on, for the same callers.
  MemberOptions member;
  // Whom the group waits for, as a sentence for an error; may take a second. Null: not known.
  std::function<std::string()> explain = nullptr;
};

class CollectiveGroup {
 public:
  // `loop` must outlive the group; `send` as in GroupAgent.
  CollectiveGroup(CollectiveGroupOptions options, EventLoop* loop,
                  std::unique_ptr<Communicator> communicator, GroupAgent::SendReportFn send);
  ~CollectiveGroup();

  void OnCommand(const Command& command) { agent_.OnCommand(command); }
  // Releases every call with kCancelled; idempotent.
  void Close();
  // Why this member is out of the group for good; ok while it is not.
  [[nodiscard]] Status over() const;
  // Whether a caller has been told that.
  [[nodiscard]] bool told_over() const;
  // It was declared dead, and is not: over, with kFenced. No collective has begun that such a call
  // returns kFenced for, so that it can be called in a membership that follows on this one.
  [[nodiscard]] bool put_aside() const;
  [[nodiscard]] CollectivePast past() const;

  // The present view, which the caller knows from now on: waits until there is one.
  // kDeadlineExceeded says who is missing; kDrained and kFenced: see over.
  Result<ActiveView> Join(Duration limit);
  // The view that the caller knows: of its last collective, or newer; epoch 0: none yet.
  [[nodiscard]] ActiveView known() const;

  // ---- collectives ----
  // Of everybody or, with Send and Receive, of two. Errors besides those of Join: kMismatch,
  // kInvalidArgument, and kEpochChanged (GM-15), whose message says who is in the group now.
  // `what` is what the members must agree on: "all-reduce float32[1024] sum".
  Status AllReduce(const std::string& what, Duration limit, std::vector<ConstBuffer> in,
                   std::vector<MutableBuffer> out, const ReduceArguments& arguments,
                   const Device& device = {});
  // The root alone wants the result.
  Status Reduce(const std::string& what, Duration limit, ConstBuffer in, MutableBuffer out,
                int root, const ReduceArguments& arguments, const Device& device = {});
  Status Broadcast(const std::string& what, Duration limit, MutableBuffer data, int root,
                   const Device& device = {});
  // As many bytes of every member.
  Status AllGather(const std::string& what, Duration limit, ConstBuffer in, MutableBuffer out,
                   const Device& device = {});
  // `in` holds a block of arguments.count elements for every member.
  Status ReduceScatter(const std::string& what, Duration limit, ConstBuffer in, MutableBuffer out,
                       const ReduceArguments& arguments, const Device& device = {});
  Status Barrier(const std::string& what, Duration limit);
  Status Send(const std::string& what, Duration limit, ConstBuffer data, int to,
              const Device& device = {});
  Status Receive(const std::string& what, Duration limit, MutableBuffer data, int from,
                 const Device& device = {});
  [[nodiscard]] bool devices() const { return agent_.devices(); }
  Result<Device> Mark(int index, void* stream) { return agent_.Mark(index, stream); }

 private:
  using Issue = std::function<Result<GroupAgent::Handle>(const ActiveView& view)>;

  void KeepMembership();
  void StayUntilLeft();
  Status Run(const std::string& what, Duration limit, bool everyone, const Issue& issue);
  // `idle`: and until no collective is under way.
  Result<ActiveView> Await(std::unique_lock<std::mutex>& lock, Time deadline, bool idle);
  void Enter(ActiveView view);  // With mu_ held.
  [[nodiscard]] Status See();   // With mu_ held.
  [[nodiscard]] Status CheckRank(int rank, const ActiveView& view) const;
  [[nodiscard]] Error Named(const Error& error) const;

  const CollectiveGroupOptions options_;
  const SteadyClock clock_;
  GroupAgent agent_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool closed_ = false;
  Status over_;
  bool told_over_ = false;
  bool active_ = false;  // view_ is one to run collectives in.
  ActiveView view_;
  CollectivePast past_;
  uint64_t owed_ = 0;    // Of a fixed group: collectives of the others that this one has to fail.
  bool in_use_ = false;  // Somebody calls; others wait.
  bool in_flight_ = false;  // A collective may be under way: the epoch must not be left.
  bool passed_ = false;     // The boundary before the next collective has been passed already.

  std::thread keeper_;
};

}  // namespace troupe::groups
