#include "collective_groups/reduction/reduction.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "collective_groups/reduction/internal/reduction_kernels.h"
#include "runtime/assert.h"
#include "runtime/log.h"

namespace troupe::groups {
namespace {

using internal::ReductionKernels;

constexpr std::array<std::string_view, internal::kDataTypes> kNames = {
    "uint8",   "int8",     "int16",   "int32",   "int64",
    "float16", "bfloat16", "float32", "float64", "bool"};
constexpr std::array<size_t, internal::kDataTypes> kBytes = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};
constexpr std::array<std::string_view, internal::kReduceOps> kOpNames = {"sum", "min", "max",
                                                                         "product"};
constexpr std::array<std::string_view, 3> kLevelNames = {"scalar", "avx2", "avx512"};

bool CpuHas(SimdLevel level) {
#if defined(__x86_64__)
  // F16C has no name in clang 14's list; every CPU with AVX2 has it.
  switch (level) {
    case SimdLevel::kScalar:
      return true;
    case SimdLevel::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case SimdLevel::kAvx512:
      return CpuHas(SimdLevel::kAvx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0;
  }
  return false;
#else
  return level == SimdLevel::kScalar;
#endif
}

const ReductionKernels* KernelsOf(SimdLevel level) {
  if (!CpuHas(level)) return nullptr;
  switch (level) {
    case SimdLevel::kScalar:
      return internal::ScalarKernels();
    case SimdLevel::kAvx2:
      return internal::Avx2Kernels();
    case SimdLevel::kAvx512:
      return internal::Avx512Kernels();
  }
  return nullptr;
}

SimdLevel FirstLevel() {
  SimdLevel best = SimdLevel::kScalar;
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512})
    if (KernelsOf(level) != nullptr) best = level;
  const char* wanted = std::getenv("TROUPE_SIMD");
  if (wanted == nullptr || *wanted == '\0') return best;
  const auto it = std::find(kLevelNames.begin(), kLevelNames.end(), std::string_view(wanted));
  const auto level = static_cast<SimdLevel>(it - kLevelNames.begin());
  if (it != kLevelNames.end() && KernelsOf(level) != nullptr) return level;
  LogError("TROUPE_SIMD=", wanted,
           it == kLevelNames.end() ? " is not one of scalar, avx2, avx512"
                                   : " names instructions that this CPU lacks",
           "; using ", SimdLevelName(best));
  return best;
}

// The CPU is the process's, and so is the choice.
std::atomic<SimdLevel>& Level() {
  static std::atomic<SimdLevel> level{FirstLevel()};
  return level;
}

}  // namespace

namespace internal {
const ReductionKernels& ActiveKernels() { return *KernelsOf(ActiveSimdLevel()); }
}  // namespace internal

std::string_view SimdLevelName(SimdLevel level) { return kLevelNames[static_cast<size_t>(level)]; }
bool IsSimdLevelSupported(SimdLevel level) { return KernelsOf(level) != nullptr; }
SimdLevel ActiveSimdLevel() { return Level().load(std::memory_order_relaxed); }

void ForceSimdLevel(SimdLevel level) {
  TROUPE_ASSERT(IsSimdLevelSupported(level), SimdLevelName(level));
  Level().store(level, std::memory_order_relaxed);
}

size_t ElementBytes(DataType type) { return kBytes[static_cast<size_t>(type)]; }
std::string_view DataTypeName(DataType type) { return kNames[static_cast<size_t>(type)]; }

std::optional<DataType> ParseDataType(std::string_view name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end()) return std::nullopt;
  return static_cast<DataType>(it - kNames.begin());
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  const auto it = std::find(kOpNames.begin(), kOpNames.end(), name);
  if (it == kOpNames.end()) return std::nullopt;
  return static_cast<ReduceOp>(it - kOpNames.begin());
}

ReduceFunction GetReduceFunction(DataType type, ReduceOp op) {
  return internal::ActiveKernels().reduce[static_cast<size_t>(type)][static_cast<size_t>(op)];
}

ReduceManyFunction GetReduceManyFunction(DataType type, ReduceOp op) {
  return internal::ActiveKernels().reduce_many[static_cast<size_t>(type)][static_cast<size_t>(op)];
}

void ScaleInPlace(void* data, size_t count, DataType type, double factor) {
  if (factor == 1.0) return;
  const auto scale = internal::ActiveKernels().scale[static_cast<size_t>(type)];
  if (scale != nullptr) scale(data, count, factor);  // Scaling truth values has no meaning.
}

}  // namespace troupe::groups
