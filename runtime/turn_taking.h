// TurnTaking: which thread runs a loop that several may run, one at a time.
//
// A loop has a thread of its own, its keeper. A thread that would otherwise sleep until the loop
// has done something for it may run it meanwhile: a helper. What arrives is then handled on the
// thread that waits for it, and nobody has to be woken. The keeper stands back while there are
// helpers, and comes back when none has been there for kKeeperPatience, say because the helper runs
// somebody's code.
// Thread: any.
// Invariants: TT-1 one thread has the turn. TT-2 while the loop is not stopped and nobody helps,
// the keeper has the turn, or will have it within its patience. TT-3 a keeper that has been told to
// stand back gives the turn to whoever told it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kKeeperPatience = milliseconds(1);

class TurnTaking {
 public:
  // `wake` ends the poll of whoever has the turn.
  explicit TurnTaking(std::function<void()> wake) : wake_(std::move(wake)) {}

  // A helper's. False if there is another one, or the loop has stopped. Waits for the keeper, which
  // lets go at once.
  [[nodiscard]] bool Help();
  void EndHelp();
  // For something short, if nobody has the turn.
  [[nodiscard]] bool TryTurn();
  void EndTurn();
  // The keeper's: waits until it may run the loop; then runs it until StandBack().
  void Keep();
  void EndKeep();
  [[nodiscard]] bool StandBack() const { return helpers_.load() > 0; }
  // Somebody waits for what the loop does without helping.
  void Park() { parked_.fetch_add(1); }
  void Unpark() { parked_.fetch_sub(1); }
  void Stop();

  [[nodiscard]] bool Mine() const { return owner_.load() == std::this_thread::get_id(); }

 private:
  void Take() { owner_.store(std::this_thread::get_id()); }
  void LetGo() { owner_.store(std::thread::id()); }

  const std::function<void()> wake_;
  std::mutex turn_;
  std::atomic<std::thread::id> owner_;
  std::atomic<bool> helping_{false};  // There is one helper at most.
  std::atomic<int> helpers_{0};       // It, and who waits to be it.
  std::atomic<int> parked_{0};
  std::atomic<int64_t> last_help_{0};
  std::atomic<bool> keeping_{false};
  std::atomic<bool> asleep_{false};  // The keeper, until it is notified.
  std::atomic<bool> stopped_{false};
  std::mutex keeper_mu_;
  std::condition_variable keeper_wake_;
};

}  // namespace troupe
