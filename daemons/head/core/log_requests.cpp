#include "daemons/head/core/log_requests.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/wire.h"

namespace troupe::daemons {

void LogRequests::OnQuery(const std::string& driver, uint64_t request, const std::string& node,
                          const std::string& log, uint32_t lines) {
  const Time now = queue_->now();
  const Key key{driver, request};
  if (open_.contains(key)) return;  // A repeat; the ticks see to it.
  const auto refuse = [&](const Error& why) { Reply(key, why); };
  if (const Status known = Reachable(node); !known.ok()) return refuse(known.error());
  if (open_.size() >= kLogRequestsMax) {
    return refuse(Error{ErrorCode::kBackpressure,
                        std::to_string(kLogRequestsMax) + " questions for logs are open already"});
  }
  const ReadLog read{next_++, log, lines};
  by_number_[read.number] = key;
  open_[key] = {node, read, now + kLogLimit, now + kLogAskAgain};
  Ask(node, read);
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
    return Reply(key, why);
  }
  const nlohmann::json json{{"node", node}, {"file", tail.file}, {"text", tail.text}};
  // What was printed may be any bytes.
  Reply(key, Status::Ok(), json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void LogRequests::OnTick() {
  const Time now = queue_->now();
  std::vector<std::pair<Key, Error>> over;
  for (auto& [key, open] : open_) {
    if (const Status known = Reachable(open.node); !known.ok()) {
      over.emplace_back(key, known.error());
    } else if (now >= open.deadline) {
      over.emplace_back(key, Error{ErrorCode::kDeadlineExceeded,
                                   "node " + open.node + " did not answer within " +
                                       std::to_string(static_cast<int>(ToSeconds(kLogLimit))) +
                                       " s; look at `troupe nodes`"});
    } else if (now >= open.ask_at) {
      open.ask_at = now + kLogAskAgain;
      Ask(open.node, open.read);
    }
  }
  for (const auto& [key, why] : over) Refuse(key, why);
}

void LogRequests::Ask(const std::string& node, const ReadLog& read) {
  queue_->Put(step::SendToNode{node, wire::Encode(kFrameReadLog, read)});
}

void LogRequests::Reply(const Key& key, const Status& status, const std::string& json) {
  DriverReply reply{key.second, 0, "", json};
  if (!status.ok()) {
    reply.code = static_cast<uint8_t>(status.error().code);
    reply.message = status.error().message;
  }
  queue_->Put(step::Send{key.first, wire::Encode(kFrameDriverReply, reply)});
}

Status LogRequests::Reachable(const std::string& node) const {
  const auto known = nodes_->nodes().find(node);
  if (known == nodes_->nodes().end())
    return Error{ErrorCode::kNotFound, "no node " + node + "; `troupe nodes` lists them"};
  const NodeRecord& record = known->second;
  if (record.up()) return Status::Ok();
  return Error{ErrorCode::kUnavailable, "node " + node + " is " +
                                            std::string(NodeStateName(record.state)) +
                                            (record.reason.empty() ? "" : ": " + record.reason) +
                                            "; its logs are on host " + record.host};
}

void LogRequests::Refuse(const Key& key, const Error& why) {
  const auto it = open_.find(key);
  by_number_.erase(it->second.read.number);
  open_.erase(it);
  Reply(key, why);
}

}  // namespace troupe::daemons
