#include "daemons/head/log_requests.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace troupe::daemons {

void LogRequests::OnQuery(Time now, const std::string& driver, uint64_t request,
                          const std::string& node, const std::string& log, uint32_t lines) {
  const Key key{driver, request};
  if (open_.contains(key)) return;  // A repeat; the ticks see to it.
  const auto refuse = [&](const Error& why) { callbacks_.reply(driver, request, why, ""); };
  if (const Status known = callbacks_.reachable(node); !known.ok()) return refuse(known.error());
  if (open_.size() >= kLogRequestsMax) {
    return refuse(Error{ErrorCode::kBackpressure,
                        std::to_string(kLogRequestsMax) + " questions for logs are open already"});
  }
  const ReadLog read{next_++, log, lines};
  by_number_[read.number] = key;
  open_[key] = {node, read, now + kLogLimit, now + kLogAskAgain};
  callbacks_.ask(node, read);
}

void LogRequests::OnTail(const LogTail& tail) {
  const auto it = by_number_.find(tail.number);
  if (it == by_number_.end()) return;  // A repeat, or too late.
  const Key key = it->second;
  const std::string node = open_.at(key).node;
  by_number_.erase(it);
  open_.erase(key);
  if (tail.code != 0) {
    const Error why{static_cast<ErrorCode>(tail.code), "node " + node + ": " + tail.message};
    return callbacks_.reply(key.first, key.second, why, "");
  }
  const nlohmann::json json{{"node", node}, {"file", tail.file}, {"text", tail.text}};
  // What was printed may be any bytes.
  callbacks_.reply(key.first, key.second, Status::Ok(),
                   json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void LogRequests::OnTick(Time now) {
  std::vector<std::pair<Key, Error>> over;
  for (auto& [key, open] : open_) {
    if (const Status known = callbacks_.reachable(open.node); !known.ok()) {
      over.emplace_back(key, known.error());
    } else if (now >= open.deadline) {
      over.emplace_back(key, Error{ErrorCode::kDeadlineExceeded,
                                   "node " + open.node + " did not answer within " +
                                       std::to_string(static_cast<int>(ToSeconds(kLogLimit))) +
                                       " s; look at `troupe nodes`"});
    } else if (now >= open.ask_at) {
      open.ask_at = now + kLogAskAgain;
      callbacks_.ask(open.node, open.read);
    }
  }
  for (const auto& [key, why] : over) Refuse(key, why);
}

void LogRequests::Refuse(const Key& key, const Error& why) {
  const auto it = open_.find(key);
  by_number_.erase(it->second.read.number);
  open_.erase(it);
  callbacks_.reply(key.first, key.second, why, "");
}

}  // namespace troupe::daemons
