#include "daemons/head/records.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "runtime/log.h"
#include "runtime/mutation.h"

namespace troupe::daemons {
namespace {

constexpr const char* kMark = "head/mark";
// Between a key and the number of a part, and before the number of parts in their place.
constexpr const char* kPart = "#part";

std::string PartKey(const std::string& key, size_t part) {
  return key + kPart + std::to_string(part);
}

}  // namespace

Result<std::map<std::string, std::string>> Records::Load(Store& store, const std::string& prefix) {
  Result<std::map<std::string, std::string>> found = store.List(prefix);
  if (!found.ok()) return found;
  std::map<std::string, std::string> whole;
  for (auto& [key, value] : *found) {
    if (key.find(kPart) != std::string::npos) continue;
    if (!value.starts_with(kPart)) {
      whole.emplace(key, std::move(value));
      continue;
    }
    const size_t parts = std::strtoul(value.c_str() + std::string_view(kPart).size(), nullptr, 10);
    std::string text;
    bool all = true;
    for (size_t i = 0; all && i < parts; ++i) {
      const auto part = found->find(PartKey(key, i));
      all = part != found->end();
      if (all) text += std::exchange(part->second, {});
    }
    if (all) whole.emplace(key, std::move(text));
    if (!all) LogError("the record ", key, " lacks a part; it is left out");
  }
  return whole;
}

Records::Records(EventLoop* loop, Lane* lane, Store* store, Duration ttl,
                 std::function<void()> refill)
    : loop_(loop), lane_(lane), store_(store), ttl_(ttl), refill_(std::move(refill)) {}

void Records::Put(const std::string& key, std::string value) {
  if (const auto it = places_.find(key); it != places_.end()) {
    // Its turn is that of the one it replaces, and what was asked for before is kept with it.
    it->second->kind = Kind::kPut;
    it->second->value = std::move(value);
    ++asked_;
    return;
  }
  Ask({Kind::kPut, key, std::move(value)});
}

void Records::Delete(const std::string& key) {
  if (const auto it = places_.find(key); it != places_.end()) {
    queue_.erase(it->second);
    places_.erase(it);
  }
  Ask({Kind::kDelete, key, ""});
}

void Records::DeletePrefix(const std::string& prefix) {
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->kind != Kind::kDeletePrefix && it->key.starts_with(prefix)) {
      places_.erase(it->key);
      it = queue_.erase(it);
    } else {
      ++it;
    }
  }
  Ask({Kind::kDeletePrefix, prefix, ""});
}

void Records::Ask(Write write) {
  ++asked_;
  queue_.push_back(std::move(write));
  if (queue_.back().kind != Kind::kDeletePrefix) places_[queue_.back().key] = --queue_.end();
  if (!away_) Begin();
}

void Records::WhenKept(std::function<void()> then) { WhenKept("", std::move(then)); }

void Records::WhenKept(const std::string& name, std::function<void()> then) {
  if (kept_ == asked_) return then();
  if (waiters_.size() >= kWaitersMax) return;
  if (!name.empty() && !named_.emplace(name, asked_).second) return;
  waiters_.emplace(asked_, std::pair(name, std::move(then)));
}

// One batch at a time: what is asked for meanwhile makes the next one.
void Records::Begin() {
  if (writing_ || refilling_ || queue_.empty()) return;
  writing_ = true;
  auto batch = std::make_shared<Batch>(std::exchange(queue_, {}));
  places_.clear();
  const auto write = [this, back = scope_.back(), store = store_, ttl = ttl_, batch, upto = asked_,
                      was_away = away_] {
    Status status = Status::Ok();
    bool lost = false;
    if (was_away) {  // Nothing is promised before it is known whether it has the rest.
      const Result<std::optional<std::string>> mark = store->Get(kMark);
      status = mark.ok() ? Status::Ok() : Status(mark.error());
      lost = mark.ok() && !mark->has_value();
    }
    while (status.ok() && !lost && !batch->empty()) {
      status = Apply(*store, batch->front(), ttl);
      if (status.ok()) batch->pop_front();
    }
    back.Post(
        [this, batch, upto, status, lost] { Written(std::move(*batch), upto, status, lost); });
  };
  if (const Status posted = lane_->Post(write); !posted.ok())
    Written(std::move(*batch), asked_, posted, false);
}

Status Records::Apply(Store& store, const Write& write, Duration ttl) {
  Status status = Status::Ok();
  if (write.kind == Kind::kPut) {
    status = write.value.size() > kPartBytes ? PutParts(store, write, ttl)
                                             : store.Put(write.key, write.value, ttl);
  } else if (write.kind == Kind::kDelete) {
    // Parts belong to what never changes, and are rare: they are looked for one by one.
    for (size_t i = 0; status.ok(); ++i) {
      const Result<std::optional<std::string>> part = store.Get(PartKey(write.key, i));
      if (!part.ok()) status = part.error();
      if (!part.ok() || !part->has_value()) break;
      status = store.Delete(PartKey(write.key, i));
    }
    if (status.ok()) status = store.Delete(write.key);
  } else if (const Result<size_t> deleted = store.DeletePrefix(write.key); !deleted.ok()) {
    status = deleted.error();
  }
  if (status.ok() || status.error().code != ErrorCode::kInvalidArgument) return status;
  // It never will take this one, and the others are not to wait for it.
  LogError("cannot keep ", write.key, ": ", status.error().message);
  return Status::Ok();
}

// What names the parts comes last.
Status Records::PutParts(Store& store, const Write& write, Duration ttl) {
  size_t parts = 0;
  for (size_t at = 0; at < write.value.size(); at += kPartBytes, ++parts) {
    Status put = store.Put(PartKey(write.key, parts),
                           std::string_view(write.value).substr(at, kPartBytes), ttl);
    if (!put.ok()) return put;
  }
  return store.Put(write.key, kPart + std::to_string(parts), ttl);
}

// `rest`: what was not written. `lost`: nor is there anything else.
void Records::Written(Batch rest, uint64_t upto, const Status& status, bool lost) {
  writing_ = false;
  if (status.ok() && !lost) {
    if (std::exchange(away_, false)) LogInfo("the store takes records again");
    kept_ = upto;
    RunWaiters();
    return Begin();
  }
  Return(std::move(rest));
  if (lost) {
    away_ = false;
    return Refill();
  }
  if (!std::exchange(away_, true))
    LogWarning("the store does not take records; they wait: ", status.error().message);
  scope_.CallAt(loop_->Now() + kRetry, [this] { Begin(); });
}

// Back to the front of the queue, but for what has a newer value now.
void Records::Return(Batch rest) {
  std::vector<std::string> prefixes;
  for (const Write& write : queue_)
    if (write.kind == Kind::kDeletePrefix) prefixes.push_back(write.key);
  for (auto it = rest.rbegin(); it != rest.rend(); ++it) {
    const bool one = it->kind != Kind::kDeletePrefix;
    const bool newer =
        one && (places_.contains(it->key) || std::ranges::any_of(prefixes, [&](const auto& p) {
                  return it->key.starts_with(p);
                }));
    if (newer) continue;
    queue_.push_front(std::move(*it));
    if (one) places_[queue_.front().key] = queue_.begin();
  }
}

void Records::RunWaiters() {
  std::vector<std::function<void()>> due;
  const auto end = waiters_.upper_bound(kept_);
  for (auto it = waiters_.begin(); it != end; ++it) {
    named_.erase(it->second.first);
    due.push_back(std::move(it->second.second));
  }
  waiters_.erase(waiters_.begin(), end);
  for (const std::function<void()>& then : due) then();
}

void Records::Mark() {
  const bool looks = look_at_ != Time::Never();
  look_at_ = loop_->Now() + kLook;
  Put(kMark, "kept");
  if (!looks) LookAgain();
}

void Records::Watch() {
  Look();
  LookAgain();
}

void Records::LookAgain() {
  scope_.CallAt(look_at_, [this] {
    if (loop_->Now() >= look_at_) Look();
    LookAgain();
  });
}

void Records::Look() {
  look_at_ = loop_->Now() + kLook;
  if (away_) return;  // What waits will tell when it is back.
  if (TROUPE_MUTATED("an emptied store is not noticed")) return;
  (void)lane_->Post([this, back = scope_.back(), store = store_] {
    const Result<std::optional<std::string>> mark = store->Get(kMark);
    if (!mark.ok() || mark->has_value()) return;
    back.Post([this] { Refill(); });
  });
}

void Records::Refill() {
  LogWarning("the store has lost its records; it gets all of them again");
  refilling_ = true;  // All of it in one batch, before anything new is promised.
  refill_();
  Mark();  // Last: it says that all is there.
  refilling_ = false;
  Begin();
}

}  // namespace troupe::daemons
