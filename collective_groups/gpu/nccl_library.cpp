#include "collective_groups/gpu/nccl_library.h"

#include <dlfcn.h>
#include <nccl.h>

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::groups {

// NCCL writes the handle of a shrunk or grown communicator when it is formed, on a thread of its
// own, and may read then what it was given; so all of that lives here, at one address.
struct Nccl::Communicator {
  ncclComm_t handle = nullptr;
  ncclUniqueId id{};
  std::vector<int> excluded;
  Comm parent;  // Whose state tells how the forming goes until there is a handle.
  bool ended = false;
  std::map<std::pair<DataType, double>, ncclRedOp_t> scaled_sums;

  [[nodiscard]] ncclComm_t Handle() const { return __atomic_load_n(&handle, __ATOMIC_ACQUIRE); }
};

namespace {

constexpr int kShrinkVersion = 22703;
constexpr int kRevokeVersion = 22807;
constexpr int kGrowVersion = 22902;
constexpr int kSharingVersion = 23000;
constexpr size_t kScaledSumsMax = 16;  // Per communicator.

// Functions of the library. The second list came after kNcclVersionMin and may be missing.
// As is: a formatter makes a staircase of lists like these.
// clang-format off
#define TROUPE_NCCL_NEEDED(X) \
  X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) \
  X(ncclCommGetAsyncError) X(ncclCommAbort) X(ncclGroupStart) X(ncclGroupEnd) X(ncclAllReduce) \
  X(ncclReduce) X(ncclReduceScatter) X(ncclBroadcast) X(ncclAllGather) X(ncclSend) X(ncclRecv) \
  X(ncclRedOpCreatePreMulSum) X(ncclRedOpDestroy)
#define TROUPE_NCCL_OPTIONAL(X) \
  X(ncclCommShrink) X(ncclCommRevoke) X(ncclCommGrow) X(ncclCommGetUniqueId) \
  X(ncclGetLastError)
// clang-format on

struct NcclFunctions {
#define TROUPE_DECLARE(name) decltype(&::name) name = nullptr; /* NOLINT(bugprone-macro-*) */
  TROUPE_NCCL_NEEDED(TROUPE_DECLARE)
  TROUPE_NCCL_OPTIONAL(TROUPE_DECLARE)
#undef TROUPE_DECLARE
};

// The name of a function that the library lacks; empty if it has all that are needed.
std::string ResolveNccl(void* library, NcclFunctions& f) {
  std::string missing;
#define TROUPE_RESOLVE(name) f.name = reinterpret_cast<decltype(f.name)>(dlsym(library, #name));
#define TROUPE_REQUIRE(name) \
  TROUPE_RESOLVE(name)       \
  if (f.name == nullptr) missing = #name;
  TROUPE_NCCL_NEEDED(TROUPE_REQUIRE)
  TROUPE_NCCL_OPTIONAL(TROUPE_RESOLVE)
#undef TROUPE_REQUIRE
#undef TROUPE_RESOLVE
  return missing;
}

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// The size of the configuration that a library of this version reads. Fields were only ever added
// at the end, but not every version ignores those it does not know.
size_t ConfigBytes(int version) {
  if (version < 21700) return offsetof(ncclConfig_t, blocking) + 2 * sizeof(int);
  if (version < kShrinkVersion) return offsetof(ncclConfig_t, trafficClass) + sizeof(int);
  return sizeof(ncclConfig_t);
}

std::optional<ncclDataType_t> TypeOf(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kBool:  // Zeros and ones.
      return ncclUint8;
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBfloat16:
      return ncclBfloat16;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kInt16:
      break;
  }
  return std::nullopt;
}

ncclRedOp_t OpOf(const Nccl::Reduction& reduction) {
  const bool truth = reduction.type == DataType::kBool;
  switch (reduction.op) {
    case Nccl::Op::kSum:
      return truth ? ncclMax : ncclSum;
    case Nccl::Op::kProduct:
      return truth ? ncclMin : ncclProd;
    case Nccl::Op::kMin:
      return ncclMin;
    case Nccl::Op::kMax:
      return ncclMax;
  }
  return ncclSum;
}

// The bytes of a factor in an element type, rounded to nearest; 16-bit types go over float.
struct Scalar {
  alignas(8) std::array<char, 8> bytes{};
  Scalar(double factor, DataType type) {
    const auto single = static_cast<float>(factor);
    if (type == DataType::kFloat64) {
      std::memcpy(bytes.data(), &factor, sizeof factor);
    } else if (type == DataType::kFloat32) {
      std::memcpy(bytes.data(), &single, sizeof single);
    } else if (type == DataType::kFloat16) {
      const __half half = __float2half_rn(single);
      std::memcpy(bytes.data(), &half, sizeof half);
    } else {
      const uint32_t wide = std::bit_cast<uint32_t>(single);
      const auto brain = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
      std::memcpy(bytes.data(), &brain, sizeof brain);
    }
  }
};

class LoadedNccl final : public Nccl {
 public:
  LoadedNccl(const NcclFunctions& functions, int version) : f_(functions) {
    features_.version = version;
    features_.shrink = f_.ncclCommShrink != nullptr && version >= kShrinkVersion;
    features_.revoke = f_.ncclCommRevoke != nullptr && version >= kRevokeVersion;
    features_.grow =
        f_.ncclCommGrow != nullptr && f_.ncclCommGetUniqueId != nullptr && version >= kGrowVersion;
    const char* sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    features_.sharing =
        version >= kSharingVersion && sharing != nullptr && std::string(sharing) == "1";
  }
  // The library stays loaded: its threads may outlive what we know of.

  const NcclFeatures& features() const override { return features_; }
  bool Knows(DataType type) const override { return TypeOf(type).has_value(); }

  Result<NcclId> NewId() override {
    ncclUniqueId id;
    if (Status s = Check("ncclGetUniqueId", f_.ncclGetUniqueId(&id)); !s.ok()) return s.error();
    return std::bit_cast<NcclId>(id);
  }

  Result<Comm> Init(int ranks, const NcclId& id, int rank) override {
    auto comm = std::make_shared<Communicator>();
    ncclConfig_t config = Config();
    return Formed("ncclCommInitRankConfig", comm,
                  f_.ncclCommInitRankConfig(&comm->handle, ranks, std::bit_cast<ncclUniqueId>(id),
                                            rank, &config));
  }

  Result<Comm> Shrink(const Comm& parent, std::vector<int> excluded, bool abort) override {
    auto comm = std::make_shared<Communicator>();
    comm->parent = parent;
    comm->excluded = std::move(excluded);
    const int count = static_cast<int>(comm->excluded.size());
    const int flags = abort ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT;
    ncclConfig_t config = Config();
    return Formed("ncclCommShrink", comm,
                  f_.ncclCommShrink(parent->Handle(), comm->excluded.data(), count, &comm->handle,
                                    &config, flags));
  }

  Result<NcclId> NewGrowId(const Comm& parent) override {
    ncclUniqueId id;
    Status s = Check("ncclCommGetUniqueId", f_.ncclCommGetUniqueId(parent->Handle(), &id));
    if (!s.ok()) return s.error();
    return std::bit_cast<NcclId>(id);
  }

  Result<Comm> Grow(const Comm& parent, int ranks, const NcclId* id, int rank) override {
    auto comm = std::make_shared<Communicator>();
    comm->parent = parent;
    ncclConfig_t config = Config();
    if (id != nullptr) comm->id = std::bit_cast<ncclUniqueId>(*id);
    return Formed("ncclCommGrow", comm,
                  f_.ncclCommGrow(parent ? parent->Handle() : nullptr, ranks,
                                  id != nullptr ? &comm->id : nullptr, parent ? -1 : rank,
                                  &comm->handle, &config));
  }

  Result<bool> Ready(const Comm& comm) override {
    ncclComm_t handle = comm->Handle();
    if (comm->parent) {
      Result<bool> parent = Ready(comm->parent);
      if (!parent.ok() || !*parent) return parent;
      handle = comm->Handle();
      if (handle != nullptr) comm->parent.reset();  // It has served.
    }
    if (handle == nullptr) return false;
    ncclResult_t state = ncclSuccess;
    Status s = Check("ncclCommGetAsyncError", f_.ncclCommGetAsyncError(handle, &state));
    if (!s.ok()) return s.error();
    if (state == ncclInProgress) return false;
    if (s = Check("the communicator", state, handle); !s.ok()) return s.error();
    return true;
  }

  Status Revoke(const Comm& comm) override {
    return Check("ncclCommRevoke", f_.ncclCommRevoke(comm->Handle(), NCCL_REVOKE_DEFAULT));
  }

  Status Abort(const Comm& comm) override {
    if (std::exchange(comm->ended, true)) return Status::Ok();
    ncclComm_t handle = comm->Handle();
    comm->parent.reset();
    if (handle == nullptr) {
      // Still being formed; the parent's abort ends that, and then the handle is written.
      std::lock_guard lock(mu_);
      unformed_.push_back(comm);
      return Status::Ok();
    }
    return Check("ncclCommAbort", f_.ncclCommAbort(handle));
  }

  Status Begin() override { return Check("ncclGroupStart", f_.ncclGroupStart()); }
  Status End() override { return Check("ncclGroupEnd", f_.ncclGroupEnd()); }

  Status AllReduce(const void* in, void* out, size_t count, const Reduction& reduction,
                   const Comm& comm, Stream stream) override {
    const Result<ncclRedOp_t> op = Prepare(reduction, comm);
    if (!op.ok()) return op.error();
    return Check("ncclAllReduce", f_.ncclAllReduce(in, out, count, *TypeOf(reduction.type), *op,
                                                   comm->Handle(), Cuda(stream)));
  }
  Status Reduce(const void* in, void* out, size_t count, const Reduction& reduction, int root,
                const Comm& comm, Stream stream) override {
    const Result<ncclRedOp_t> op = Prepare(reduction, comm);
    if (!op.ok()) return op.error();
    return Check("ncclReduce", f_.ncclReduce(in, out, count, *TypeOf(reduction.type), *op, root,
                                             comm->Handle(), Cuda(stream)));
  }
  Status ReduceScatter(const void* in, void* out, size_t count, const Reduction& reduction,
                       const Comm& comm, Stream stream) override {
    const Result<ncclRedOp_t> op = Prepare(reduction, comm);
    if (!op.ok()) return op.error();
    return Check("ncclReduceScatter", f_.ncclReduceScatter(in, out, count, *TypeOf(reduction.type),
                                                           *op, comm->Handle(), Cuda(stream)));
  }
  Status Broadcast(void* data, size_t bytes, int root, const Comm& comm, Stream stream) override {
    return Check("ncclBroadcast", f_.ncclBroadcast(data, data, bytes, ncclUint8, root,
                                                   comm->Handle(), Cuda(stream)));
  }
  Status AllGather(const void* in, void* out, size_t bytes, const Comm& comm,
                   Stream stream) override {
    return Check("ncclAllGather",
                 f_.ncclAllGather(in, out, bytes, ncclUint8, comm->Handle(), Cuda(stream)));
  }
  Status Send(const void* data, size_t bytes, int peer, const Comm& comm, Stream stream) override {
    return Check("ncclSend",
                 f_.ncclSend(data, bytes, ncclUint8, peer, comm->Handle(), Cuda(stream)));
  }
  Status Receive(void* data, size_t bytes, int peer, const Comm& comm, Stream stream) override {
    return Check("ncclRecv",
                 f_.ncclRecv(data, bytes, ncclUint8, peer, comm->Handle(), Cuda(stream)));
  }

 private:
  static cudaStream_t Cuda(Stream stream) { return static_cast<cudaStream_t>(stream); }

  [[nodiscard]] ncclConfig_t Config() const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = ConfigBytes(features_.version);
    config.version = static_cast<unsigned>(std::min(features_.version, NCCL_VERSION_CODE));
    config.blocking = 0;
    return config;
  }

  [[nodiscard]] Status Check(const char* what, ncclResult_t result,
                             ncclComm_t comm = nullptr) const {
    if (result == ncclSuccess || result == ncclInProgress) return Status::Ok();
    std::string text = std::string("NCCL: ") + what + ": " + f_.ncclGetErrorString(result);
    const char* more = f_.ncclGetLastError != nullptr ? f_.ncclGetLastError(comm) : nullptr;
    if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
    return Error{ErrorCode::kUnavailable, text};
  }

  Result<Comm> Formed(const char* what, const Comm& comm, ncclResult_t result) {
    if (Status s = Check(what, result); !s.ok()) return s.error();
    return comm;
  }

  Result<ncclRedOp_t> Prepare(const Reduction& reduction, const Comm& comm) {
    if (!reduction.factor) return OpOf(reduction);
    const auto key = std::make_pair(reduction.type, *reduction.factor);
    const auto known = comm->scaled_sums.find(key);
    if (known != comm->scaled_sums.end()) return known->second;
    if (comm->scaled_sums.size() >= kScaledSumsMax) {
      for (const auto& [old, op] : comm->scaled_sums) {
        Status s = Check("ncclRedOpDestroy", f_.ncclRedOpDestroy(op, comm->Handle()));
        if (!s.ok()) return s.error();
      }
      comm->scaled_sums.clear();
    }
    ncclRedOp_t op = ncclSum;
    Scalar scalar(*reduction.factor, reduction.type);
    Status s = Check("ncclRedOpCreatePreMulSum",
                     f_.ncclRedOpCreatePreMulSum(&op, scalar.bytes.data(), *TypeOf(reduction.type),
                                                 ncclScalarHostImmediate, comm->Handle()));
    if (!s.ok()) return s.error();
    comm->scaled_sums[key] = op;
    return op;
  }

  const NcclFunctions f_;
  NcclFeatures features_;
  std::mutex mu_;
  std::vector<Comm> unformed_;  // Guarded by mu_: NCCL may yet write their handles.
};

}  // namespace

Result<std::shared_ptr<Nccl>> LoadNccl() {
  const char* off = std::getenv("TROUPE_NCCL");
  if (off != nullptr && std::string(off) == "0") {
    return Error{ErrorCode::kUnavailable, "NCCL is turned off by TROUPE_NCCL=0"};
  }
  const char* named = std::getenv("TROUPE_NCCL_LIBRARY");
  const char* name = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kUnavailable,
                 std::string("there is no NCCL: ") + dlerror() +
                     "; install it, or set TROUPE_NCCL_LIBRARY to its path"};
  }
  NcclFunctions functions;
  const std::string missing = ResolveNccl(library, functions);
  int version = 0;
  if (functions.ncclGetVersion != nullptr) (void)functions.ncclGetVersion(&version);
  if (version < kNcclVersionMin || !missing.empty()) {
    dlclose(library);
    const std::string found = version == 0      ? "has no version"
                              : version < 10000 ? "is older than 2.9"
                                                : VersionText(version);
    return Error{ErrorCode::kUnavailable, std::string("NCCL in ") + name + ": " + found +
                                              (missing.empty() ? "" : ", without " + missing) +
                                              "; wanted is " + VersionText(kNcclVersionMin) +
                                              " or newer"};
  }
  return std::shared_ptr<Nccl>(std::make_shared<LoadedNccl>(functions, version));
}

}  // namespace troupe::groups
