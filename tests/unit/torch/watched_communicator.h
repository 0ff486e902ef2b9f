// A communicator whose transfers a test watches, holds back and breaks.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/forwarding_communicator.h"

namespace troupe::elastic {

using namespace troupe::groups;

// Transfers of more than a few bytes are told beforehand, on the lane; an error is theirs.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  struct Moved {
    std::vector<int> sources;
    uint64_t sent = 0;
  };
  using ForwardingCommunicator::ForwardingCommunicator;
  Result<uint64_t> Transfer(std::span<const int> sources, std::span<const int> receivers,
                            std::span<const MutableBuffer> buffers) override {
    ++transfers;
    size_t bytes = 0;
    for (const MutableBuffer& buffer : buffers) bytes += buffer.bytes;
    if (bytes < (size_t{1} << 20))
      return ForwardingCommunicator::Transfer(sources, receivers, buffers);
    if (before_tensors) {
      if (Status s = before_tensors(); !s.ok()) return s.error();
    }
    Result<uint64_t> sent = ForwardingCommunicator::Transfer(sources, receivers, buffers);
    if (sent.ok()) tensors.push_back({{sources.begin(), sources.end()}, *sent});
    if (sent.ok() && after_tensors) after_tensors();
    return sent;
  }
  std::function<Status()> before_tensors;
  std::function<void()> after_tensors;
  std::vector<Moved> tensors;  // Of those that ended well.
  int transfers = 0;
};

}  // namespace troupe::elastic
