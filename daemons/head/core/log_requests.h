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

#include <map>
#include <string>
#include <utility>

#include "daemons/head/core/head_queue.h"
#include "daemons/protocol/messages.h"
#include "runtime/clock.h"
#include "runtime/result.h"
#include "scheduler/node_table.h"

namespace troupe::daemons {

inline constexpr size_t kLogRequestsMax = 1000;
inline constexpr Duration kLogLimit = seconds(5);
inline constexpr Duration kLogAskAgain = milliseconds(500);

class LogRequests {
 public:
  LogRequests(HeadQueue* queue, const NodeTable* nodes) : queue_(queue), nodes_(nodes) {}

  void OnQuery(const std::string& driver, uint64_t request, const std::string& node,
               const std::string& log, uint32_t lines);
  void OnTail(const LogTail& tail);
  void OnTick();

 private:
  using Key = std::pair<std::string, uint64_t>;  // Driver, and its number of the question.
  struct Open {
    std::string node;
    ReadLog read;
    Time deadline;
    Time ask_at;
  };

  // Why the node cannot be asked; Ok if it can.
  [[nodiscard]] Status Reachable(const std::string& node) const;
  void Ask(const std::string& node, const ReadLog& read);
  void Reply(const Key& key, const Status& status, const std::string& json = "");
  void Refuse(const Key& key, const Error& why);

  HeadQueue* const queue_;
  const NodeTable* const nodes_;
  std::map<Key, Open> open_;
  std::map<uint64_t, Key> by_number_;
  uint64_t next_ = 1;
};

}  // namespace troupe::daemons
