// GradientReducer: averages the gradients of LibTorch parameters over a group while backward still
// runs.
//
//   reducer->Begin(batch.counted);
//   loss.backward();          // full buckets are on their way already
//   reducer->Finish();        // the parameters' gradients are the averages
//   optimizer.step();
//
// A hook on each parameter notes its gradient; a full bucket's all-reduce starts at once, but never
// before that of the bucket in front of it, so that all ranks issue the same sequence. Gradients
// are read where they lie and summed into the bucket, whose pieces become the gradients when all
// have arrived; if that fails the model and the local gradients are untouched. The divisor is the
// number of samples that all ranks together counted, which travels with the last bucket: a rank
// whose loss is the mean of fewer samples weighs less.
// Thread: the training thread, also in backward.
// Owns: bucket memory, the hooks. Outlived by the group; the parameters may outlive it.
// Limits: dense float32 and float64 gradients in CPU memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace at {
class Tensor;
}
namespace troupe::groups {
class GroupAgent;
}

namespace troupe::elastic {

struct BucketOptions {
  size_t first_bytes = size_t{1} << 20;  // Small, so that communication starts early.
  size_t bucket_bytes = size_t{25} << 20;
  Duration limit = seconds(3600);  // Of the wait for a bucket; deaths and stalls end it earlier.
};

// Which parameters, by index, go into which bucket: a pure function of the list. Reverse order,
// about that in which backward finishes, one element type per bucket.
[[nodiscard]] std::vector<std::vector<size_t>> PlanBuckets(
    const std::vector<at::Tensor>& parameters, const BucketOptions& options);

class GradientReducer {
 public:
  // Takes those of `parameters` that need gradients. kInvalidArgument if there are none, or if one
  // is not of the limits above.
  static Result<std::unique_ptr<GradientReducer>> Create(groups::GroupAgent* group,
                                                         const std::vector<at::Tensor>& parameters,
                                                         BucketOptions options = {});
  ~GradientReducer();

  // The next backward's gradients are reduced: means over `counted` samples; with 0, whatever they
  // are, they do not count. To accumulate several passes call it before the last one, with the
  // samples of all. Drops a step that was begun and not finished.
  void Begin(uint64_t counted);
  // Waits for all buckets; parameters that backward did not reach count as zeros. The value is the
  // number of samples behind the average. Errors as of GroupAgent::Wait, kEpochChanged first of
  // all; kInvalidArgument for a second backward since Begin, or without Begin.
  Result<uint64_t> Finish();
  // Waits out what is in flight and forgets it.
  void Abandon();

  // ---- for ElasticState ----
  struct Watch {
    // In Begin. After an error nothing is sent; it is that of Finish.
    std::function<Status(uint64_t counted)> on_begin;
    // In Finish, when all buckets are on their way; its error is that of Finish.
    std::function<Status()> before_averages;
  };
  void SetWatch(std::weak_ptr<const Watch> watch);  // Forgotten with its owner.

 private:
  struct Impl;
  explicit GradientReducer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::elastic
