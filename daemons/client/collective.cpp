#include <troupe/collectives.h>

#include <functional>
#include <optional>
#include <utility>

#include "daemons/client/process_groups.h"
#include "runtime/blocking_lane.h"
#include "runtime/executor.h"

namespace troupe {
namespace {

constexpr Duration kCollectiveAskLimit = seconds(30);
// Longer than any collective: its own deadline ends it before.
constexpr Duration kCollectiveLimit = std::chrono::hours(24 * 365);

std::string Described(const std::string& what, DataType type, size_t count) {
  return what + " " + std::string(groups::DataTypeName(type)) + "[" + std::to_string(count) + "]";
}

std::string OpName(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "min", "max", "product"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace

// The lane carries what blocks, so that a method's fiber is only suspended.
struct CollectiveGroup::State {
  std::string name;
  daemons::ProcessGroups::Wanted wanted;
  Duration limit;
  std::shared_ptr<daemons::ProcessGroups> groups;
  BlockingLane lane{"collective"};

  template <class T>
  T OnLane(std::function<T()> work) {
    std::optional<T> result;
    FiberEvent done;
    const Status posted = lane.Post([&result, done, work = std::move(work)]() mutable {
      result.emplace(work());
      done.Set();
    });
    if (!posted.ok()) return posted.error();
    (void)done.WaitFor(kCollectiveLimit);
    return std::move(*result);
  }
  // A membership that is over is replaced by a new one. What had not begun when the head took this
  // member for dead is called in the membership that follows.
  Status Run(const std::function<Status(groups::CollectiveGroup& group)>& collective) {
    return OnLane<Status>([&]() -> Status {
      for (;;) {
        const auto group = groups->Enter(name, wanted, kCollectiveAskLimit);
        if (!group.ok()) return group.error();
        if (Status s = collective(**group);
            s.ok() || s.error().code != ErrorCode::kFenced || !(*group)->put_aside())
          return s;
      }
    });
  }
};

Result<CollectiveGroup> CollectiveGroup::Enter(const std::string& name,
                                               const CollectiveOptions& options) {
  auto state = std::make_shared<State>();
  state->name = name;
  state->wanted = {options.size, options.elastic, options.min_size,
                   options.elastic ? -1 : options.rank};
  state->limit = options.limit;
  state->groups = daemons::ProcessGroups::Here();
  if (!state->groups) {
    return Error{ErrorCode::kInvalidArgument,
                 "only actors are members of collective groups; call this in a method of one"};
  }
  const Status entered = state->Run([](groups::CollectiveGroup&) { return Status::Ok(); });
  if (!entered.ok()) return entered.error();
  return CollectiveGroup(std::move(state));
}

Result<CollectiveView> CollectiveGroup::View(Duration limit) const {
  CollectiveView view;
  const Status joined = state_->Run([&](groups::CollectiveGroup& group) -> Status {
    const Result<groups::ActiveView> active = group.Join(limit);
    if (!active.ok()) return active.error();
    view = {active->view.epoch, active->topology.rank, active->topology.size, {}};
    for (const groups::ViewMember& m : active->view.members) view.members.push_back(m.id.actor);
    return Status::Ok();
  });
  if (!joined.ok()) return joined.error();
  return view;
}

Status CollectiveGroup::AllReduceBytes(groups::MutableBuffer data, size_t count, DataType type,
                                       ReduceOp op) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    groups::ReduceArguments arguments;
    arguments.elements = {type, op};
    arguments.count = count;
    return group.AllReduce(Described("allreduce", type, count) + " " + OpName(op), state_->limit,
                           {{data.data, data.bytes}}, {data}, arguments);
  });
}

Status CollectiveGroup::ReduceBytes(groups::MutableBuffer data, size_t count, DataType type,
                                    ReduceOp op, int root) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    groups::ReduceArguments arguments;
    arguments.elements = {type, op};
    arguments.count = count;
    return group.Reduce(
        Described("reduce", type, count) + " " + OpName(op) + " to " + std::to_string(root),
        state_->limit, {data.data, data.bytes}, data, root, arguments);
  });
}

Status CollectiveGroup::BroadcastBytes(groups::MutableBuffer data, const std::string& what,
                                       int root) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    return group.Broadcast("broadcast " + what + " from " + std::to_string(root), state_->limit,
                           data, root);
  });
}

Status CollectiveGroup::AllGatherBytes(groups::ConstBuffer in, groups::MutableBuffer out,
                                       const std::string& what) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    return group.AllGather("allgather " + what, state_->limit, in, out);
  });
}

Status CollectiveGroup::ReduceScatterBytes(groups::ConstBuffer in, groups::MutableBuffer out,
                                           size_t count, DataType type, ReduceOp op) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    groups::ReduceArguments arguments;
    arguments.elements = {type, op};
    arguments.count = count;
    return group.ReduceScatter(Described("reducescatter", type, count) + " " + OpName(op),
                               state_->limit, in, out, arguments);
  });
}

Status CollectiveGroup::SendBytes(groups::ConstBuffer data, const std::string& what, int to) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    return group.Send("send " + what, state_->limit, data, to);
  });
}

Status CollectiveGroup::ReceiveBytes(groups::MutableBuffer data, const std::string& what,
                                     int from) const {
  return state_->Run([&](groups::CollectiveGroup& group) {
    return group.Receive("send " + what, state_->limit, data, from);
  });
}

Status CollectiveGroup::Barrier() const {
  return state_->Run(
      [&](groups::CollectiveGroup& group) { return group.Barrier("barrier", state_->limit); });
}

Status CollectiveGroup::Leave() const {
  return state_->OnLane<Status>(
      [&] { return state_->groups->Leave(state_->name, kCollectiveAskLimit); });
}

}  // namespace troupe
