// WaitingNotes: tells a person what has waited for room for long, once per reason.
//
// Whoever waits for the same reason is one line; numbers and ids in a reason do not make it another
// one, as they change while others come and go. A reason may be told again when nobody has waited
// for it.
// Thread: one at a time. Reads no clock.
// Invariants: WN-1 nothing is told of what has waited for less than kTellAfter. WN-2 a reason is
// told once as long as something waits for it.
// Limits: kNotesMax; what waits beyond them is not told.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr Duration kTellAfter = seconds(10);
inline constexpr size_t kNotesMax = 10'000;

class WaitingNotes {
 public:
  // `waiting`: all that waits now, "Trainer 5f0c", and why. The lines that are due, if any.
  [[nodiscard]] std::vector<std::string> Update(Time now,
                                                const std::map<std::string, std::string>& waiting);

 private:
  std::map<std::string, Time> since_;
  std::set<std::string> told_;  // Reasons, without numbers and ids.
};

}  // namespace troupe::actors
