#include "tests/sim/cluster/sim_head.h"

#include <utility>

#include "daemons/protocol/messages.h"

namespace troupe::daemons::sim {

Status SimLane::Post(std::function<void()> fn) {
  queue_.push_back(std::move(fn));
  if (!std::exchange(armed_, true)) Next();
  return Status::Ok();
}

void SimLane::Next() {
  const bool slow = world_->Uniform() < 0.01;
  loop_->CallAfter(world_->Between(microseconds(50), slow ? milliseconds(300) : milliseconds(1)),
                   [this] {
                     armed_ = false;
                     if (queue_.empty()) return;
                     const std::function<void()> fn = std::move(queue_.front());
                     queue_.pop_front();
                     fn();
                     if (!queue_.empty() && !std::exchange(armed_, true)) Next();
                   });
}

// ---- store ----

template <class F>
auto SimStore::Write(F&& write) -> decltype(write()) {
  const Error gone{ErrorCode::kUnavailable, "this head is dead"};
  if (dead_) return gone;
  if (left_ > 0 && --left_ == 0) {
    dead_ = true;
    if (world_->Uniform() < 0.5) (void)write();  // It was done, and nobody heard of it.
    world_->loop().Post([world = world_] { world->HeadDies(true); });
    return gone;
  }
  return write();
}

Result<std::optional<std::string>> SimStore::Get(std::string_view key) {
  return world_->store().Get(key);
}
Status SimStore::Put(std::string_view key, std::string_view value, Duration ttl) {
  const auto known = [&] {
    const auto value = world_->store().Get(key);
    return value.ok() && value->has_value();
  };
  const bool lost =
      (world_->Mutated(Mutation::kStateNotKept) && key.ends_with("/state") && known()) ||
      (world_->Mutated(Mutation::kLivesNotKept) && key.ends_with("/life") && known()) ||
      (world_->Mutated(Mutation::kEndNotKept) && key.ends_with("/ended"));
  if (lost) return Status::Ok();
  return Write([&] { return world_->store().Put(key, value, ttl); });
}
Status SimStore::CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                               std::string_view value, Duration ttl) {
  return Write([&] { return world_->store().CompareAndSet(key, expected, value, ttl); });
}
Result<int64_t> SimStore::Increment(std::string_view key, int64_t by) {
  return Write([&] { return world_->store().Increment(key, by); });
}
Status SimStore::Delete(std::string_view key) {
  return Write([&] { return world_->store().Delete(key); });
}
Result<std::map<std::string, std::string>> SimStore::List(std::string_view prefix) {
  return world_->store().List(prefix);
}
Result<size_t> SimStore::DeletePrefix(std::string_view prefix) {
  return Write([&] { return world_->store().DeletePrefix(prefix); });
}

// ---- head ----

SimHead::SimHead(World* world)
    : port_(world, kHeadName, kHeadHost), lane_(world, &port_.loop()), store_(world) {
  HeadOptions options;
  options.new_id = [world] { return world->NewId(); };
  service_ = std::make_unique<HeadService>(&port_, &lane_, &store_, &spool_, options);
  const Status started = service_->Start();
  if (!started.ok()) world->Fail("the head does not start: " + started.error().message);
}

SimHead::~SimHead() { Die(); }

void SimHead::Die() {
  port_.Stop();
  lane_.Stop();
}

}  // namespace troupe::daemons::sim
