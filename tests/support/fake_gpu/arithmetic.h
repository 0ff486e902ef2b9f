// Elements of NCCL's types, and reductions of them, one after the other.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstring>

namespace troupe::fake_gpu {

[[nodiscard]] inline size_t Width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

template <class T>
[[nodiscard]] T Load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

[[nodiscard]] inline long double Get(const void* data, ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return Load<int8_t>(data);
    case ncclUint8:
      return Load<uint8_t>(data);
    case ncclInt32:
      return Load<int32_t>(data);
    case ncclInt64:
      return Load<int64_t>(data);
    case ncclFloat16:
      return __half2float(Load<__half>(data));
    case ncclBfloat16:
      return __bfloat162float(Load<__nv_bfloat16>(data));
    case ncclFloat32:
      return Load<float>(data);
    default:
      return Load<double>(data);
  }
}

template <class T>
void Store(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
}

inline void Put(void* data, ncclDataType_t type, long double value) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return Store(data, static_cast<uint8_t>(static_cast<int64_t>(value)));
    case ncclInt32:
      return Store(data, static_cast<int32_t>(static_cast<int64_t>(value)));
    case ncclInt64:
      return Store(data, static_cast<int64_t>(value));
    case ncclFloat16:
      return Store(data, __float2half_rn(static_cast<float>(value)));
    case ncclBfloat16:
      return Store(data, __float2bfloat16_rn(static_cast<float>(value)));
    case ncclFloat32:
      return Store(data, static_cast<float>(value));
    default:
      return Store(data, static_cast<double>(value));
  }
}

[[nodiscard]] inline long double Combine(ncclRedOp_t op, long double a, long double b) {
  switch (op) {
    case ncclProd:
      return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return a + b;
  }
}

}  // namespace troupe::fake_gpu
