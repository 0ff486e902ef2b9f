#include "runtime/turn_taking.h"

namespace troupe {
namespace {

// A helper that has been there for so many looks of the keeper is likely to stay.
constexpr int kLooksBeforeSleep = 20;

}  // namespace

bool TurnTaking::Help() {
  if (stopped_.load() || helping_.exchange(true)) return false;
  helpers_.fetch_add(1);
  if (!turn_.try_lock()) {
    if (keeping_.load()) wake_();
    turn_.lock();  // Of the keeper, which stands back, or of somebody who is about to end.
  }
  Take();
  return true;
}

void TurnTaking::EndHelp() {
  LetGo();
  turn_.unlock();
  last_help_.store(SteadyClock().Now().ns);
  helping_.store(false);
  helpers_.fetch_sub(1);
  // Whoever waits without helping must not have to wait for the keeper's patience.
  if (!asleep_.load() && parked_.load() == 0) return;
  if (parked_.load() > 0) last_help_.store(0);
  std::lock_guard lock(keeper_mu_);
  keeper_wake_.notify_one();
}

bool TurnTaking::TryTurn() {
  if (!turn_.try_lock()) return false;
  if (stopped_.load()) {
    turn_.unlock();
    return false;
  }
  Take();
  return true;
}

void TurnTaking::EndTurn() {
  LetGo();
  turn_.unlock();
}

void TurnTaking::Keep() {
  {
    std::unique_lock lock(keeper_mu_);
    int looks = 0;
    while (!stopped_.load()) {
      const bool helped = helpers_.load() > 0;
      const Time last{last_help_.load()};
      if (!helped && SteadyClock().Now() >= last + kKeeperPatience) break;
      looks = helped ? looks + 1 : 0;
      if (looks < kLooksBeforeSleep) {
        keeper_wake_.wait_for(lock, kKeeperPatience);
        continue;
      }
      asleep_.store(true);
      keeper_wake_.wait(lock, [this] { return stopped_.load() || helpers_.load() == 0; });
      asleep_.store(false);
      looks = 0;
    }
  }
  turn_.lock();
  Take();
  keeping_.store(true);
}

void TurnTaking::EndKeep() {
  keeping_.store(false);
  LetGo();
  turn_.unlock();
}

void TurnTaking::Stop() {
  stopped_.store(true);
  {
    std::lock_guard lock(keeper_mu_);
    keeper_wake_.notify_one();
  }
  wake_();
}

}  // namespace troupe
