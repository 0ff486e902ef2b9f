// A group of actors that trains: what its functions are, README.md shows how they are called.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <troupe/training.h>
#include <troupe/troupe.h>

using namespace troupe;

static Result<double> TrainWith(groups::GroupAgent& group, int epochs) {
  const int64_t samples = 160;
  const auto x = torch::linspace(-3, 3, 2 * samples).view({samples, 2});
  const auto y = x.sin().sum(1, true);
  torch::nn::Sequential model(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  torch::optim::Adam adam(model->parameters(), 0.01);
  const auto loss_of = [&](const std::vector<int64_t>& rows) {
    const auto of = torch::tensor(rows);
    return torch::nn::functional::mse_loss(model->forward(x.index_select(0, of)),
                                           y.index_select(0, of));
  };
  // @listing docs/libtorch.md 1
  if (!ending.ok()) return ending.error();
  return static_cast<double>(epochs);
}

// @listing README.md 1
