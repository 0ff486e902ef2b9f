// StateLoads: what actors have saved, on its way from the store to their next lives.
//
// When a host is lost, all its actors begin anew at once. Their states are read one at a time, and
// of large ones only so many are on their way as fit: the next is read when a process says that it
// has its own, or has ended.
// Thread: the loop's. Limits: kLoadsBytesMax, and one more state.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"

namespace troupe::daemons {

inline constexpr size_t kLoadsBytesMax = size_t{16} << 20;
inline constexpr Duration kLoadIsTakenWithin = seconds(10);  // Then others need not wait for it.
inline constexpr Duration kLoadAgain = seconds(2);           // A large one; then twice as long.

class StateLoads {
 public:
  // Nothing was saved, if there is no value.
  using Give = std::function<void(const std::string& process, std::optional<std::string> value)>;

  StateLoads(EventLoop* loop, Lane* lane, Store* store, Give give);
  StateLoads(const StateLoads&) = delete;
  StateLoads& operator=(const StateLoads&) = delete;

  // The process needs what is under this key. It asks again until it has it.
  void Ask(const std::string& process, const std::string& key);
  // It has it, or has ended.
  void Done(const std::string& process);
  [[nodiscard]] size_t bytes() const { return bytes_; }  // Of large ones that are on their way.

 private:
  struct Load {
    std::string key;
    bool given = false;
    bool large = false;
    size_t bytes = 0;  // Counted in bytes_.
    Time again_at{};   // Before, its asking means nothing.
    Duration again = kLoadAgain;
    uint64_t number = 0;  // Of this time.
  };

  void ReadNext();
  void OnRead(const std::string& process, Result<std::optional<std::string>> read);
  void Uncount(Load& load);

  EventLoop* const loop_;
  Lane* const lane_;
  Store* const store_;
  const Give give_;
  std::map<std::string, Load> loads_;  // By process.
  std::deque<std::string> order_;      // Of those that wait.
  bool reading_ = false;
  size_t bytes_ = 0;
  uint64_t last_number_ = 0;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
