// StateSaves: what actors have saved, on its way into the store, one at a time.
//
// A store that hangs holds up whoever waits behind it on its lane, so no more than one save is
// there; of an actor that saves again meanwhile the newest waits. A small state comes by itself; a
// larger one is offered, and sent for when there is room, in the order of the offers. So however
// many actors save at once, no more than the room is on its way to here. What has no room, or was
// not sent for, is not taken: who has it, offers it again.
// Thread: the loop's. Limits: kSavesBytesMax and kDirectSavesBytesMax; an offer per actor.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"

namespace troupe::daemons {

inline constexpr size_t kSavesBytesMax = size_t{16} << 20;       // Sent for, and those that came.
inline constexpr size_t kDirectSavesBytesMax = size_t{4} << 20;  // Of those that come unasked.
inline constexpr Duration kSaveComesWithin = seconds(10);        // Then the room is for another.

class StateSaves {
 public:
  using Version = std::pair<uint64_t, uint64_t>;  // Incarnation and version.
  using Done = std::function<void(const Status&)>;
  using SendFor = std::function<bool()>;  // Whether somebody is there who was asked.

  StateSaves(EventLoop* loop, Lane* lane, Store* store, Duration ttl);
  StateSaves(const StateSaves&) = delete;
  StateSaves& operator=(const StateSaves&) = delete;

  // Calls `send_for` when there is room, at once or later; again if what was sent for is offered.
  void Offer(const std::string& key, Version version, size_t bytes, SendFor send_for);
  // Whether what came is to be added: it was sent for, or is small, not here yet, and has room.
  [[nodiscard]] bool Takes(const std::string& key, Version version, size_t bytes) const;
  void Add(const std::string& key, Version version, std::string value, Done done);
  [[nodiscard]] size_t bytes() const { return large_bytes_ + direct_bytes_; }  // Promised ones too.

 private:
  struct Save {
    Version version;
    std::string value;
    Done done;
    bool large = false;
  };
  struct Offered {
    Version version;
    size_t bytes = 0;
    SendFor send_for;
  };
  struct Promise {
    Version version;
    size_t bytes = 0;
    uint64_t number = 0;
  };

  [[nodiscard]] bool Has(const std::string& key, Version version) const;
  [[nodiscard]] size_t& Held(const Save& save) { return save.large ? large_bytes_ : direct_bytes_; }
  void SendForNext();
  void EndPromise(const std::string& key);
  void Begin();

  EventLoop* const loop_;
  Lane* const lane_;
  Store* const store_;
  const Duration ttl_;
  std::map<std::string, Offered> offered_;   // By key.
  std::deque<std::string> offer_order_;      // Of those.
  std::map<std::string, Promise> promises_;  // Sent for, and not here yet; by key.
  uint64_t promised_ = 0;
  std::map<std::string, Save> waiting_;  // By key.
  std::deque<std::string> order_;        // Of those.
  std::string written_;                  // The key of the one on the lane.
  Version writing_{};
  bool busy_ = false;
  size_t large_bytes_ = 0;  // With those promised.
  size_t direct_bytes_ = 0;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
