#include "autoscaler/machine_provider.h"

#include <algorithm>
#include <set>
#include <utility>

namespace troupe {
MachineProvider::MachineProvider(const Clock* clock, MachineSource* source,
                                 MachineProviderOptions options)
    : clock_(clock), source_(source), options_(std::move(options)) {}

Result<std::string> MachineProvider::Launch(const std::string& token, const std::string& pool) {
  if (const auto found = launched_.find(token); found != launched_.end()) return found->second;
  const std::string id = pool + "-" + std::to_string(last_number_[pool] + 1);
  Result<std::string> boot = options_.boot(id, pool);
  if (!boot.ok()) return boot.error().WithContext("node " + id);
  MachineOrder order;
  order.request_id = token;
  order.offer = pool;
  order.user_data = std::move(*boot);
  order.tags = {{kClusterTag, options_.cluster}, {kLifeTag, options_.life}, {kNodeTag, id}};
  ++last_number_[pool];  // Also if this fails: a node of this name may come all the same.
  Node& node = nodes_[id];
  node.token = token;
  node.pool = pool;
  node.detail = "asked for";
  node.asked_for = true;
  launched_[token] = id;
  source_->Create(order,
                  [this, id](Result<std::vector<Machine>> made) { Made(id, std::move(made)); });
  if (!failures_.empty() && failures_.back().token == token) {
    const Error error = failures_.back().error;
    failures_.pop_back();
    return error;
  }
  return id;
}

void MachineProvider::Made(const std::string& id, Result<std::vector<Machine>> made) {
  list_at_ = Time{};
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  node.asked_for = false;
  node.made_at = clock_->Now();
  if (made.ok() && made->empty())
    made = Error{ErrorCode::kResourceExhausted, "no capacity: create made no node"};
  if (made.ok()) {
    node.machine = made->front().id;
    node.detail = made->front().id;
  } else if (!node.listed) {  // If it was made all the same, a list will have it.
    failures_.push_back({ProviderFailure::Kind::kLaunch, node.token, node.pool, id, made.error()});
    launched_.erase(node.token);
    nodes_.erase(found);
    return;
  }
  if (node.terminating) AskToEnd(clock_->Now(), id, node);
}

Status MachineProvider::Terminate(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return Status::Ok();
  Node& node = found->second;
  const Time now = clock_->Now();
  const bool asked = std::exchange(node.terminating, true) && now < node.ask_again;
  if (node.asked_for && !node.listed) {
    source_->Withdraw(node.token);
  } else if (!asked) {
    AskToEnd(now, id, node);
  }
  return Status::Ok();
}

void MachineProvider::WantWords(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found != nodes_.end() && !found->second.terminating)
    found->second.words = Node::Words::kWanted;
}

// True if its end is to wait for them: until the next time that it is asked for at most.
bool MachineProvider::AskForWords(const std::string& id, Node& node) {
  if (node.words != Node::Words::kWanted) return false;
  node.words = Node::Words::kAsked;
  source_->Printed(node.machine, [this, id](const std::string& words) { HasPrinted(id, words); });
  return true;
}

void MachineProvider::HasPrinted(const std::string& id, const std::string& words) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  if (!words.empty())
    failures_.push_back({ProviderFailure::Kind::kWords, node.token, node.pool, id,
                         Error{ErrorCode::kUnavailable, words}});
  if (std::exchange(node.words, Node::Words::kNotWanted) == Node::Words::kAsked)
    AskToEnd(clock_->Now(), id, node);
}

void MachineProvider::AskToEnd(Time now, const std::string& id, Node& node) {
  node.ask_again = now + options_.interval;
  if (AskForWords(id, node)) return;
  node.words = Node::Words::kNotWanted;
  source_->Terminate({node.machine}, [this, id](const Status& status) { Ended(id, status); });
}

void MachineProvider::Ended(const std::string& id, const Status& status) {
  list_at_ = Time{};
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const std::string trouble = status.ok() ? "" : status.error().message;
  const bool news = std::exchange(found->second.trouble, trouble) != trouble;
  if (status.ok() || !news) return;
  failures_.push_back(
      {ProviderFailure::Kind::kTerminate, "", found->second.pool, id, status.error()});
}

Result<std::vector<ProviderNode>> MachineProvider::List() {
  if (clock_->Now() >= list_at_ && !listing_) Refresh();
  if (!listed_.ok()) return listed_.error();
  std::vector<ProviderNode> nodes;
  for (const auto& [id, node] : nodes_)
    nodes.push_back(
        {id, node.token, node.pool, node.terminating, node.detail, node.asked_for && !node.listed});
  return nodes;
}

void MachineProvider::Refresh() {
  listing_ = true;
  list_at_ = clock_->Now() + options_.interval;  // Also after an error: not without a pause.
  source_->List([this](const Result<std::vector<Machine>>& listed) { Listed(listed); });
}

void MachineProvider::Listed(const Result<std::vector<Machine>>& listed) {
  listing_ = false;
  listed_ = listed.ok() ? Status::Ok() : Status(listed.error());
  if (!listed.ok()) return;
  const Time now = clock_->Now();
  Take(now, *listed);
  for (auto& [id, node] : nodes_) {  // One that does not end is asked again.
    if (node.terminating && node.listed && now >= node.ask_again) AskToEnd(now, id, node);
  }
}

// One for each node. What was made twice, such as by an order that was repeated after a time-out,
// is ended.
std::vector<const Machine*> MachineProvider::OneOfEach(const std::vector<Machine>& listed) {
  std::map<std::string, const Machine*> kept;
  std::vector<std::string> extra;
  for (const Machine& found : listed) {
    const std::string id = TagOf(found.tags, kNodeTag);
    const Machine*& one = kept.try_emplace(id, &found).first->second;
    if (one == &found) continue;
    const auto node = nodes_.find(id);
    const bool known = node != nodes_.end() && node->second.machine == found.id;
    const bool better = one->state == "stopping" || (known && found.state != "stopping");
    const Machine* other = better ? std::exchange(one, &found) : &found;
    if (other->state != "stopping") extra.push_back(other->id);
  }
  if (!extra.empty()) source_->Terminate(extra, [](const Status&) {});
  std::vector<const Machine*> machines;
  for (const auto& [id, machine] : kept) machines.push_back(machine);
  return machines;
}

void MachineProvider::Take(Time now, const std::vector<Machine>& listed) {
  std::vector<Machine> ours;
  std::set<std::string> seen;
  for (const Machine& found : listed) {
    if (TagOf(found.tags, kClusterTag) == options_.cluster &&
        TagOf(found.tags, kLifeTag) == options_.life && !TagOf(found.tags, kNodeTag).empty())
      ours.push_back(found);
  }
  for (const Machine* machine : OneOfEach(ours)) {
    const Machine& found = *machine;
    const std::string id = TagOf(found.tags, kNodeTag);
    // One whose making was not answered for is known from here on.
    Node& node = nodes_.try_emplace(id).first->second;
    node.machine = found.id;
    if (node.token.empty()) node.token = found.request_id;
    if (node.pool.empty()) node.pool = id.substr(0, id.rfind('-'));
    node.detail = found.detail.empty() ? found.id : found.id + ", " + found.detail;
    node.listed = true;
    if (found.state == "stopping" && !node.terminating && !found.ended.empty())
      failures_.push_back({ProviderFailure::Kind::kEnded,
                           node.token,
                           node.pool,
                           id,
                           {ErrorCode::kPeerGone, found.id + ": " + found.ended}});
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
    const bool lags = !node.listed && !node.terminating && now < node.made_at + kMachineListLag;
    return !seen.contains(entry.first) && !lags && !node.asked_for;
  });
}

std::vector<Notice> MachineProvider::Poll(Time now) {
  std::vector<Notice> notices;
  for (auto& [id, node] : nodes_) {
    if (!node.preempted_at || std::exchange(node.noticed, true)) continue;
    notices.push_back({id, std::max(now, *node.preempted_at), "its supplier"});
  }
  return notices;
}

}  // namespace troupe
