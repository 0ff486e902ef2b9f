// HeadQueue: what the parts of the head have for one another, for peers and for the store, as data.
//
// A part that has decided something puts a step here for each who has to know. They are taken one
// after the other, so that nothing happens inside of what asked for it: no part calls another, and
// none is entered twice.
// Thread: one. Reads no clock: now() is that of the step that is dealt with.
// Invariants: HQ-1 steps are taken in the order in which they were put. HQ-2 one that waits until
// records are kept is taken up when no other is left: it waits for all that came of what caused it.
// HQ-3 one that has its time is not taken before.
// Limits: none of its own; what frames and timers cause is finite, and is dealt with before the
// next one.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "daemons/head/core/head_effects.h"
#include "runtime/clock.h"

namespace troupe::daemons {

class HeadQueue {
 public:
  struct Kept {
    std::string name;
    HeadStep step;
  };

  HeadQueue();
  ~HeadQueue();
  HeadQueue(const HeadQueue&) = delete;
  HeadQueue& operator=(const HeadQueue&) = delete;

  // `Step`: HeadStep, or one of those that it can be. Defined in the source for each of them: what
  // a variant of so many types is made of takes seconds to compile wherever it is.
  template <class Step>
  void Put(Step step);
  // To be taken when all records are kept that will have been put by then. Of those of one name
  // that is not empty the first counts.
  template <class Step>
  void PutWhenKept(const std::string& name, Step step);
  template <class Step>
  void PutAt(Time when, Step step);
  // For the log.
  template <class... Parts>
  void Note(const Parts&... parts) {
    PutLog(false, parts...);
  }
  template <class... Parts>
  void Warn(const Parts&... parts) {
    PutLog(true, parts...);
  }

  // The next one, by HQ-1 and HQ-3.
  [[nodiscard]] std::optional<HeadStep> Take(Time now);
  // The next one that is to wait for records, when Take has none.
  [[nodiscard]] std::optional<Kept> TakeWhenKept();
  // When Take has one again if nothing is put; Never: then it has none.
  [[nodiscard]] Time NextAt() const {
    return timed_.empty() ? Time::Never() : timed_.begin()->first;
  }
  [[nodiscard]] Time now() const { return now_; }
  void SetNow(Time now) { now_ = now; }

 private:
  template <class... Parts>
  void PutLog(bool warning, const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    Put(step::Log{warning, text.str()});
  }

  Time now_{};
  std::deque<HeadStep> steps_;
  std::deque<Kept> kept_;
  std::multimap<Time, HeadStep> timed_;
};

}  // namespace troupe::daemons
