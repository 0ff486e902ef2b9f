#include "autoscaler/ssh_provider.h"

#include <algorithm>
#include <set>

#include "autoscaler/ssh_scripts.h"

namespace troupe {
namespace {

constexpr Duration kSettled = seconds(60);     // Who lives so long has started well.
constexpr Duration kForceAfter = seconds(10);  // For a node to end by itself.

std::string SecondsText(Duration span) {
  return std::to_string(static_cast<int64_t>(ToSeconds(span)) + 1) + " s";
}

}  // namespace

SshProvider::SshProvider(const Clock* clock, SshProviderOptions options)
    : clock_(clock),
      options_(std::move(options)),
      source_(options_.hosts, [this](const ExecCommand& command, std::string input, ExecDone done) {
        if (options_.run) return options_.run(command, std::move(input), std::move(done));
        pool_.Run(command, std::move(input), std::move(done));
      }) {}

void SshProvider::Ask(const std::string& host, const std::string& script, ExecDone done) {
  ExecCommand command = SshTo(options_.ssh, host);
  if (options_.run) return options_.run(command, script, std::move(done));
  pool_.Run(std::move(command), script, std::move(done));
}

bool SshProvider::Step(Time now) {
  bool moved = pool_.Step(now);
  if (const auto told = source_.Step(now)) {
    TakeHosts(*told);
    moved = true;
  }
  if (source_.told() || !source_.status().ok()) moved = StartWaiting() || moved;
  std::set<std::string> in_use;
  for (const auto& [id, node] : nodes_) {
    if (node.started) in_use.insert(node.host);
  }
  for (auto& [name, host] : hosts_) {
    if (host.cooling && now >= host.cool_until) {
      host.cooling = false;
      new_room_ = true;
    }
    if (in_use.contains(name) && !host.looking && now >= host.look_at) Look(name, host);
  }
  return moved;
}

void SshProvider::TakeHosts(const std::vector<HostSlots>& told) {
  for (auto& [name, host] : hosts_) host.removed = true;
  order_.clear();
  for (const HostSlots& slots : told) {
    Host& host = hosts_[slots.host];
    new_room_ = true;
    host.told = slots;
    host.removed = false;
    order_.push_back(slots.host);
  }
  std::erase_if(hosts_, [&](const auto& entry) {
    return entry.second.removed && Taken(entry.first) == 0 && !entry.second.looking;
  });
}

std::vector<Notice> SshProvider::Poll(Time now) {
  std::vector<Notice> notices;
  for (auto& [id, node] : nodes_) {
    const auto host = hosts_.find(node.host);
    if (host == hosts_.end() || !host->second.removed || node.terminating) continue;  // SP-3
    if (!std::exchange(node.noticed, true))
      notices.push_back({id, now + options_.drain, node.host + " is no longer among the hosts"});
  }
  return notices;
}

int SshProvider::Taken(const std::string& host) const {
  return static_cast<int>(std::count_if(
      nodes_.begin(), nodes_.end(), [&](const auto& entry) { return entry.second.host == host; }));
}

// The one of which the smallest part is taken, of equals the first; empty: none is free.
std::string SshProvider::ChooseHost(Time now, const std::string& pool) const {
  std::string best;
  double least = 1;
  for (const std::string& name : order_) {
    const Host& host = hosts_.at(name);
    if (now < host.cool_until || (!host.told.pool.empty() && host.told.pool != pool)) continue;
    const double taken = static_cast<double>(Taken(name)) / host.told.slots;  // SP-1
    if (taken >= least) continue;
    least = taken;
    best = name;
  }
  return best;
}

std::string SshProvider::Obstacles(Time now, const std::string& pool) const {
  if (!source_.told()) return source_.status().error().message;
  int slots = 0;
  std::string cooling;
  for (const std::string& name : order_) {
    const Host& host = hosts_.at(name);
    if (!host.told.pool.empty() && host.told.pool != pool) continue;
    if (now >= host.cool_until) {
      slots += host.told.slots;
    } else if (cooling.size() < kExecLogBytesMax) {
      cooling += "; " + name + " is left alone for " + SecondsText(host.cool_until - now) + " (" +
                 host.trouble + ")";
    }
  }
  return (slots == 0 ? std::string("no host can be used")
                     : "all " + std::to_string(slots) + " slots of its hosts are taken") +
         cooling;
}

Result<std::string> SshProvider::Launch(const std::string& token, const std::string& pool) {
  if (const auto found = launched_.find(token); found != launched_.end()) return found->second;
  const std::string id = pool + "-" + std::to_string(last_number_[pool] + 1);
  Node node;
  node.token = token;
  node.pool = pool;
  const auto place = nodes_.emplace(id, std::move(node)).first;
  ++last_number_[pool];
  launched_[token] = id;
  if (const Status started = Start(id, place->second); !started.ok()) {
    nodes_.erase(id);
    launched_.erase(token);
    return started.error();
  }
  if (!failures_.empty() && failures_.back().token == token) {
    const Error error = failures_.back().error;
    failures_.pop_back();
    return error;
  }
  return id;
}

bool SshProvider::StartWaiting() {
  std::vector<std::string> waiting;
  for (const auto& [id, node] : nodes_) {
    if (node.host.empty()) waiting.push_back(id);
  }
  for (const std::string& id : waiting) {
    Node& node = nodes_.at(id);
    const Status started = node.terminating ? Status::Ok() : Start(id, node);
    if (started.ok() && !node.terminating) continue;
    if (!started.ok())
      failures_.push_back(
          {ProviderFailure::Kind::kLaunch, node.token, node.pool, id, started.error()});
    launched_.erase(node.token);
    nodes_.erase(id);
  }
  return !waiting.empty();
}

// Without a host yet if it is not known what hosts there are.
Status SshProvider::Start(const std::string& id, Node& node) {
  if (!source_.told() && source_.status().ok()) return Status::Ok();
  const Time now = clock_->Now();
  node.host = ChooseHost(now, node.pool);
  if (node.host.empty())
    return Error{ErrorCode::kResourceExhausted, "no capacity: " + Obstacles(now, node.pool)};
  const Result<std::string> boot = options_.boot(id, node.pool, node.host);
  if (!boot.ok()) return boot.error().WithContext("node " + id);
  Ask(node.host, SshStartScript(options_.fleet, id, *boot),
      [this, id, host = node.host](const Result<ExecReply>& reply) { Started(id, host, reply); });
  return Status::Ok();
}

// A host that refuses costs no more than a moment if another one is free.
void SshProvider::Started(const std::string& id, const std::string& host,
                          const Result<ExecReply>& reply) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  const auto at = hosts_.find(host);
  if (reply.ok() && reply->code == 0) {
    node.started = true;
    node.started_at = clock_->Now();
    if (at != hosts_.end()) at->second.cooldown = Duration::zero();
    if (node.terminating) AskToEnd(id, node);
    return;
  }
  const bool late = !reply.ok() && reply.error().code == ErrorCode::kDeadlineExceeded;
  const std::string why = reply.ok() ? ExplainSsh(reply->log) : reply.error().message;
  if (at != hosts_.end()) CoolDown(at->second, why);
  if (late) {  // It may have been started all the same: a look at its host will tell.
    node.started = true;
    node.started_at = clock_->Now();
    return;
  }
  Status next = Error{ErrorCode::kCancelled, "it is not wanted any more"};
  if (!node.terminating) next = Start(id, node);
  if (next.ok()) return;
  const Error error =
      node.terminating
          ? next.error()
          : Error{ErrorCode::kResourceExhausted,
                  host + ": " + why + (order_.size() > 1 ? "; " + next.error().message : "")};
  const bool told = !node.terminating;
  if (told) failures_.push_back({ProviderFailure::Kind::kLaunch, node.token, node.pool, id, error});
  launched_.erase(node.token);
  nodes_.erase(id);
}

void SshProvider::CoolDown(Host& host, const std::string& why) {
  host.cooldown = std::clamp(2 * host.cooldown, options_.cooldown, options_.cooldown_max);  // SP-2
  host.cooling = true;
  host.cool_until = clock_->Now() + host.cooldown;
  host.trouble = why;
}

Status SshProvider::Terminate(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return Status::Ok();
  Node& node = found->second;
  const bool asked = std::exchange(node.terminating, true) && clock_->Now() < node.ask_again;
  if (!asked && node.started) AskToEnd(id, node);
  return Status::Ok();
}

void SshProvider::AskToEnd(const std::string& id, Node& node) {
  const Time now = clock_->Now();
  const bool force = node.asked++ > 0;
  node.ask_again = now + kForceAfter;
  Ask(node.host, SshEndScript(options_.fleet, id, force),
      [this, host = node.host](const Result<ExecReply>&) {
        const auto at = hosts_.find(host);
        if (at != hosts_.end()) at->second.look_at = Time{};
      });
}

void SshProvider::Look(const std::string& name, Host& host) {
  host.looking = true;
  host.look_at = clock_->Now() + options_.interval;
  Ask(name, SshListScript(options_.fleet),
      [this, name, asked = clock_->Now()](const Result<ExecReply>& reply) {
        Looked(name, asked, reply);
      });
}

void SshProvider::Looked(const std::string& name, Time asked, const Result<ExecReply>& reply) {
  const auto at = hosts_.find(name);
  if (at == hosts_.end()) return;
  Host& host = at->second;
  host.looking = false;
  const Time now = clock_->Now();
  Result<SshListing> listing = Error{ErrorCode::kUnavailable, ""};
  if (reply.ok() && reply->code != kSshFailed) listing = ParseSshListing(reply->out);
  if (!listing.ok()) {
    if (!host.silent_since) host.silent_since = asked;
    // By then its nodes have ended themselves, if their cluster has given them up.
    const bool over = now >= *host.silent_since + options_.lease + kSettled;
    for (auto it = nodes_.begin(); over && it != nodes_.end();)
      it = it->second.host == name && it->second.terminating ? nodes_.erase(it) : std::next(it);
    return;
  }
  host.silent_since.reset();
  std::vector<std::pair<std::string, std::string>> ended;
  for (auto& [id, node] : nodes_) {
    if (node.host != name || !node.started || node.started_at > asked) continue;
    const auto alive = listing->alive.find(id);
    if (alive == listing->alive.end() || !alive->second) {
      ended.emplace_back(id, listing->words[id]);
    } else if (node.terminating && now >= node.ask_again) {
      AskToEnd(id, node);
    } else if (node.terminating) {
      host.look_at = std::min(host.look_at, now + milliseconds(500));
    }
  }
  for (const auto& [id, words] : ended) Ended(id, words);
}

void SshProvider::Ended(const std::string& id, const std::string& words) {
  const Node node = nodes_.at(id);
  nodes_.erase(id);
  new_room_ = true;
  if (node.terminating) return;
  const std::string said = words.empty() ? "without a word" : "its last words: " + words;
  failures_.push_back({ProviderFailure::Kind::kEnded, node.token, node.pool, id,
                       Error{ErrorCode::kUnavailable, "on " + node.host + ", " + said}});
  if (clock_->Now() < node.started_at + kSettled)
    CoolDown(hosts_.at(node.host), "a node has ended there soon");
}

Result<std::vector<ProviderNode>> SshProvider::List() {
  if (!source_.told() && !source_.status().ok()) return source_.status().error();
  std::vector<ProviderNode> nodes;
  for (const auto& [id, node] : nodes_)
    nodes.push_back({id, node.token, node.pool, node.terminating, node.host, !node.started});
  return nodes;
}

}  // namespace troupe
