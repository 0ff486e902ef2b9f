// The state that LibTorch's optimizers keep per parameter, as numbers and tensors.
//
// LibTorch's own way, Optimizer::save and load through an archive, allocates and serialises
// everything anew; a commit after every step needs the tensors where they are.
// Thread: the training thread.
// Limits: Adam, AdamW, SGD, RMSprop and Adagrad, and classes derived from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "collective_groups/torch/internal/snapshot.h"
#include "runtime/result.h"

namespace torch::optim {
class Optimizer;
}

namespace troupe::elastic::internal {

// Empty if the class is not among those above.
[[nodiscard]] std::string OptimizerKind(torch::optim::Optimizer& optimizer);
// Appends the tensors to `tensors`, in an order that the result describes.
[[nodiscard]] OptimizerState ReadOptimizer(torch::optim::Optimizer& optimizer,
                                           std::vector<at::Tensor>& tensors);
// Whether `state` is of the same kind of optimizer over as many parameters.
[[nodiscard]] Status CheckOptimizer(torch::optim::Optimizer& optimizer, const std::string& name,
                                    const OptimizerState& state);
// Makes learning rates equal. Checked before.
void WriteRates(torch::optim::Optimizer& optimizer, const OptimizerState& state);
// Makes what is kept per parameter equal; returns how many of `tensors` it took. Checked before.
size_t WriteOptimizer(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                      std::span<const at::Tensor> tensors);

}  // namespace troupe::elastic::internal
