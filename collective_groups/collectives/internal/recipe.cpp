#include "collective_groups/collectives/internal/recipe.h"

#include <cstdint>
#include <cstring>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>
#include <string_view>
#include <vector>

#include "collective_groups/collectives/collectives.h"

namespace troupe::groups {
namespace {

constexpr std::string_view kOnDevice = " device";  // The last word of such a recipe.

template <class T>
void Fill(std::vector<char>& bytes, T value) {
  for (size_t at = 0; at < bytes.size(); at += sizeof value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
}

template <class T>
void FillExtreme(std::vector<char>& bytes, bool largest) {
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::has_infinity) {
    Fill<T>(bytes, largest ? Limits::infinity() : -Limits::infinity());
  } else {
    Fill<T>(bytes, largest ? Limits::max() : Limits::lowest());
  }
}

// The bits of infinity and of one in the 16-bit floating types.
constexpr uint16_t kHalfInfinity = 0x7c00;
constexpr uint16_t kHalfOne = 0x3c00;
constexpr uint16_t kBrainInfinity = 0x7f80;
constexpr uint16_t kBrainOne = 0x3f80;
constexpr uint16_t kSign = 0x8000;

void FillOne(std::vector<char>& bytes, DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return Fill<uint8_t>(bytes, 1);
    case DataType::kInt16:
      return Fill<int16_t>(bytes, 1);
    case DataType::kInt32:
      return Fill<int32_t>(bytes, 1);
    case DataType::kInt64:
      return Fill<int64_t>(bytes, 1);
    case DataType::kFloat16:
      return Fill(bytes, kHalfOne);
    case DataType::kBfloat16:
      return Fill(bytes, kBrainOne);
    case DataType::kFloat32:
      return Fill<float>(bytes, 1);
    case DataType::kFloat64:
      return Fill<double>(bytes, 1);
  }
}

void FillLimit(std::vector<char>& bytes, DataType type, bool largest) {
  const auto sign = static_cast<uint16_t>(largest ? 0 : kSign);
  switch (type) {
    case DataType::kUint8:
      return FillExtreme<uint8_t>(bytes, largest);
    case DataType::kInt8:
      return FillExtreme<int8_t>(bytes, largest);
    case DataType::kInt16:
      return FillExtreme<int16_t>(bytes, largest);
    case DataType::kInt32:
      return FillExtreme<int32_t>(bytes, largest);
    case DataType::kInt64:
      return FillExtreme<int64_t>(bytes, largest);
    case DataType::kFloat16:
      return Fill(bytes, static_cast<uint16_t>(kHalfInfinity | sign));
    case DataType::kBfloat16:
      return Fill(bytes, static_cast<uint16_t>(kBrainInfinity | sign));
    case DataType::kFloat32:
      return FillExtreme<float>(bytes, largest);
    case DataType::kFloat64:
      return FillExtreme<double>(bytes, largest);
    case DataType::kBool:
      return Fill<uint8_t>(bytes, largest ? 1 : 0);
  }
}

Status TakePartInAllReduce(Communicator& communicator, const Operation& operation,
                           std::istream& words) {
  ReduceArguments arguments;
  int type = 0;
  int op = 0;
  words >> type >> op >> arguments.count >> arguments.prescale >> arguments.postscale >>
      arguments.average >> arguments.weighted;
  arguments.elements = {static_cast<DataType>(type), static_cast<ReduceOp>(op)};
  std::vector<char> neutral(arguments.count * ElementBytes(arguments.elements.type));
  switch (arguments.elements.op) {
    case ReduceOp::kSum:
      break;
    case ReduceOp::kProduct:
      FillOne(neutral, arguments.elements.type);
      break;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      FillLimit(neutral, arguments.elements.type, arguments.elements.op == ReduceOp::kMin);
      break;
  }
  // Scaling would change what changes nothing.
  if (arguments.elements.op != ReduceOp::kSum && arguments.prescale != 1.0) {
    arguments.prescale = 1.0;
    arguments.weighted = true;  // So that this rank goes the others' way.
  }
  const ConstBuffer in{neutral.data(), neutral.size()};
  return communicator.AllReduce(operation, {&in, 1}, {}, arguments);
}

}  // namespace

std::string AllReduceRecipe(const ReduceArguments& arguments) {
  std::ostringstream recipe;
  recipe << std::setprecision(17) << "reduce " << static_cast<int>(arguments.elements.type) << " "
         << static_cast<int>(arguments.elements.op) << " " << arguments.count << " "
         << arguments.prescale << " " << arguments.postscale << " " << arguments.average << " "
         << arguments.weighted;
  return recipe.str();
}

std::string BroadcastRecipe(size_t bytes, int root) {
  return "broadcast " + std::to_string(bytes) + " " + std::to_string(root);
}

std::string AllGatherRecipe(std::span<const size_t> bytes_per_rank) {
  std::string recipe = "gather";
  for (const size_t bytes : bytes_per_rank) recipe += " " + std::to_string(bytes);
  return recipe;
}

std::string BarrierRecipe() { return "barrier"; }

std::string OnDeviceRecipe(const std::string& recipe) {
  return recipe.empty() ? recipe : recipe + std::string(kOnDevice);
}

std::optional<int> RootOf(const std::string& recipe) {
  std::istringstream words(recipe);
  std::string kind;
  size_t bytes = 0;
  int root = 0;
  words >> kind;
  if (kind != "broadcast" || !(words >> bytes >> root)) return std::nullopt;
  return root;
}

Status TakePartIn(Communicator& communicator, const Operation& described,
                  const std::string& recipe) {
  Operation operation = described;
  std::istringstream words(recipe);
  std::string kind;
  words >> kind;
  if (recipe.ends_with(kOnDevice)) operation.device.index = kHostCopy;
  if (kind == "reduce") return TakePartInAllReduce(communicator, operation, words);
  if (kind == "barrier") return communicator.Barrier(operation);
  const int me = communicator.team(0).me;
  if (kind == "broadcast") {
    size_t bytes = 0;
    int root = 0;
    words >> bytes >> root;
    if (root == me) {
      return Error{ErrorCode::kCorrupt, operation.text + ": a recipe for its root"};
    }
    std::vector<char> unwanted(bytes);
    return communicator.Broadcast(operation, unwanted.data(), bytes, root);
  }
  if (kind == "gather") {
    std::vector<size_t> sizes;
    for (size_t bytes = 0; words >> bytes;) sizes.push_back(bytes);
    if (static_cast<int>(sizes.size()) > me) {
      const std::vector<char> mine(sizes[static_cast<size_t>(me)]);
      std::vector<char> all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
      return AllGather(communicator, operation, mine.data(), all.data(), sizes);
    }
  }
  return Error{ErrorCode::kCorrupt, operation.text + ": unknown recipe '" + recipe + "'"};
}

}  // namespace troupe::groups
