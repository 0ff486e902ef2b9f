// How a state comes from those who hold it to those who lack it, in one view.
//
// The source sends a few bytes of what there is, then plain values, then tensors. Those of a large
// state come from one more holder per other host as well, if it holds the very same bits: it tells
// the source a hash of them, and learns whether it is to send. Who receives learns it from the
// source, too, because only holders know how large the state is.
// Thread: the training thread.
// Limits: kLargeStateBytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collective_groups/membership/group_agent.h"
#include "collective_groups/torch/internal/snapshot.h"
#include "runtime/result.h"

namespace troupe::elastic::internal {

inline constexpr size_t kLargeStateBytes = size_t{16} << 20;  // Less is sent in milliseconds.

// A pure function of the view.
struct Route {
  int source = 0;
  std::vector<int> receivers;
  std::vector<int> helpers;  // The oldest holder on each host but the source's.
  bool newcomers = false;    // The group has trained, and no receiver holds any state of it.
};
[[nodiscard]] Route RouteOf(const groups::View& view);

// What the source says first. All of it travels as one array.
struct Lead {
  uint64_t version = 0;
  uint64_t plain_bytes = 0;
  uint64_t sources = 0;  // Ranks that send tensors, a bit each; the source is one of them.
  uint64_t beside_training = 0;
};

// A state that is being received.
struct Incoming {
  Lead lead;
  Snapshot snapshot;  // Its tensors have no memory before StartTensors.
};

class StateTransfer {
 public:
  using Handle = groups::GroupAgent::Handle;

  // `limit`: of each wait. Past it this thread stays where it is, since the memory is in use.
  StateTransfer(groups::GroupAgent* group, const groups::ActiveView& active, Duration limit);

  [[nodiscard]] const Route& route() const { return route_; }
  [[nodiscard]] bool receives() const;

  // For holders. Begins to send the tensors, which must stay until the handle was waited for; no
  // handle if this member has no part in it. Errors as of GroupAgent::Wait.
  Result<std::optional<Handle>> Send(uint64_t version, const Snapshot& snapshot,
                                     bool beside_training);
  // For receivers: everything but the tensors; then those, into memory of their own. kCorrupt for
  // what cannot be a state.
  Result<Incoming> ReceivePlain();
  Result<Handle> StartTensors(Incoming& incoming);

 private:
  Status Move(const std::vector<int>& sources, const std::vector<int>& receivers, void* data,
              size_t bytes);
  // On the source: a bit for each rank that sends; on a helper: the same, as the source says.
  Result<uint64_t> ChooseSources(const Snapshot& snapshot);

  groups::GroupAgent* const group_;
  const int rank_;
  const Route route_;
  const Duration limit_;
};

[[nodiscard]] size_t BytesOf(const std::vector<at::Tensor>& tensors);

}  // namespace troupe::elastic::internal
