// Reductions by element type, operation and instruction set, next to memcpy of the same bytes.
//
// A figure is gigabytes per second of memory read and written: a reduction in place (out is a) of
// B bytes reads 2 B and writes B, a memcpy of B bytes reads B and writes B, n inputs in one pass
// read n B and write B. Each reduction is followed by the memcpy it is held against. Options are
// those of Google Benchmark, such as --benchmark_filter=float16. One JSON line per figure.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "collective_groups/collectives/adasum.h"
#include "collective_groups/reduction/reduction.h"

namespace {

using namespace troupe::groups;

constexpr int kRepetitions = 7;
constexpr double kSecondsEach = 0.02;
constexpr size_t kInCache = size_t{256} << 10;
constexpr size_t kInMemory = size_t{64} << 20;
constexpr size_t kInputs = 8;
constexpr SimdLevel kLevels[] = {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512};

// Shared by all, made once: pages that are there and small values that never overflow.
std::vector<std::vector<char>>& Buffers() {
  static std::vector<std::vector<char>> buffers(kInputs, std::vector<char>(kInMemory, 0));
  return buffers;
}

// One JSON line per benchmark, of its repetitions.
class JsonLines : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<double> speeds;
    for (const Run& run : runs) {
      const auto it = run.counters.find("bytes_per_second");
      if (run.run_type == Run::RT_Iteration && it != run.counters.end())
        speeds.push_back(it->second / 1e9);
    }
    if (speeds.empty()) return;
    std::sort(speeds.begin(), speeds.end());
    std::printf(
        "{\"bench\": \"%s\", %s, \"n\": %zu, \"p50\": %.2f, \"min\": %.2f, \"max\": %.2f, "
        "\"unit\": \"GB/s\"}\n",
        runs[0].run_name.function_name.substr(0, runs[0].run_name.function_name.find('|')).c_str(),
        runs[0].run_name.function_name.substr(runs[0].run_name.function_name.find('|') + 1).c_str(),
        speeds.size(), speeds[speeds.size() / 2], speeds.front(), speeds.back());
    std::fflush(stdout);
  }
};

void Register(const std::string& bench, const std::string& fields, size_t traffic,
              const std::function<void()>& work) {
  benchmark::RegisterBenchmark((bench + "|" + fields).c_str(),
                               [traffic, work](benchmark::State& state) {
                                 for (auto _ : state) {
                                   work();
                                   benchmark::ClobberMemory();
                                 }
                                 state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                                                         static_cast<int64_t>(traffic));
                               })
      ->Repetitions(kRepetitions)
      ->MinTime(kSecondsEach)
      ->UseRealTime();
}

std::string Fields(DataType type, const char* op, const char* set, size_t bytes) {
  return R"("dtype": ")" + std::string(DataTypeName(type)) + R"(", "op": ")" + op +
         R"(", "simd": ")" + set + R"(", "bytes": )" + std::to_string(bytes);
}

void RegisterSet(DataType type, SimdLevel level, size_t bytes) {
  static constexpr std::pair<ReduceOp, const char*> kOps[] = {{ReduceOp::kSum, "sum"},
                                                              {ReduceOp::kMin, "min"},
                                                              {ReduceOp::kMax, "max"},
                                                              {ReduceOp::kProduct, "product"}};
  const std::string set(SimdLevelName(level));
  const size_t count = bytes / ElementBytes(type);
  char* a = Buffers()[0].data();
  const char* b = Buffers()[1].data();
  ForceSimdLevel(level);
  for (const auto& [op, name] : kOps) {
    Register("reduce", Fields(type, name, set.c_str(), bytes), 3 * bytes,
             [=, reduce = GetReduceFunction(type, op)] { reduce(a, a, b, count); });
  }
  std::vector<const void*> inputs;
  for (const auto& buffer : Buffers()) inputs.push_back(buffer.data());
  Register("reduce_many", Fields(type, "sum", set.c_str(), bytes), (kInputs + 1) * bytes,
           [=, reduce = GetReduceManyFunction(type, ReduceOp::kSum)] {
             reduce(a, inputs.data(), inputs.size(), count);
           });
  Register("scale", Fields(type, "scale", set.c_str(), bytes), 2 * bytes, [=] {
    ForceSimdLevel(level);
    ScaleInPlace(a, count, type, 0.5);
  });
  if (!IsAdasumType(type)) return;
  Register("adasum", Fields(type, "adasum", set.c_str(), bytes), 5 * bytes, [=] {
    ForceSimdLevel(level);
    AdasumCombine(a, a, b, count, type);
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (const size_t bytes : {kInCache, kInMemory}) {
    for (int t = 0; t <= static_cast<int>(DataType::kBool); ++t) {
      const auto type = static_cast<DataType>(t);
      // A plain 64 MB in each of ten types says no more than one that fits into a cache.
      if (bytes == kInMemory && type != DataType::kFloat32 && type != DataType::kFloat16 &&
          type != DataType::kBfloat16)
        continue;
      for (const SimdLevel level : kLevels)
        if (IsSimdLevelSupported(level)) RegisterSet(type, level, bytes);
      Register("memcpy", Fields(type, "copy", "libc", bytes), 2 * bytes,
               [=] { std::memcpy(Buffers()[0].data(), Buffers()[1].data(), bytes); });
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  JsonLines reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
