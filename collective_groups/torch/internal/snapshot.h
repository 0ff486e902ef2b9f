// Snapshot: a committed state as bytes and tensors, in memory of its own.
// Thread: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::elastic::internal {

inline constexpr uint8_t kPlainType = 21;  // On the wire.

struct TensorLayout {
  int64_t type = 0;  // at::ScalarType.
  std::vector<int64_t> sizes;

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
  template <class A>
  void Fields(A& a) {
    a(type, sizes);
  }
};

// What an optimizer keeps for one parameter; its tensors are among those of the snapshot.
struct ParameterState {
  bool present = false;
  int64_t step = 0;
  uint64_t tensors = 0;  // Bit i: the i-th tensor of this kind of state is defined.

  template <class A>
  void Fields(A& a) {
    a(present, step, tensors);
  }
};

struct OptimizerState {
  std::string kind;           // "Adam", ...
  std::vector<double> rates;  // Learning rates, by parameter group.
  std::vector<ParameterState> parameters;

  template <class A>
  void Fields(A& a) {
    a(kind, rates, parameters);
  }
};

struct Plain {
  std::map<std::string, int64_t> integers;
  std::string sampler;                      // Empty: none.
  std::map<std::string, uint64_t> modules;  // Name -> number of its tensors, which come first.
  std::map<std::string, OptimizerState> optimizers;
  std::vector<TensorLayout> layout;  // Of all tensors.

  template <class A>
  void Fields(A& a) {
    a(integers, sampler, modules, optimizers, layout);
  }
};

struct Snapshot {
  Plain plain;
  std::vector<at::Tensor> tensors;  // Contiguous, on the CPU.
};

}  // namespace troupe::elastic::internal
