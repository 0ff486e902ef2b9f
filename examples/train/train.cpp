// A group of three actors trains a model. Kill one, and the others go on with the same step.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>

#include <troupe/training.h>
#include <troupe/troupe.h>

using namespace troupe;

class Trainer {
 public:
  Result<double> Train(int epochs) {
    return TrainIn("", [&](groups::GroupAgent& group) { return TrainWith(group, epochs); });
  }

 private:
  static Result<double> TrainWith(groups::GroupAgent& group, int epochs) {
    const auto x = torch::linspace(-3, 3, 960).view({480, 2});
    const auto y = x.sin().sum(1, true);
    torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                                torch::nn::Linear(32, 1));
    torch::optim::Adam adam(model->parameters(), 0.01);
    elastic::ElasticSampler sampler(480, 16, /*seed=*/0);
    elastic::ElasticState state(&group);
    state.SetSampler(&sampler);
    if (Status s = state.AddModule("model", model.get()); !s.ok()) return s.error();
    if (Status s = state.AddOptimizer("adam", &adam); !s.ok()) return s.error();
    auto reducer = elastic::GradientReducer::Create(&group, model->parameters());
    if (!reducer.ok()) return reducer.error();
    const auto loss = [&](const at::Tensor& rows) {
      return torch::nn::functional::mse_loss(model->forward(x.index_select(0, rows)),
                                             y.index_select(0, rows));
    };
    // Called again when the members have changed; goes on from the state.
    const auto ending = elastic::RunElastic(group, state, [&]() -> Status {
      for (;;) {
        while (sampler.remaining() > 0) {
          const auto batch = sampler.Next();
          if (!batch.ok()) return batch.error();
          (*reducer)->Begin(batch->counted);
          adam.zero_grad();
          loss(torch::tensor(batch->indices)).backward();
          if (const auto n = (*reducer)->Finish(); !n.ok()) return n.error();
          adam.step();
          if (Status s = state.Commit(); !s.ok()) return s;  // Where members come and go.
        }
        if (static_cast<int>(sampler.data_epoch()) + 1 >= epochs) return Status::Ok();
        sampler.BeginEpoch(sampler.data_epoch() + 1);
      }
    });
    if (!ending.ok()) return ending.error();
    if (*ending == elastic::Ending::kDrained) return Left();
    return loss(torch::arange(480)).item<double>();
  }
};
TROUPE_ACTOR(Trainer, (), Train);

int main() {
  const auto cluster = Init();
  if (!cluster.ok()) return std::fprintf(stderr, "%s\n", cluster.error().ToString().c_str()), 1;
  const auto trainers = cluster->SpawnGroup<Trainer>({.min_size = 2, .size = 3});
  if (!trainers.ok()) return std::fprintf(stderr, "%s\n", trainers.error().ToString().c_str()), 1;
  const auto losses = trainers->Run(&Trainer::Train, 5).Get();
  if (!losses.ok()) return std::fprintf(stderr, "%s\n", losses.error().ToString().c_str()), 1;
  for (const double loss : *losses) std::printf("loss %.6f\n", loss);
}
