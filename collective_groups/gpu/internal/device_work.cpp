#include "collective_groups/gpu/internal/device_work.h"

#include <algorithm>
#include <numeric>

namespace troupe::groups {
namespace {

// Parts of scratch memory begin where NCCL's widest loads may.
constexpr size_t kAlignment = 256;

size_t Reserve(DeviceWork& work, size_t bytes) {
  const size_t offset = work.scratch_bytes;
  work.scratch_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

// Where NCCL finds what is to go in.
Place Source(DeviceWork& work, bool direct, const void* data, size_t bytes) {
  if (direct) return Place::At(data);
  const Place place = Place::InScratch(Reserve(work, bytes));
  work.before.push_back({place, Place::At(data), bytes});
  return place;
}

// Where NCCL puts what is to come out.
Place Target(DeviceWork& work, bool direct, void* data, size_t bytes) {
  if (direct) return Place::At(data);
  const Place place = Place::InScratch(Reserve(work, bytes));
  work.after.push_back({Place::At(data), place, bytes});
  return place;
}

Nccl::Op OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Nccl::Op::kSum;
    case ReduceOp::kMin:
      return Nccl::Op::kMin;
    case ReduceOp::kMax:
      return Nccl::Op::kMax;
    case ReduceOp::kProduct:
      return Nccl::Op::kProduct;
  }
  return Nccl::Op::kSum;
}

// What all ranks answer alike, whatever their own prescale is.
bool IsScaled(const ReduceArguments& a) {
  return a.average || a.weighted || a.prescale != 1.0 || a.postscale != 1.0;
}

Nccl::Reduction ReductionOf(const ReduceArguments& arguments, int ranks) {
  Nccl::Reduction reduction{arguments.elements.type, OpOf(arguments.elements.op), std::nullopt};
  if (IsScaled(arguments)) {
    reduction.factor = arguments.prescale * arguments.postscale / (arguments.average ? ranks : 1);
  }
  return reduction;
}

// Calls `start` between Begin and End, which must come even after an error.
template <class Start>
Status Together(Nccl& nccl, Start&& start) {
  if (Status s = nccl.Begin(); !s.ok()) return s;
  Status started = start();
  Status ended = nccl.End();
  return started.ok() ? ended : started;
}

}  // namespace

bool NcclReduces(const Nccl& nccl, const ReduceArguments& arguments) {
  const DataType type = arguments.elements.type;
  if (!nccl.Knows(type)) return false;
  const bool floating = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                        type == DataType::kFloat32 || type == DataType::kFloat64;
  return !IsScaled(arguments) || (floating && arguments.elements.op == ReduceOp::kSum);
}

DeviceWork AllReduceWork(bool direct, std::span<const ConstBuffer> in,
                         std::span<const MutableBuffer> out, const ReduceArguments& arguments,
                         int ranks) {
  DeviceWork work;
  if (arguments.count == 0) return work;
  const size_t bytes = arguments.count * ElementBytes(arguments.elements.type);
  Place source;
  Place target;
  if (direct && in.size() == 1) {
    source = Place::At(in[0].data);
  } else {
    source = Place::InScratch(Reserve(work, bytes));
    size_t at = 0;
    for (const ConstBuffer& piece : in) {
      work.before.push_back({source + at, Place::At(piece.data), piece.bytes});
      at += piece.bytes;
    }
  }
  if (direct && out.size() == 1) {
    target = Place::At(out[0].data);
  } else {
    const bool in_place = !work.before.empty();
    target = in_place ? source : Place::InScratch(Reserve(work, bytes));
    size_t at = 0;
    for (const MutableBuffer& piece : out) {
      work.after.push_back({Place::At(piece.data), target + at, piece.bytes});
      at += piece.bytes;
    }
  }
  work.launch = [=, count = arguments.count, reduction = ReductionOf(arguments, ranks)](
                    Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
    return nccl.AllReduce(source.In(scratch), target.In(scratch), count, reduction, comm, stream);
  };
  return work;
}

DeviceWork ReduceScatterWork(bool direct, const void* in, void* out, std::span<const size_t> counts,
                             const ReduceArguments& arguments, int me) {
  DeviceWork work;
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (total == 0) return work;
  const size_t width = ElementBytes(arguments.elements.type);
  const Place source = Source(work, direct, in, total * width);
  const Place target = Target(work, direct, out, counts[static_cast<size_t>(me)] * width);
  const Nccl::Reduction reduction = ReductionOf(arguments, static_cast<int>(counts.size()));
  if (std::all_of(counts.begin(), counts.end(), [&](size_t c) { return c == counts[0]; })) {
    work.launch = [=, count = counts[0]](Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream,
                                         char* scratch) {
      return nccl.ReduceScatter(source.In(scratch), target.In(scratch), count, reduction, comm,
                                stream);
    };
    return work;
  }
  work.launch = [=, shares = std::vector<size_t>(counts.begin(), counts.end())](
                    Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
    return Together(nccl, [&] {
      const char* block = source.In(scratch);
      for (size_t root = 0; root < shares.size(); ++root) {
        if (shares[root] == 0) continue;
        Status s = nccl.Reduce(block, target.In(scratch), shares[root], reduction,
                               static_cast<int>(root), comm, stream);
        if (!s.ok()) return s;
        block += shares[root] * width;
      }
      return Status::Ok();
    });
  };
  return work;
}

DeviceWork BroadcastWork(bool direct, void* data, size_t bytes, int root, int me) {
  DeviceWork work;
  if (bytes == 0) return work;
  const Place place =
      me == root ? Source(work, direct, data, bytes) : Target(work, direct, data, bytes);
  work.launch = [=](Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
    return nccl.Broadcast(place.In(scratch), bytes, root, comm, stream);
  };
  return work;
}

DeviceWork ExchangeWork(bool direct, std::span<const OutgoingBlock> outgoing,
                        std::span<const IncomingBlock> incoming) {
  struct Block {
    Place place;
    size_t bytes;
    int peer;
  };
  DeviceWork work;
  std::vector<Block> out;
  std::vector<Block> in;
  // An empty block is empty on both sides.
  for (const OutgoingBlock& block : outgoing) {
    if (block.bytes == 0) continue;
    out.push_back({Source(work, direct, block.data, block.bytes), block.bytes, block.peer});
  }
  for (const IncomingBlock& block : incoming) {
    if (block.bytes == 0) continue;
    in.push_back({Target(work, direct, block.data, block.bytes), block.bytes, block.peer});
  }
  if (out.empty() && in.empty()) return work;
  work.launch = [out = std::move(out), in = std::move(in)](Nccl& nccl, const Nccl::Comm& comm,
                                                           Nccl::Stream stream, char* scratch) {
    return Together(nccl, [&] {
      for (const Block& block : out) {
        Status s = nccl.Send(block.place.In(scratch), block.bytes, block.peer, comm, stream);
        if (!s.ok()) return s;
      }
      for (const Block& block : in) {
        Status s = nccl.Receive(block.place.In(scratch), block.bytes, block.peer, comm, stream);
        if (!s.ok()) return s;
      }
      return Status::Ok();
    });
  };
  return work;
}

DeviceWork AllGatherWork(bool direct, const void* in, void* out,
                         std::span<const size_t> bytes_per_rank, int me) {
  DeviceWork work;
  const size_t total = std::accumulate(bytes_per_rank.begin(), bytes_per_rank.end(), size_t{0});
  if (total == 0) return work;
  const size_t mine = bytes_per_rank[static_cast<size_t>(me)];
  const Place target = Target(work, direct, out, total);
  if (std::all_of(bytes_per_rank.begin(), bytes_per_rank.end(),
                  [&](size_t bytes) { return bytes == mine; })) {
    const Place source = Source(work, direct, in, mine);
    work.launch = [=](Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
      return nccl.AllGather(source.In(scratch), target.In(scratch), mine, comm, stream);
    };
    return work;
  }
  // Each block goes to its place in the result, and from there to everybody.
  const size_t before =
      std::accumulate(bytes_per_rank.begin(), bytes_per_rank.begin() + me, size_t{0});
  const bool there = direct && in == static_cast<const char*>(out) + before;
  if (mine > 0 && !there) work.before.push_back({target + before, Place::At(in), mine});
  work.launch = [=, sizes = std::vector<size_t>(bytes_per_rank.begin(), bytes_per_rank.end())](
                    Nccl& nccl, const Nccl::Comm& comm, Nccl::Stream stream, char* scratch) {
    return Together(nccl, [&] {
      char* block = target.In(scratch);
      for (size_t root = 0; root < sizes.size(); ++root) {
        if (sizes[root] == 0) continue;
        Status s = nccl.Broadcast(block, sizes[root], static_cast<int>(root), comm, stream);
        if (!s.ok()) return s;
        block += sizes[root];
      }
      return Status::Ok();
    });
  };
  return work;
}

}  // namespace troupe::groups
