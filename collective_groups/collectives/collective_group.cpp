#include "collective_groups/collectives/collective_group.h"

#include <algorithm>
#include <utility>

#include "collective_groups/collectives/collectives.h"
#include "runtime/thread.h"

namespace troupe::groups {
namespace {

constexpr Duration kSlice = seconds(1);  // Of waits that are ended otherwise.
// From giving a collective up to the moment when nothing of it touches its buffers any more.
constexpr Duration kAbortLimit = seconds(30);

// What a collective that has begun may end with because the members change.
bool EndsEpoch(ErrorCode code) {
  return code == ErrorCode::kPeerGone || code == ErrorCode::kCorrupt || code == ErrorCode::kFenced;
}

std::string Actors(const View& view) {
  std::string text;
  for (const ViewMember& m : view.members) text += (text.empty() ? "" : ", ") + m.id.actor;
  return text;
}

}  // namespace

CollectiveGroup::CollectiveGroup(CollectiveGroupOptions options, EventLoop* loop,
                                 std::unique_ptr<Communicator> communicator,
                                 GroupAgent::SendReportFn send)
    : options_(std::move(options)),
      agent_(options_.member, loop, std::move(communicator), std::move(send)),
      past_(options_.past),
      keeper_([this] {
        NameThisThread("group-keeper");
        KeepMembership();
      }) {}

CollectiveGroup::~CollectiveGroup() {
  Close();
  keeper_.join();
}

void CollectiveGroup::Close() {
  {
    std::lock_guard lock(mu_);
    closed_ = true;
    active_ = false;
    if (over_.ok()) over_ = Error{ErrorCode::kCancelled, "this actor has left the group"};
  }
  changed_.notify_all();
  agent_.Stop();
}

Status CollectiveGroup::over() const {
  std::lock_guard lock(mu_);
  return over_;
}

bool CollectiveGroup::told_over() const {
  std::lock_guard lock(mu_);
  return told_over_;
}

bool CollectiveGroup::put_aside() const {
  std::lock_guard lock(mu_);
  return !over_.ok() && over_.error().code == ErrorCode::kFenced;
}

CollectivePast CollectiveGroup::past() const {
  std::lock_guard lock(mu_);
  return past_;
}

ActiveView CollectiveGroup::known() const {
  std::lock_guard lock(mu_);
  return past_.known;
}

// ---- membership ----

void CollectiveGroup::KeepMembership() {
  const auto closed = [this] {
    std::lock_guard lock(mu_);
    return closed_;
  };
  while (!closed()) {
    {
      std::unique_lock lock(mu_);
      const uint64_t begun = past_.begun;
      lock.unlock();
      agent_.Ready(begun, !options_.elastic);
    }
    Result<ActiveView> next = agent_.WaitActive(kSlice);
    while (!next.ok() && next.error().code == ErrorCode::kDeadlineExceeded && !closed())
      next = agent_.WaitActive(kSlice);
    {
      std::lock_guard lock(mu_);
      if (next.ok()) {
        Enter(std::move(*next));
      } else if (over_.ok()) {
        over_ = next.error();
      }
      changed_.notify_all();
      if (!over_.ok()) return;
    }
    StayUntilLeft();
  }
}

// An actor that does nothing is at every boundary at once: it passes the one at which all are to
// leave, or a joiner would wait until each of them has called the next collective.
void CollectiveGroup::StayUntilLeft() {
  std::unique_lock lock(mu_);
  while (!closed_) {
    lock.unlock();
    const GroupAgent::Turn turn = agent_.WaitTurn(kSlice);
    lock.lock();
    if (turn == GroupAgent::Turn::kLeft) break;
    if (turn != GroupAgent::Turn::kPlanned) continue;
    if (in_flight_ || passed_) {
      changed_.wait_for(lock, kSlice);
      continue;
    }
    in_flight_ = true;
    lock.unlock();
    const Result<bool> stop = agent_.Boundary();
    lock.lock();
    in_flight_ = false;
    passed_ = stop.ok() && !*stop;
    changed_.notify_all();
  }
  active_ = false;
  changed_.wait(lock, [this] { return !in_flight_ || closed_; });
  passed_ = false;
}

// Members tell how far they are when they leave an epoch; each view holds it of all.
void CollectiveGroup::Enter(ActiveView view) {
  view_ = std::move(view);
  active_ = true;
  if (options_.elastic) return;
  uint64_t most = 0;
  for (const ViewMember& m : view_.view.members) most = std::max(most, m.version);
  if (std::exchange(past_.fresh, false)) past_.begun = most;
  owed_ = most - std::min(most, past_.begun);
}

// The callers go on in view_. Whether they may: see GM-15.
Status CollectiveGroup::See() {
  if (!options_.elastic) {
    past_.known = view_;
    if (owed_ == 0) return Status::Ok();
    --owed_;
    ++past_.begun;
    return Error{ErrorCode::kEpochChanged,
                 "it was cut short for another member, because the members changed (" +
                     view_.view.reason + ")"};
  }
  const Epoch before = past_.known.view.epoch;
  if (view_.view.epoch == before) return Status::Ok();
  const bool known = before == 0 || past_.told;
  past_.known = view_;
  past_.told = false;
  if (known) return Status::Ok();
  return Error{ErrorCode::kEpochChanged, "its members have changed (" + view_.view.reason +
                                             "): now " + std::to_string(view_.topology.size) +
                                             ", " + Actors(view_.view) + "; this actor is rank " +
                                             std::to_string(view_.topology.rank)};
}

Result<ActiveView> CollectiveGroup::Await(std::unique_lock<std::mutex>& lock, Time deadline,
                                          bool idle) {
  while ((!active_ || (idle && in_flight_)) && over_.ok()) {
    const Duration left = deadline - clock_.Now();
    if (left <= Duration::zero()) {
      lock.unlock();
      const std::string who = options_.explain ? options_.explain() : std::string();
      lock.lock();
      return Error{ErrorCode::kDeadlineExceeded,
                   "it is not complete" + (who.empty() ? "" : ": " + who)};
    }
    changed_.wait_for(lock, std::min(left, kSlice));
  }
  if (over_.ok()) return view_;
  told_over_ = true;
  return over_.error();
}

Result<ActiveView> CollectiveGroup::Join(Duration limit) {
  std::unique_lock lock(mu_);
  Result<ActiveView> view = Await(lock, clock_.Now() + limit, false);
  if (!view.ok()) return Named(view.error());
  past_.known = *view;
  past_.told = false;
  return view;
}

Error CollectiveGroup::Named(const Error& error) const {
  return error.WithContext("collective group \"" + options_.name + "\"");
}

// ---- collectives ----

// Long because it is one story: wait for the turn, for the view, for the collective.
// NOLINTNEXTLINE(readability-function-size)
Status CollectiveGroup::Run(const std::string& what, Duration limit, bool everyone,
                            const Issue& issue) {
  const Time deadline = clock_.Now() + limit;
  const auto left = [&] { return std::max(deadline - clock_.Now(), Duration::zero()); };
  std::unique_lock lock(mu_);
  if (!changed_.wait_for(lock, left(), [this] { return !in_use_ || closed_; })) {
    return Named(Error{ErrorCode::kDeadlineExceeded,
                       what + ": another collective of this actor in this group still runs"});
  }
  in_use_ = true;
  const auto done = [&](const Status& status) {
    in_use_ = in_flight_ = false;
    changed_.notify_all();
    return status.ok() ? status : Status(Named(status.error()));
  };
  ActiveView view;
  for (;;) {
    Result<ActiveView> next = Await(lock, deadline, true);
    if (!next.ok()) return done(next.error());
    if (Status s = See(); !s.ok()) return done(s.error());
    view = std::move(*next);
    in_flight_ = true;
    if (!everyone || std::exchange(passed_, false)) break;
    lock.unlock();
    const Result<bool> stop = agent_.Boundary();
    lock.lock();
    if (!stop.ok()) return done(stop.error());
    if (!*stop) break;
    active_ = in_flight_ = false;  // The keeper goes on to the next view.
    changed_.notify_all();
  }
  if (everyone) ++past_.begun;
  lock.unlock();
  Status status;
  bool refused = false;
  if (const Result<GroupAgent::Handle> handle = issue(view); handle.ok()) {
    Result<uint64_t> value = agent_.Wait(*handle, left());
    if (!value.ok() && value.error().code == ErrorCode::kDeadlineExceeded) {
      const std::string why = options_.member.id.actor + " has waited in vain for " + what;
      agent_.GiveUp(why);
      value = agent_.Wait(*handle, kAbortLimit);
      if (value.ok() || value.error().code != ErrorCode::kMismatch) {
        value = Error{ErrorCode::kDeadlineExceeded,
                      what +
                          " has not ended in time: not every member that it needs has called "
                          "it; the call was given up"};
      }
    }
    if (!value.ok()) status = value.error();
  } else {
    status = handle.error();
    refused = true;
  }
  const bool over = agent_.WaitTurn(Duration::zero()) == GroupAgent::Turn::kLeft;
  const Status out = agent_.out();
  lock.lock();
  // There is no next epoch for this member to come to. One that was fenced comes back.
  if (!status.ok() && !out.ok() && out.error().code != ErrorCode::kFenced) {
    status = out.error();
    told_over_ = true;
  }
  if (everyone && refused) --past_.begun;
  // Nothing has begun: the next collective is the one that this boundary is before.
  if (everyone) passed_ = refused;
  if (!status.ok() && !refused && EndsEpoch(status.error().code))
    status = Error{ErrorCode::kEpochChanged, status.error().message};
  // The epoch is over, or about to be.
  past_.told = !status.ok() && (over || status.error().code == ErrorCode::kEpochChanged);
  return done(status);
}

Status CollectiveGroup::CheckRank(int rank, const ActiveView& view) const {
  if (rank >= 0 && rank < view.topology.size) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) + " is not in 0.." +
                                                std::to_string(view.topology.size - 1)};
}

namespace {

GroupAgent::Call CallOf(const std::string& what, const Device& device) {
  GroupAgent::Call call;
  call.text = what;
  call.device = device;
  return call;
}

}  // namespace

Status CollectiveGroup::AllReduce(const std::string& what, Duration limit,
                                  std::vector<ConstBuffer> in, std::vector<MutableBuffer> out,
                                  const ReduceArguments& arguments, const Device& device) {
  return Run(what, limit, true, [&](const ActiveView&) -> Result<GroupAgent::Handle> {
    return agent_.AllReduce(CallOf(what, device), std::move(in), std::move(out), arguments);
  });
}

Status CollectiveGroup::Reduce(const std::string& what, Duration limit, ConstBuffer in,
                               MutableBuffer out, int root, const ReduceArguments& arguments,
                               const Device& device) {
  return Run(what, limit, true, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    if (Status s = CheckRank(root, view); !s.ok()) return s.error();
    std::vector<MutableBuffer> wanted;
    if (view.topology.rank == root) wanted.push_back(out);
    return agent_.AllReduce(CallOf(what, device), {in}, std::move(wanted), arguments);
  });
}

Status CollectiveGroup::Broadcast(const std::string& what, Duration limit, MutableBuffer data,
                                  int root, const Device& device) {
  return Run(what, limit, true, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    if (Status s = CheckRank(root, view); !s.ok()) return s.error();
    return agent_.Broadcast(CallOf(what, device), data.data, data.bytes, root);
  });
}

Status CollectiveGroup::AllGather(const std::string& what, Duration limit, ConstBuffer in,
                                  MutableBuffer out, const Device& device) {
  return Run(what, limit, true, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    const auto size = static_cast<size_t>(view.topology.size);
    if (out.bytes != in.bytes * size) {
      return Error{ErrorCode::kInvalidArgument, what + ": room for " + std::to_string(out.bytes) +
                                                    " bytes, but " + std::to_string(size) +
                                                    " members give " + std::to_string(in.bytes) +
                                                    " each"};
    }
    return agent_.AllGather(CallOf(what, device), in.data, out.data,
                            std::vector<size_t>(size, in.bytes));
  });
}

Status CollectiveGroup::ReduceScatter(const std::string& what, Duration limit, ConstBuffer in,
                                      MutableBuffer out, const ReduceArguments& arguments,
                                      const Device& device) {
  return Run(what, limit, true, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    const auto size = static_cast<size_t>(view.topology.size);
    if (in.bytes != out.bytes * size) {
      return Error{ErrorCode::kInvalidArgument, what + ": " + std::to_string(in.bytes) +
                                                    " bytes are not a block of " +
                                                    std::to_string(out.bytes) + " for each of " +
                                                    std::to_string(size) + " members"};
    }
    return agent_.ReduceScatter(CallOf(what, device), in.data, out.data,
                                std::vector<size_t>(size, arguments.count), arguments);
  });
}

Status CollectiveGroup::Barrier(const std::string& what, Duration limit) {
  return Run(what, limit, true, [&](const ActiveView&) -> Result<GroupAgent::Handle> {
    return agent_.Barrier(CallOf(what, {}));
  });
}

Status CollectiveGroup::Send(const std::string& what, Duration limit, ConstBuffer data, int to,
                             const Device& device) {
  return Run(what, limit, false, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    if (Status s = CheckRank(to, view); !s.ok()) return s.error();
    return agent_.Send(CallOf(what, device), data.data, data.bytes, to);
  });
}

Status CollectiveGroup::Receive(const std::string& what, Duration limit, MutableBuffer data,
                                int from, const Device& device) {
  return Run(what, limit, false, [&](const ActiveView& view) -> Result<GroupAgent::Handle> {
    if (Status s = CheckRank(from, view); !s.ok()) return s.error();
    return agent_.Receive(CallOf(what, device), data.data, data.bytes, from);
  });
}

}  // namespace troupe::groups
