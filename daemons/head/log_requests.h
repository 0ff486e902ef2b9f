// LogRequests: questions of drivers for the end of a log, on their way to a node and back.
//
//   asked --the node's answer--> answered
//     +----no answer in time, or the node is gone--> refused
//
// A driver repeats its question until it is answered; the node is asked again if it is silent, so
// that a lost frame costs a moment. Asking twice is harmless: nothing is changed by it.
// Thread: the head's loop.
// Invariants: LR-1 each question is answered within kLogLimit, or the driver has gone.
// Limits: kLogRequestsMax open questions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "daemons/protocol/messages.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kLogRequestsMax = 1000;
inline constexpr Duration kLogLimit = seconds(5);
inline constexpr Duration kLogAskAgain = milliseconds(500);

class LogRequests {
 public:
  struct Callbacks {
    // Why the node cannot be asked; Ok if it can.
    std::function<Status(const std::string& node)> reachable;
    std::function<void(const std::string& node, const ReadLog& read)> ask;
    std::function<void(const std::string& driver, uint64_t request, const Status& status,
                       const std::string& json)>
        reply;
  };

  explicit LogRequests(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void OnQuery(Time now, const std::string& driver, uint64_t request, const std::string& node,
               const std::string& log, uint32_t lines);
  void OnTail(const LogTail& tail);
  void OnTick(Time now);

 private:
  using Key = std::pair<std::string, uint64_t>;  // Driver, and its number of the question.
  struct Open {
    std::string node;
    ReadLog read;
    Time deadline;
    Time ask_at;
  };

  void Refuse(const Key& key, const Error& why);

  const Callbacks callbacks_;
  std::map<Key, Open> open_;
  std::map<uint64_t, Key> by_number_;
  uint64_t next_ = 1;
};

}  // namespace troupe::daemons
