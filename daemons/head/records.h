// Records: what a head keeps in the store so that the next one can go on.
//
// Written in the order in which it was asked for, of each key the newest. What the store does not
// take, because it is away, is offered to it again until it does; a store that comes back empty
// is noticed by the mark that it has lost, and gets everything anew. An answer that promises
// something leaves when that is kept (WhenKept), so that no head forgets what another has promised.
// A value larger than the store takes is kept in parts, which Load puts together again.
// Thread: the loop's; the lane runs one batch at a time.
// Limits: kWaitersMax answers wait, more are dropped: who has asked asks again. kPartBytes of one
// value in one piece.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/event_loop.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"

namespace troupe::daemons {

class Records {
 public:
  static constexpr size_t kWaitersMax = 100'000;
  static constexpr size_t kPartBytes = size_t{4} << 20;
  static constexpr Duration kRetry = milliseconds(50);
  static constexpr Duration kLook = seconds(1);  // Between two looks for the mark.

  // `refill` is to Put all there is.
  Records(EventLoop* loop, Lane* lane, Store* store, Duration ttl, std::function<void()> refill);
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // All whose keys begin with `prefix`, whole; what is not whole is left out, and logged.
  [[nodiscard]] static Result<std::map<std::string, std::string>> Load(Store& store,
                                                                       const std::string& prefix);
  void Put(const std::string& key, std::string value);
  void Delete(const std::string& key);
  void DeletePrefix(const std::string& prefix);
  // `then` runs when all that was asked for before is kept: now, if it is.
  void WhenKept(std::function<void()> then);
  // The same; of those of one name the first runs, so that repeated requests do not add up.
  void WhenKept(const std::string& name, std::function<void()> then);
  // As Mark, of records that a head before has marked.
  void Watch();
  void Mark();  // From now on it is noticed, within kLook or so, if the store loses them.

 private:
  enum class Kind { kPut, kDelete, kDeletePrefix };
  struct Write {
    Kind kind;
    std::string key;
    std::string value;
  };
  using Batch = std::list<Write>;

  void Ask(Write write);
  void Begin();
  void Written(Batch rest, uint64_t upto, const Status& status, bool lost);
  void Return(Batch rest);
  void Refill();
  void RunWaiters();
  void LookAgain();
  void Look();
  [[nodiscard]] static Status Apply(Store& store, const Write& write, Duration ttl);
  [[nodiscard]] static Status PutParts(Store& store, const Write& write, Duration ttl);

  EventLoop* const loop_;
  Lane* const lane_;
  Store* const store_;
  const Duration ttl_;
  const std::function<void()> refill_;
  Batch queue_;
  std::unordered_map<std::string, Batch::iterator> places_;  // In the queue, of keys.
  uint64_t asked_ = 0;                                       // Numbers of writes.
  uint64_t kept_ = 0;                                        // All up to this one are.
  bool writing_ = false;
  bool away_ = false;
  bool refilling_ = false;
  Time look_at_ = Time::Never();  // For the mark; Never: it was not made yet.
  std::multimap<uint64_t, std::pair<std::string, std::function<void()>>> waiters_;
  std::unordered_map<std::string, uint64_t> named_;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
