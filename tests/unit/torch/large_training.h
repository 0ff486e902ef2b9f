// A training whose state is large enough to be sent beside it: ballast, a few parameters with
// momentum, and books of how often each sample was counted.
#pragma once

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <utility>

#include "collective_groups/torch/elastic_loop.h"
#include "collective_groups/torch/gradient_reducer.h"

namespace troupe::elastic {

struct LargeModel : torch::nn::Module {
  explicit LargeModel(int64_t elements)
      : weights(register_parameter("weights", torch::rand({4096}))),
        ballast(register_buffer("ballast", torch::rand({elements}))),
        passes(register_buffer("passes", torch::zeros({1}))) {}
  // Another loss for each sample.
  at::Tensor Loss(const at::Tensor& samples) {
    passes.add_(1);  // A running statistic: differs from rank to rank.
    const at::Tensor wanted = samples.to(torch::kFloat).add(1).mean();
    return (weights - wanted).pow(2).mean() + ballast.narrow(0, 0, 4096).mul(weights).sum();
  }
  at::Tensor weights;
  at::Tensor ballast;
  at::Tensor passes;
};

struct SampleBooks : torch::nn::Module {
  explicit SampleBooks(int64_t samples)
      : counts(register_buffer("counts", torch::zeros({samples}, torch::kInt))) {}
  at::Tensor counts;
};

class LargeTraining {
 public:
  static constexpr uint64_t kSamples = 96;         // 4 per rank and step.
  static constexpr int64_t kElements = 4'400'000;  // Of ballast: 16.8 MiB.

  LargeTraining(groups::GroupAgent* group, uint64_t seed, int64_t elements = kElements,
                bool joiners_follow = true, uint64_t samples = kSamples)
      : group_(*group),
        model((torch::manual_seed(seed), elements)),
        optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        books(static_cast<int64_t>(samples)),
        sampler(samples, 4, 7),
        state(group),
        reducer(GradientReducer::Create(group, model.parameters()).value()) {
    at::set_num_threads(1);  // Several members share the machine.
    (void)state.AddModule("model", &model);
    (void)state.AddModule("books", &books);
    (void)state.AddOptimizer("sgd", &optimizer);
    state.SetSampler(&sampler);
    if (joiners_follow) state.SetJoinersFollow(reducer.get());
  }

  Result<Ending> Run() {
    return RunElastic(group_, state, [this] { return TrainOn(); });
  }
  Status TrainOn() {
    while (sampler.remaining() > 0) {
      if (Status s = Step(); !s.ok()) return s;
    }
    return Status::Ok();
  }
  Status Step() {
    const Result<Batch> batch = sampler.Next();
    if (!batch.ok()) return batch.error();
    if (on_batch) {
      if (Status s = on_batch(*batch); !s.ok()) return s;
    }
    // A rate that follows from what a follower knows as well.
    optimizer.param_groups()[0].options().set_lr(
        0.1 / (1.0 + static_cast<double>(state.Integer("steps"))));
    const at::Tensor indices = torch::tensor(batch->indices);
    reducer->Begin(batch->counted);
    optimizer.zero_grad();
    model.Loss(indices).backward();
    const Result<uint64_t> samples = reducer->Finish();
    if (!samples.ok()) return samples.error();
    if (*samples != batch->step_size)
      return Error{ErrorCode::kInternal, "the average is over " + std::to_string(*samples) +
                                             " samples instead of " +
                                             std::to_string(batch->step_size)};
    optimizer.step();
    ++state.Integer("steps");
    if (Status s = Count(*batch, indices); !s.ok()) return s;
    return state.Commit();
  }

  // What all members have alike at the end, in short.
  std::string Summary() {
    const at::Tensor all = torch::cat({model.weights.detach(), model.ballast});
    const at::Tensor bits = all.view(torch::kInt).to(torch::kLong);
    const at::Tensor place = torch::arange(bits.numel()).add(1);
    return "steps=" + std::to_string(state.Integer("steps")) +
           " missing=" + std::to_string((1 - books.counts).clamp_min(0).sum().item<int64_t>()) +
           " doubled=" + std::to_string((books.counts - 1).clamp_min(0).sum().item<int64_t>()) +
           " weights=" + std::to_string((bits * place).sum().item<int64_t>());
  }

 private:
  Status Count(const Batch& batch, const at::Tensor& indices) {
    at::Tensor counted = torch::zeros_like(books.counts);
    if (batch.counted > 0) counted.index_fill_(0, indices, 1);
    const auto samples = static_cast<size_t>(counted.numel());
    const size_t bytes = samples * sizeof(int32_t);
    groups::ReduceArguments arguments;
    arguments.elements = {groups::DataType::kInt32, groups::ReduceOp::kSum};
    arguments.count = samples;
    const auto handle = group_.AllReduce({}, {{counted.data_ptr(), bytes}},
                                         {{counted.data_ptr(), bytes}}, arguments);
    const Result<uint64_t> done = group_.Wait(handle, seconds(60));
    if (!done.ok()) return done.error();
    books.counts.add_(counted);
    return Status::Ok();
  }

  groups::GroupAgent& group_;

 public:
  LargeModel model;
  torch::optim::SGD optimizer;
  SampleBooks books;
  ElasticSampler sampler;
  ElasticState state;
  std::unique_ptr<GradientReducer> reducer;
  // Called with each batch, before anything is computed; its error ends training.
  std::function<Status(const Batch&)> on_batch;
};

}  // namespace troupe::elastic
