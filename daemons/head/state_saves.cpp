#include "daemons/head/state_saves.h"

#include "actors/core/cluster_protocol.h"

namespace troupe::daemons {

StateSaves::StateSaves(EventLoop* loop, Lane* lane, Store* store, Duration ttl)
    : loop_(loop), lane_(lane), store_(store), ttl_(ttl) {}

bool StateSaves::Has(const std::string& key, Version version) const {
  if (busy_ && written_ == key && writing_ >= version) return true;
  const auto known = waiting_.find(key);
  return known != waiting_.end() && known->second.version >= version;
}

// ---- large states: offered, sent for ----

void StateSaves::Offer(const std::string& key, Version version, size_t bytes, SendFor send_for) {
  if (Has(key, version)) return;
  if (const auto it = promises_.find(key); it != promises_.end()) {
    if (it->second.version > version) return;  // Late: a newer one was offered.
    if (it->second.version == version) {       // What sent for it was lost, or what was sent.
      (void)send_for();
      return;
    }
    EndPromise(key);  // Who offers a newer one does not send the older any more.
  }
  const auto [it, added] = offered_.try_emplace(key);
  if (added) offer_order_.push_back(key);
  if (added || it->second.version <= version) it->second = {version, bytes, std::move(send_for)};
  SendForNext();
}

void StateSaves::SendForNext() {
  while (!offer_order_.empty()) {
    const std::string key = offer_order_.front();
    const auto it = offered_.find(key);
    if (large_bytes_ > 0 && large_bytes_ + it->second.bytes > kSavesBytesMax) return;
    const Offered next = std::move(it->second);
    offered_.erase(it);
    offer_order_.pop_front();
    if (!next.send_for()) continue;
    const uint64_t number = ++promised_;
    promises_[key] = {next.version, next.bytes, number};
    large_bytes_ += next.bytes;
    scope_.CallAfter(kSaveComesWithin, [this, key, number] {
      if (!promises_.contains(key) || promises_.at(key).number != number) return;
      EndPromise(key);
      SendForNext();
    });
  }
}

void StateSaves::EndPromise(const std::string& key) {
  const auto it = promises_.find(key);
  if (it == promises_.end()) return;
  large_bytes_ -= it->second.bytes;
  promises_.erase(it);
}

// ---- what came ----

bool StateSaves::Takes(const std::string& key, Version version, size_t bytes) const {
  if (Has(key, version)) return false;
  const auto promise = promises_.find(key);
  if (promise != promises_.end() && promise->second.version == version) return true;
  return bytes <= actors::kDirectStateBytesMax && direct_bytes_ + bytes <= kDirectSavesBytesMax;
}

void StateSaves::Add(const std::string& key, Version version, std::string value, Done done) {
  const auto promise = promises_.find(key);
  const bool large = promise != promises_.end() && promise->second.version == version;
  EndPromise(key);
  const auto [it, added] = waiting_.try_emplace(key);
  Save& save = it->second;
  if (added) order_.push_back(key);
  Held(save) -= save.value.size();
  save = {version, std::move(value), std::move(done), large};
  Held(save) += save.value.size();
  Begin();
}

void StateSaves::Begin() {
  if (busy_ || order_.empty()) return;
  written_ = order_.front();
  order_.pop_front();
  auto save = std::make_shared<Save>(std::move(waiting_.at(written_)));
  waiting_.erase(written_);
  writing_ = save->version;
  busy_ = true;
  const auto finish = [this, save](const Status& status) {
    busy_ = false;
    Held(*save) -= save->value.size();
    std::string().swap(save->value);
    save->done(status);
    Begin();
    SendForNext();
  };
  const Status posted =
      lane_->Post([back = scope_.back(), store = store_, ttl = ttl_, key = written_, save, finish] {
        const Status put = store->Put(key, save->value, ttl);
        back.Post([finish, put] { finish(put); });
      });
  if (!posted.ok()) scope_.Post([finish, posted] { finish(posted); });
}

}  // namespace troupe::daemons
