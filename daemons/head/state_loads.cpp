#include "daemons/head/state_loads.h"

#include <utility>

#include "actors/core/cluster_protocol.h"

namespace troupe::daemons {

StateLoads::StateLoads(EventLoop* loop, Lane* lane, Store* store, Give give)
    : loop_(loop), lane_(lane), store_(store), give_(std::move(give)) {}

void StateLoads::Ask(const std::string& process, const std::string& key) {
  const auto [it, added] = loads_.try_emplace(process);
  Load& load = it->second;
  if (!added && (!load.given || (load.large && loop_->Now() < load.again_at))) return;
  Uncount(load);
  load.key = key;
  load.given = false;
  order_.push_back(process);
  ReadNext();
}

void StateLoads::Done(const std::string& process) {
  const auto it = loads_.find(process);
  if (it == loads_.end()) return;
  Uncount(it->second);
  loads_.erase(it);
  ReadNext();
}

void StateLoads::ReadNext() {
  if (reading_ || bytes_ >= kLoadsBytesMax) return;
  while (!order_.empty()) {
    const std::string process = std::move(order_.front());
    order_.pop_front();
    const auto it = loads_.find(process);
    if (it == loads_.end() || it->second.given) continue;
    reading_ = true;
    const Status posted =
        lane_->Post([this, back = scope_.back(), store = store_, process, key = it->second.key] {
          auto read = std::make_shared<Result<std::optional<std::string>>>(store->Get(key));
          back.Post([this, process, read] { OnRead(process, std::move(*read)); });
        });
    if (posted.ok()) return;
    reading_ = false;
    loads_.erase(it);  // It asks again.
  }
}

void StateLoads::OnRead(const std::string& process, Result<std::optional<std::string>> read) {
  reading_ = false;
  const auto it = loads_.find(process);
  if (it != loads_.end() && !read.ok()) loads_.erase(it);  // It asks again.
  if (it != loads_.end() && read.ok()) {
    Load& load = it->second;
    const size_t size = read->has_value() ? (*read)->size() : 0;
    load.given = true;
    load.large = size > actors::kDirectStateBytesMax;
    load.again_at = loop_->Now() + std::exchange(load.again, 2 * load.again);
    load.number = ++last_number_;
    if (load.large) {
      bytes_ += load.bytes = size;
      scope_.CallAfter(kLoadIsTakenWithin, [this, process, number = load.number] {
        const auto late = loads_.find(process);
        if (late == loads_.end() || late->second.number != number) return;
        Uncount(late->second);
        ReadNext();
      });
    }
    give_(process, std::move(*read));
  }
  ReadNext();
}

void StateLoads::Uncount(Load& load) { bytes_ -= std::exchange(load.bytes, 0); }

}  // namespace troupe::daemons
