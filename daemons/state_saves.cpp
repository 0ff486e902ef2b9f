#include "daemons/state_saves.h"

#include <algorithm>

namespace troupe::daemons {

StateSaves::StateSaves(EventLoop* loop, BlockingLane* lane, Store* store, Duration ttl)
    : loop_(loop), lane_(lane), store_(store), ttl_(ttl) {}

StateSaves::~StateSaves() { *alive_ = false; }

bool StateSaves::Wants(const std::string& key, Version version, size_t bytes) const {
  if (busy_ && written_ == key && writing_ >= version) return false;
  const auto known = waiting_.find(key);
  if (known != waiting_.end() && known->second.version >= version) return false;
  const size_t replaced = known == waiting_.end() ? 0 : known->second.value.size();
  return bytes_ == replaced || bytes_ - replaced + bytes <= kSavesBytesMax;
}

void StateSaves::Add(const std::string& key, Version version, std::string value, Done done) {
  const auto [it, added] = waiting_.try_emplace(key);
  if (added) order_.push_back(key);
  bytes_ += value.size() - it->second.value.size();
  it->second = {version, std::move(value), std::move(done)};
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
  const auto finish = [this, alive = alive_, save](const Status& status) {
    if (!*alive) return;
    busy_ = false;
    bytes_ -= save->value.size();
    save->value.clear();
    save->done(status);
    Begin();
  };
  const Status posted =
      lane_->Post([loop = loop_, store = store_, ttl = ttl_, key = written_, save, finish] {
        const Status put = store->Put(key, save->value, ttl);
        loop->Post([finish, put] { finish(put); });
      });
  if (!posted.ok()) loop_->Post([finish, posted] { finish(posted); });
}

}  // namespace troupe::daemons
