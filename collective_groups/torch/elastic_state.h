// ElasticState: what training keeps, commits, goes back to, and hands to those who join.
//
// Modules and optimizers by name, integers by name, a sampler. Commit copies them into memory of
// the state's own, allocated once, and counts: the number of commits is the version. When members
// have changed, those that lack the newest version receive it from the oldest that holds it, and
// from holders on other hosts; RunElastic does that.
// Thread: the training thread.
// Owns: the snapshot. What was added must outlive it; so must the group.
// Invariants: outside of train functions the live state is the snapshot. All members add the same
// names, modules of the same shapes and optimizers of the same kind.
// Limits: dense CPU tensors; the optimizers named at AddOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collective_groups/membership/group_agent.h"
#include "collective_groups/torch/elastic_sampler.h"
#include "runtime/result.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe::elastic {

class GradientReducer;

class ElasticState {
 public:
  explicit ElasticState(groups::GroupAgent* group);
  ~ElasticState();

  // Parameters and buffers. kAlreadyExists for a name twice, kInvalidArgument for tensors that are
  // not dense CPU ones.
  Status AddModule(const std::string& name, torch::nn::Module* module);
  // What it keeps per parameter, and learning rates. kInvalidArgument unless it is an Adam, AdamW,
  // SGD, RMSprop or Adagrad, or derived from one without state of its own.
  Status AddOptimizer(const std::string& name, torch::optim::Optimizer* optimizer);
  void SetSampler(ElasticSampler* sampler);
  // A number of the state, 0 at first. The reference stays valid.
  int64_t& Integer(const std::string& name);
  // Nobody waits for a state of 16 MiB and more that a joiner needs: its tensors are sent from the
  // copies of the last commit while all train on. The joiner makes its first step as a follower: it
  // has integers, learning rates and the sampler's position, but computes a ghost, with parameters
  // of its own making and weight zero, and has the tensors before its Finish returns. Call it on
  // all members before RunElastic, for each reducer whose averages an optimizer steps with. It
  // promises that from the call of the train function, and from every Commit, until Finish that
  // function looks at modules and optimizers only to compute gradients of the sampler's batches,
  // writes to no parameter and no optimizer state (Finish compares version counters in the step of
  // a join; kInvalidArgument), and calls no collective. Needs a sampler; otherwise, after the last
  // step of a data epoch, and if a receiver is not new but behind, all wait for the transfer.
  void SetJoinersFollow(GradientReducer* reducer);

  // Keeps everything as it is now as the next version, counts the samples of the step, and crosses
  // a step boundary. Waits before until nobody receives the last one any more. kEpochChanged if
  // members come or go here: the commit is done, return from the train function.
  Status Commit();
  // Back to the last commit, or to what was there at first.
  Status Restore();
  [[nodiscard]] uint64_t version() const;
  // Whether this is the group's state and not just this member's own beginnings. A follower's is
  // not yet.
  [[nodiscard]] bool has_state() const;

  // For RunElastic: in a new view, brings those that lack it to the newest version. kEpochChanged
  // if the view ended meanwhile: nothing has changed. kMismatch if the members' states differ in
  // what they are made of. `limit` is of each wait, also of those for what it leaves to go on.
  Status Sync(const groups::ActiveView& active, Duration limit);
  // For RunElastic, when training has ended: a follower's tensors are there. Errors as of Sync.
  Status FinishSync();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::elastic
