#include "daemons/node/core/spare_policy.h"

#include <algorithm>

namespace troupe::daemons {

std::optional<SparePolicy::Id> SparePolicy::Take(Time now, const SpareKind& kind, bool more_ahead) {
  last_take_ = now;
  due_ = std::min(due_, now + std::min(limits_.settle, limits_.settle_alone));
  if (!more_ahead && !uses_.contains(kind)) return std::nullopt;
  Use& use = uses_[kind];
  if (more_ahead) {
    use.last = now;
    use.turn = ++turns_;
  }
  if (use.spares.empty()) return std::nullopt;
  const Id spare = use.spares.front();
  use.spares.erase(use.spares.begin());
  // Who has asked for it says when there is to be another.
  if (!more_ahead && use.asked > 0) --use.asked;
  return spare;
}

void SparePolicy::Keep(Time now, const SpareKind& kind, size_t count) {
  if (count == 0 && !uses_.contains(kind)) return;
  Use& use = uses_[kind];
  use.asked = count;
  use.asked_until = now + kSparesKept;
  due_ = now;
}

bool SparePolicy::Failed(Time now, Id spare) {
  for (auto& [kind, use] : uses_) {
    if (std::erase(use.spares, spare) == 0) continue;
    const bool first = use.not_before <= now;
    use.not_before = now + limits_.after_failure;
    return first;
  }
  return false;
}

void SparePolicy::ServerReady(Time now, const SpareKind& kind) {
  waits_.erase(kind);
  last_take_ = now;  // Those who have waited for it begin their work.
  due_ = std::min(due_, now + limits_.settle);
}

void SparePolicy::ServerFailed(Time now, const SpareKind& kind) {
  waits_.erase(kind);
  no_server_[kind] = now + limits_.after_failure;
  if (const auto it = uses_.find(kind); it != uses_.end())
    it->second.not_before = now + limits_.after_failure;
}

void SparePolicy::ServerUnfit(Time now, const SpareKind& kind) {
  waits_.erase(kind);
  no_server_[kind] = Time::Never();
  due_ = std::min(due_, now + limits_.settle_alone);
}

// The next one of its kind has it started again.
void SparePolicy::ServerGone(Time now, const SpareKind& kind) {
  waits_.erase(kind);
  due_ = now;
}

bool SparePolicy::Forks(Time now, const SpareKind& kind) const {
  const auto it = no_server_.find(kind);
  return it == no_server_.end() || it->second <= now;
}

void SparePolicy::Forget() {
  uses_.clear();
  waits_.clear();
}

Time SparePolicy::StartAt(const SpareKind& kind) const {
  const auto it = no_server_.find(kind);
  const bool alone = it != no_server_.end() && it->second == Time::Never();
  return std::max(last_take_ + (alone ? limits_.settle_alone : limits_.settle),
                  last_start_ + (alone ? limits_.pace_alone : limits_.pace));
}

size_t SparePolicy::size() const {
  size_t count = 0;
  for (const auto& [kind, use] : uses_) count += use.spares.size();
  return count;
}

std::vector<std::pair<SparePolicy::Uses::iterator, size_t>> SparePolicy::Wanted(Time now) {
  std::vector<std::pair<Uses::iterator, size_t>> wanted;
  size_t left = limits_.limit;
  for (auto it = uses_.begin(); it != uses_.end(); ++it) {
    const size_t asked = now < it->second.asked_until ? std::min(left, it->second.asked) : 0;
    wanted.emplace_back(it, asked);
    left -= asked;
  }
  std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) {
    return a.first->second.turn > b.first->second.turn;
  });
  // One of each that was used, and what is left of the newest.
  for (auto& [it, count] : wanted) {
    if (left == 0 || it->second.turn == 0) break;
    if (count > 0) continue;
    count = 1;
    --left;
  }
  if (!wanted.empty() && wanted.front().first->second.turn > 0) wanted.front().second += left;
  return wanted;
}

SparePolicy::Step SparePolicy::Next(Time now) {
  Step step;
  std::erase_if(uses_, [&](const auto& entry) {
    const Use& use = entry.second;
    const bool used = use.turn > 0 && now < use.last + limits_.kept;
    const bool asked = use.asked > 0 && now < use.asked_until;
    if (used || asked || now < use.not_before) return false;
    step.end.insert(step.end.end(), use.spares.begin(), use.spares.end());
    return true;
  });
  due_ = Time::Never();
  std::erase_if(no_server_, [&](const auto& entry) { return entry.second <= now; });
  const auto wanted = Wanted(now);
  for (const auto& [it, count] : wanted) {  // First, so that there is room.
    std::vector<Id>& spares = it->second.spares;
    while (spares.size() > count) {
      step.end.push_back(spares.front());
      spares.erase(spares.begin());
    }
  }
  for (const auto& [it, count] : wanted) {
    Use& use = it->second;
    if (use.spares.size() >= count || waits_.contains(it->first)) continue;
    // One that has just been started is among those before it.
    const Time at = std::max(StartAt(it->first), use.not_before);
    if (now < at) {
      due_ = std::min(due_, at);
      continue;
    }
    use.spares.push_back(next_id_);
    step.start = {next_id_++, it->first};
    last_start_ = now;
    if (use.spares.size() < count) due_ = std::min(due_, StartAt(it->first));
  }
  return step;
}

}  // namespace troupe::daemons
