// Training inside a method of a C++ actor.
//
//   troupe::Result<double> Trainer::Train() {
//     return troupe::TrainIn("", [this](groups::GroupAgent& group) -> troupe::Result<double> {
//       troupe::elastic::ElasticState state(&group);
//       ...
//       auto ending = troupe::elastic::RunElastic(group, state, [&] { return Steps(state); });
//       if (!ending.ok()) return ending.error();
//       if (*ending == troupe::elastic::Ending::kDrained) return troupe::Left();
//       return loss_;
//     });
//   }
//
// The group is the elastic collective group of the actor's group of actors, or another one by name.
// The binding lasts from call to call, until LeaveTraining or the end of the actor. One call at a
// time trains.
//
// TrainIn is in Troupe::troupe. What is in troupe::elastic, for modules of LibTorch, needs
// Troupe::training: ElasticState, RunElastic, ElasticSampler, GradientReducer.
// Thread: any; the method's fiber is suspended meanwhile, so that the actor answers other calls if
// its max_concurrency is 2 or more.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>

#include "collective_groups/membership/group_agent.h"
#include "collective_groups/torch/elastic_loop.h"
#include "collective_groups/torch/elastic_sampler.h"
#include "collective_groups/torch/elastic_state.h"
#include "collective_groups/torch/gradient_reducer.h"
#include "runtime/result.h"

namespace troupe {

namespace internal {
// Calls `body` on a thread of its own; what it throws comes out here. See TrainIn for errors.
[[nodiscard]] Status OnTrainingThread(const std::string& group,
                                      const std::function<void(groups::GroupAgent&)>& body);
}  // namespace internal

// Calls `body`, which returns a Status or a Result, with the agent of the group (empty: that of the
// actor's group of actors), and returns what it returns. Errors of its own: kInvalidArgument (this
// is no actor, no member of a group of actors, or the group is none to train in), kNotFound,
// kAlreadyExists (another call of this actor trains in it), those of the head.
template <class F>
auto TrainIn(const std::string& group, F&& body) {
  using R = std::invoke_result_t<F, groups::GroupAgent&>;
  std::optional<R> result;
  const Status entered = internal::OnTrainingThread(
      group, [&](groups::GroupAgent& agent) { result.emplace(body(agent)); });
  return entered.ok() ? std::move(*result) : R(entered.error());
}

// What a method returns whose actor was asked to leave the group: a run goes on without its result.
[[nodiscard]] inline Error Left() {
  return {ErrorCode::kDrained, "this member was asked to leave its group"};
}

// This actor is no member any more; TrainIn joins again.
Status LeaveTraining(const std::string& group = "");

}  // namespace troupe
