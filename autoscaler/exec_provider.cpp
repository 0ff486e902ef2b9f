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

void ExecProvider::Ask(std::string_view verb, const std::string& request, Answer answer) {
  const auto done = [name = std::string(verb),
                     answer = std::move(answer)](Result<ExecReply> reply) {
    if (!reply.ok()) return answer(reply.error());
    const Status status = ExecStatus(name, reply->code, reply->log);
    answer(status.ok() ? Result<std::string>(std::move(reply->out)) : status.error());
  };
  if (options_.run) return options_.run(options_.command, request, done);
  pool_.Run(options_.command, request, done);
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
  Node& node = nodes_[id];
  node.token = token;
  node.pool = pool;
  node.detail = "asked for";
  node.asked_for = true;
  launched_[token] = id;
  Ask("create", ExecCreateRequest(create),
      [this, id](const Result<std::string>& reply) { Made(id, reply); });
  if (!failures_.empty() && failures_.back().token == token) {
    const Error error = failures_.back().error;
    failures_.pop_back();
    return error;
  }
  return id;
}

void ExecProvider::Made(const std::string& id, const Result<std::string>& reply) {
  list_at_ = Time{};
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  node.asked_for = false;
  node.made_at = clock_->Now();
  Result<std::vector<ExecNode>> made =
      reply.ok() ? ParseExecNodes(*reply) : Result<std::vector<ExecNode>>(reply.error());
  if (reply.ok() && !made.ok()) made = made.error().WithContext("create");
  if (made.ok() && made->empty())
    made = Error{ErrorCode::kResourceExhausted, "no capacity: create made no node"};
  if (made.ok()) {
    node.supplier_id = made->front().id;
    node.detail = made->front().id;
  } else if (!node.listed) {  // If it was made all the same, a list will have it.
    failures_.push_back({ProviderFailure::Kind::kLaunch, node.token, node.pool, id, made.error()});
    launched_.erase(node.token);
    nodes_.erase(found);
    return;
  }
  if (node.terminating) AskToEnd(clock_->Now(), id, node);
}

Status ExecProvider::Terminate(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return Status::Ok();
  Node& node = found->second;
  const Time now = clock_->Now();
  const bool asked = std::exchange(node.terminating, true) && now < node.ask_again;
  if (!asked && !node.asked_for) AskToEnd(now, id, node);
  return Status::Ok();
}

void ExecProvider::AskToEnd(Time now, const std::string& id, Node& node) {
  node.ask_again = now + options_.interval;
  Ask("terminate", ExecTerminateRequest({node.supplier_id}),
      [this, id](const Result<std::string>& reply) {
        Status status = reply.ok() ? ParseExecDone(*reply) : Status(reply.error());
        if (reply.ok() && !status.ok()) status = status.error().WithContext("terminate");
        Ended(id, status);
      });
}

void ExecProvider::Ended(const std::string& id, const Status& status) {
  list_at_ = Time{};
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const std::string trouble = status.ok() ? "" : status.error().message;
  const bool news = std::exchange(found->second.trouble, trouble) != trouble;
  if (status.ok() || !news) return;
  failures_.push_back(
      {ProviderFailure::Kind::kTerminate, "", found->second.pool, id, status.error()});
}

Result<std::vector<ProviderNode>> ExecProvider::List() {
  if (clock_->Now() >= list_at_ && !listing_) Refresh();
  if (!listed_.ok()) return listed_.error();
  std::vector<ProviderNode> nodes;
  for (const auto& [id, node] : nodes_)
    nodes.push_back({id, node.token, node.pool, node.terminating, node.detail});
  return nodes;
}

void ExecProvider::Refresh() {
  listing_ = true;
  list_at_ = clock_->Now() + options_.interval;  // Also after an error: not without a pause.
  Ask("list", ExecRequest("list"), [this](const Result<std::string>& reply) { Listed(reply); });
}

void ExecProvider::Listed(const Result<std::string>& reply) {
  listing_ = false;
  listed_ = Status::Ok();
  if (!reply.ok()) {
    listed_ = reply.error();
    return;
  }
  const Result<std::vector<ExecNode>> listed = ParseExecNodes(*reply);
  if (!listed.ok()) {
    listed_ = listed.error().WithContext("list");
    return;
  }
  const Time now = clock_->Now();
  Take(now, *listed);
  for (auto& [id, node] : nodes_) {  // One that does not end is asked again.
    if (node.terminating && node.listed && now >= node.ask_again) AskToEnd(now, id, node);
  }
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
    return !seen.contains(entry.first) && !lags && !node.asked_for;
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
