// StateSaves: what actors have saved, on its way into the store, one at a time.
//
// A store that hangs holds up whoever waits behind it on its lane, so no more than one save is
// there; of an actor that saves again meanwhile the newest waits. A repeat of what is here already
// costs nothing. What has no room is not taken: who has sent it, sends it again.
// Thread: the loop's. Limits: kSavesBytesMax, and one more state.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/blocking_lane.h"
#include "runtime/event_loop.h"
#include "runtime/store.h"

namespace troupe::daemons {

inline constexpr size_t kSavesBytesMax = size_t{16} << 20;

class StateSaves {
 public:
  using Version = std::pair<uint64_t, uint64_t>;  // Incarnation and version.
  using Done = std::function<void(const Status&)>;

  StateSaves(EventLoop* loop, BlockingLane* lane, Store* store, Duration ttl);
  ~StateSaves();
  StateSaves(const StateSaves&) = delete;
  StateSaves& operator=(const StateSaves&) = delete;

  // Whether it is to be offered: it is not here, and there is room.
  [[nodiscard]] bool Wants(const std::string& key, Version version, size_t bytes) const;
  void Add(const std::string& key, Version version, std::string value, Done done);
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  struct Save {
    Version version;
    std::string value;
    Done done;
  };

  void Begin();

  EventLoop* const loop_;
  BlockingLane* const lane_;
  Store* const store_;
  const Duration ttl_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<std::string, Save> waiting_;  // By key.
  std::deque<std::string> order_;        // Of those.
  std::string written_;                  // The key of the one on the lane.
  Version writing_{};
  bool busy_ = false;
  size_t bytes_ = 0;
};

}  // namespace troupe::daemons
