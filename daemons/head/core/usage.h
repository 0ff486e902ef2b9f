// Usage: what each process of the cluster uses, as its node tells it.
//
// Thread: the head's loop.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemons/protocol/messages.h"
#include "runtime/clock.h"

namespace troupe::daemons {

class Usage {
 public:
  static constexpr Duration kWindow = seconds(1);  // Over which a rate is taken, or a little more.

  struct Entry {
    std::string node;
    int64_t pid = 0;
    double cores = 0;  // CPU time by time; 0 until there has been a window.
    uint64_t rss_bytes = 0;
    uint64_t from_ms = 0;  // Its CPU time when the window began.
    Time from{};
  };

  // All that runs on the node.
  void OnNode(Time now, const NodeHello& hello);
  void OnNodeGone(const std::string& node);
  [[nodiscard]] const std::map<std::string, Entry>& processes() const { return processes_; }

 private:
  std::map<std::string, Entry> processes_;
};

}  // namespace troupe::daemons
