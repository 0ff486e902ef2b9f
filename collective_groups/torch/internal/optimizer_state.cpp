#include "collective_groups/torch/internal/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <sstream>
#include <type_traits>

namespace troupe::elastic::internal {
namespace {

namespace optim = torch::optim;

// What each kind keeps: its number, if any, and its tensors in a fixed order.
template <class V>
void Visit(optim::AdamParamState& s, V&& visit) {
  visit(s.step(), {&s.exp_avg(), &s.exp_avg_sq(), &s.max_exp_avg_sq()});
}
template <class V>
void Visit(optim::AdamWParamState& s, V&& visit) {
  visit(s.step(), {&s.exp_avg(), &s.exp_avg_sq(), &s.max_exp_avg_sq()});
}
template <class V>
void Visit(optim::SGDParamState& s, V&& visit) {
  int64_t none = 0;
  visit(none, {&s.momentum_buffer()});
}
template <class V>
void Visit(optim::RMSpropParamState& s, V&& visit) {
  visit(s.step(), {&s.square_avg(), &s.momentum_buffer(), &s.grad_avg()});
}
template <class V>
void Visit(optim::AdagradParamState& s, V&& visit) {
  visit(s.step(), {&s.sum()});
}

// Calls `use` with a null pointer of the optimizer's type of state; false if it is none of ours.
template <class F>
bool WithKind(optim::Optimizer& optimizer, F&& use) {
  if (dynamic_cast<optim::Adam*>(&optimizer) != nullptr) {
    use("Adam", static_cast<optim::AdamParamState*>(nullptr));
  } else if (dynamic_cast<optim::AdamW*>(&optimizer) != nullptr) {
    use("AdamW", static_cast<optim::AdamWParamState*>(nullptr));
  } else if (dynamic_cast<optim::SGD*>(&optimizer) != nullptr) {
    use("SGD", static_cast<optim::SGDParamState*>(nullptr));
  } else if (dynamic_cast<optim::RMSprop*>(&optimizer) != nullptr) {
    use("RMSprop", static_cast<optim::RMSpropParamState*>(nullptr));
  } else if (dynamic_cast<optim::Adagrad*>(&optimizer) != nullptr) {
    use("Adagrad", static_cast<optim::AdagradParamState*>(nullptr));
  } else {
    return false;
  }
  return true;
}

// LibTorch 1 names a parameter by its address as a stream prints it, LibTorch 2 by the address.
using Key = std::remove_cvref_t<decltype(std::declval<optim::Optimizer&>().state())>::key_type;
template <class K>
K KeyAs(void* address) {
  if constexpr (std::is_same_v<K, std::string>) {
    std::ostringstream text;
    text << address;
    return text.str();
  } else {
    return address;
  }
}
Key KeyOf(const at::Tensor& parameter) { return KeyAs<Key>(parameter.unsafeGetTensorImpl()); }

std::vector<at::Tensor> Parameters(optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (optim::OptimizerParamGroup& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

using Tensors = std::initializer_list<at::Tensor*>;

template <class State>
ParameterState ReadParameter(State& state, std::vector<at::Tensor>& tensors) {
  ParameterState read;
  read.present = true;
  Visit(state, [&](int64_t& step, Tensors all) {
    read.step = step;
    uint64_t bit = 1;
    for (at::Tensor* tensor : all) {
      if (tensor->defined()) {
        read.tensors |= bit;
        tensors.push_back(*tensor);
      }
      bit <<= 1;
    }
  });
  return read;
}

template <class State>
size_t WriteParameter(State& state, const ParameterState& from,
                      std::span<const at::Tensor> tensors) {
  size_t taken = 0;
  Visit(state, [&](int64_t& step, Tensors all) {
    step = from.step;
    uint64_t bit = 1;
    for (at::Tensor* tensor : all) {
      if ((from.tensors & bit) == 0) {
        *tensor = at::Tensor();
      } else if (tensor->defined() && tensor->sizes() == tensors[taken].sizes()) {
        tensor->copy_(tensors[taken++]);
      } else {
        *tensor = tensors[taken++].clone();
      }
      bit <<= 1;
    }
  });
  return taken;
}

}  // namespace

std::string OptimizerKind(optim::Optimizer& optimizer) {
  std::string kind;
  (void)WithKind(optimizer, [&](const char* name, auto*) { kind = name; });
  return kind;
}

OptimizerState ReadOptimizer(optim::Optimizer& optimizer, std::vector<at::Tensor>& tensors) {
  OptimizerState read;
  for (optim::OptimizerParamGroup& group : optimizer.param_groups())
    read.rates.push_back(group.options().get_lr());
  (void)WithKind(optimizer, [&](const char* kind, auto* type) {
    using State = std::remove_pointer_t<decltype(type)>;
    read.kind = kind;
    for (const at::Tensor& parameter : Parameters(optimizer)) {
      const auto it = optimizer.state().find(KeyOf(parameter));
      read.parameters.push_back(it == optimizer.state().end()
                                    ? ParameterState{}
                                    : ReadParameter(static_cast<State&>(*it->second), tensors));
    }
  });
  return read;
}

Status CheckOptimizer(optim::Optimizer& optimizer, const std::string& name,
                      const OptimizerState& state) {
  const std::string kind = OptimizerKind(optimizer);
  const size_t parameters = Parameters(optimizer).size();
  if (kind == state.kind && parameters == state.parameters.size() &&
      optimizer.param_groups().size() == state.rates.size())
    return Status::Ok();
  return Error{ErrorCode::kMismatch, "optimizer " + name + ": the group's is a " + state.kind +
                                         " over " + std::to_string(state.parameters.size()) +
                                         " parameters, this member's is a " + kind + " over " +
                                         std::to_string(parameters)};
}

void WriteRates(optim::Optimizer& optimizer, const OptimizerState& state) {
  for (size_t i = 0; i < state.rates.size(); ++i)
    optimizer.param_groups()[i].options().set_lr(state.rates[i]);
}

size_t WriteOptimizer(optim::Optimizer& optimizer, const OptimizerState& state,
                      std::span<const at::Tensor> tensors) {
  size_t taken = 0;
  (void)WithKind(optimizer, [&](const char*, auto* type) {
    using State = std::remove_pointer_t<decltype(type)>;
    const std::vector<at::Tensor> parameters = Parameters(optimizer);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Key key = KeyOf(parameters[i]);
      if (!state.parameters[i].present) {
        optimizer.state().erase(key);
        continue;
      }
      std::unique_ptr<optim::OptimizerParamState>& kept = optimizer.state()[key];
      if (!kept) kept = std::make_unique<State>();
      taken +=
          WriteParameter(static_cast<State&>(*kept), state.parameters[i], tensors.subspan(taken));
    }
  });
  return taken;
}

}  // namespace troupe::elastic::internal
