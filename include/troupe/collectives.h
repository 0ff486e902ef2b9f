// Collective groups for actors in C++.
//
//   int Trainer::Step() {                                   // A method of an actor.
//     auto group = troupe::CollectiveGroup::Enter("train", {.size = 4, .rank = rank_}).value();
//     std::vector<float> gradient = ...;
//     troupe::Status summed = group.AllReduce(std::span(gradient));   // In place.
//   }
//
// A fixed group has `size` ranks, and every collective needs all of them; an elastic one goes on
// with the members that it has, the oldest first. When a member dies, each of the others gets
// kEpochChanged exactly once: from the collective that was cut short or, before it begins, from the
// next one. An actor may be in many groups at once.
// Thread: any; a collective suspends the method's fiber. Collectives of one group come in the same
// order on all of its members.
// Owns: nothing; the membership is the actor's, until Leave or its end.
// Limits: every collective has a deadline; missing it ends the collective for all members.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "collective_groups/collectives/collective_group.h"
#include "runtime/result.h"

namespace troupe {

namespace daemons {
class ProcessGroups;
}

using groups::DataType;
using groups::ReduceOp;

struct CollectiveOptions {
  uint32_t size = 0;  // Ranks of a fixed group, most members of an elastic one; 0: the group is
                      // there already, made by another process.
  int32_t rank = -1;  // In a fixed group; -1: the one that it was made with for this actor.
  bool elastic = false;
  uint32_t min_size = 1;          // An elastic group waits below so many members.
  Duration limit = seconds(600);  // Of every collective.
};

struct CollectiveView {
  uint64_t epoch = 0;  // Grows whenever the members change.
  int rank = -1;
  int size = 0;
  std::vector<std::string> members;  // Ids of actors, by rank.
};

class CollectiveGroup {
 public:
  // This actor is a member from now on; does not wait for the others. kInvalidArgument: this is no
  // actor, or the group has another size; kAlreadyExists: the rank is taken; kNotFound.
  static Result<CollectiveGroup> Enter(const std::string& name,
                                       const CollectiveOptions& options = {});

  // Waits until the group is complete. kDeadlineExceeded says who is missing.
  Result<CollectiveView> View(Duration limit) const;

  // In place. kEpochChanged, kMismatch, kDeadlineExceeded; kDrained: the group has ended.
  template <class T>
  Status AllReduce(std::span<T> data, ReduceOp op = ReduceOp::kSum) const {
    return AllReduceBytes(Out(data), data.size(), groups::ElementType<T>(), op);
  }
  // Only the root's data is written.
  template <class T>
  Status Reduce(std::span<T> data, int root, ReduceOp op = ReduceOp::kSum) const {
    return ReduceBytes(Out(data), data.size(), groups::ElementType<T>(), op, root);
  }
  template <class T>
  Status Broadcast(std::span<T> data, int root) const {
    return BroadcastBytes(Out(data), What(data), root);
  }
  // `out` has room for `in` of every member, by rank.
  template <class T>
  Status AllGather(std::span<const T> in, std::span<T> out) const {
    return AllGatherBytes(In(in), Out(out), What(in));
  }
  // `in` holds a block like `out` for every member, by rank.
  template <class T>
  Status ReduceScatter(std::span<const T> in, std::span<T> out,
                       ReduceOp op = ReduceOp::kSum) const {
    return ReduceScatterBytes(In(in), Out(out), out.size(), groups::ElementType<T>(), op);
  }
  // To the member that calls Receive with as many bytes; returns when it has come for them.
  template <class T>
  Status Send(std::span<const T> data, int to) const {
    return SendBytes(In(data), What(data), to);
  }
  template <class T>
  Status Receive(std::span<T> data, int from) const {
    return ReceiveBytes(Out(data), What(data), from);
  }
  Status Barrier() const;
  // This actor is no member any more.
  Status Leave() const;

 private:
  struct State;
  explicit CollectiveGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  template <class T>
  static groups::ConstBuffer In(std::span<const T> data) {
    return {data.data(), data.size_bytes()};
  }
  template <class T>
  static groups::MutableBuffer Out(std::span<T> data) {
    return {data.data(), data.size_bytes()};
  }
  // As Python calls the same: actors of both may be in one group.
  template <class T>
  static std::string What(std::span<T> data) {
    return std::string(groups::DataTypeName(groups::ElementType<std::remove_const_t<T>>())) + "[" +
           std::to_string(data.size()) + "]";
  }
  Status AllReduceBytes(groups::MutableBuffer data, size_t count, DataType type, ReduceOp op) const;
  Status ReduceBytes(groups::MutableBuffer data, size_t count, DataType type, ReduceOp op,
                     int root) const;
  Status BroadcastBytes(groups::MutableBuffer data, const std::string& what, int root) const;
  Status AllGatherBytes(groups::ConstBuffer in, groups::MutableBuffer out,
                        const std::string& what) const;
  Status ReduceScatterBytes(groups::ConstBuffer in, groups::MutableBuffer out, size_t count,
                            DataType type, ReduceOp op) const;
  Status SendBytes(groups::ConstBuffer data, const std::string& what, int to) const;
  Status ReceiveBytes(groups::MutableBuffer data, const std::string& what, int from) const;

  std::shared_ptr<State> state_;
};

}  // namespace troupe
