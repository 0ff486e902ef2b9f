#include "autoscaler/exec_provider.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr const char* kClusterTag = "troupe-cluster";
constexpr const char* kLifeTag = "troupe-life";
constexpr const char* kNodeTag = "troupe-node";

std::string TagOf(const ExecNode& node, const char* tag) {
  const auto found = node.tags.find(tag);
  return found == node.tags.end() ? "" : found->second;
}

}  // namespace

ExecProvider::ExecProvider(const Clock* clock, ExecProviderOptions options)
    : clock_(clock), options_(std::move(options)) {}

Result<std::string> ExecProvider::Ask(std::string_view verb, const std::string& request) {
  Result<ExecReply> reply = options_.run(options_.command, request);
  if (!reply.ok()) return reply.error();
  if (const Status s = ExecStatus(verb, reply->code, reply->log); !s.ok()) return s.error();
  return std::move(reply->out);
}

Result<std::string> ExecProvider::Launch(const std::string& token, const std::string& pool) {
  if (const auto found = launched_.find(token); found != launched_.end()) return found->second;
  const std::string id = pool + "-" + std::to_string(last_number_[pool] + 1);
  Result<std::string> boot = options_.boot(id, pool);
  if (!boot.ok()) return boot.error().WithContext("node " + id);
  ExecCreate create;
  create.request_id = token;
  create.offer = pool;
  create.user_data = std::move(*boot);
  create.tags = {{kClusterTag, options_.cluster}, {kLifeTag, options_.life}, {kNodeTag, id}};
  ++last_number_[pool];  // Also if this fails: a node of this name may come all the same.
  list_at_ = Time{};
  const Result<std::string> reply = Ask("create", ExecCreateRequest(create));
  if (!reply.ok()) return reply.error();
  const Result<std::vector<ExecNode>> made = ParseExecNodes(*reply);
  if (!made.ok()) return made.error().WithContext("create");
  if (made->empty())
    return Error{ErrorCode::kResourceExhausted, "no capacity: create made no node"};
  Node& node = nodes_[id];
  node.supplier_id = made->front().id;
  node.token = token;
  node.pool = pool;
  node.detail = made->front().id;
  node.made_at = clock_->Now();
  launched_[token] = id;
  return id;
}

Status ExecProvider::Terminate(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return Status::Ok();
  const Time now = clock_->Now();
  if (found->second.terminating && now < found->second.ask_again) return Status::Ok();
  const Result<std::string> reply =
      Ask("terminate", ExecTerminateRequest({found->second.supplier_id}));
  if (!reply.ok()) return reply.error();
  if (const Status s = ParseExecDone(*reply); !s.ok()) return s.error().WithContext("terminate");
  found->second.terminating = true;
  found->second.ask_again = now + options_.interval;
  list_at_ = Time{};
  return Status::Ok();
}

Result<std::vector<ProviderNode>> ExecProvider::List() {
  const Time now = clock_->Now();
  if (now >= list_at_) listed_ = Refresh(now);
  if (!listed_.ok()) return listed_.error();
  std::vector<ProviderNode> nodes;
  for (const auto& [id, node] : nodes_)
    nodes.push_back({id, node.token, node.pool, node.terminating, node.detail});
  return nodes;
}

Status ExecProvider::Refresh(Time now) {
  const Result<std::string> reply = Ask("list", ExecRequest("list"));
  list_at_ = now + options_.interval;  // Also after an error: it is not asked without a pause.
  if (!reply.ok()) return reply.error();
  const Result<std::vector<ExecNode>> listed = ParseExecNodes(*reply);
  if (!listed.ok()) return listed.error().WithContext("list");
  Take(now, *listed);
  return Status::Ok();
}

void ExecProvider::Take(Time now, const std::vector<ExecNode>& listed) {
  strangers_.clear();
  std::set<std::string> seen;
  for (const ExecNode& found : listed) {
    if (TagOf(found, kClusterTag) != options_.cluster) continue;
    const std::string id = TagOf(found, kNodeTag);
    if (TagOf(found, kLifeTag) != options_.life || id.empty()) {
      strangers_.insert(found.id);
      continue;
    }
    // One whose making was not answered for is known from here on.
    Node& node = nodes_.try_emplace(id).first->second;
    node.supplier_id = found.id;
    if (node.token.empty()) node.token = found.request_id;
    if (node.pool.empty()) node.pool = id.substr(0, id.rfind('-'));
    node.detail = found.detail.empty() ? found.id : found.id + ", " + found.detail;
    node.listed = true;
    node.terminating = node.terminating || found.state == "stopping";
    if (found.preempted_in_s) {
      const Time at =
          now + Duration(static_cast<int64_t>(std::min(*found.preempted_in_s, 86400.0) * 1e9));
      node.preempted_at = std::min(at, node.preempted_at.value_or(at));
    }
    launched_.emplace(node.token, id);
    seen.insert(id);
  }
  std::erase_if(nodes_, [&](const auto& entry) {
    const Node& node = entry.second;
    const bool lags = !node.listed && !node.terminating && now < node.made_at + kExecListLag;
    return !seen.contains(entry.first) && !lags;
  });
}

std::vector<Notice> ExecProvider::Poll(Time now) {
  std::vector<Notice> notices;
  for (auto& [id, node] : nodes_) {
    if (!node.preempted_at || std::exchange(node.noticed, true)) continue;
    notices.push_back({id, std::max(now, *node.preempted_at), "its supplier"});
  }
  return notices;
}

}  // namespace troupe
