// ElasticState: what training keeps, commits, goes back to, and hands to those who join.
//
// Modules and optimizers by name, integers by name, a sampler. Commit copies them into memory of
// the state's own, allocated once, and counts: the number of commits is the version. When members
// have changed, those that lack the newest version receive it from the oldest that holds it;
// RunElastic does that.
// Thread: the training thread.
// Owns: the snapshot. What was added must outlive it.
// Invariants: outside of train functions the live state is the snapshot. All members add the same
// names, modules of the same shapes and optimizers of the same kind.
// Limits: dense CPU tensors; the optimizers named at AddOptimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collective_groups/group_agent.h"
#include "collective_groups/torch/elastic_sampler.h"
#include "runtime/result.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe::elastic {

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

  // Keeps everything as it is now as the next version, counts the samples of the step, and crosses
  // a step boundary. kEpochChanged if members come or go here: the commit is done, return from the
  // train function.
  Status Commit();
  // Back to the last commit, or to what was there at first.
  Status Restore();
  [[nodiscard]] uint64_t version() const;
  // Whether this is the group's state and not just this member's own beginnings.
  [[nodiscard]] bool has_state() const;

  // For RunElastic: in a new view, brings those that lack it to the newest version. kEpochChanged
  // if the view ended meanwhile: nothing has changed. kMismatch if the members' states differ in
  // what they are made of.
  Status Sync(const groups::ActiveView& active, Duration limit);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::elastic
