#include "actors/core/actor_holders.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/mutation.h"

namespace troupe::actors {
namespace {

constexpr size_t kIdDigits = 16;

}  // namespace

std::optional<uint64_t> HandleOf(const std::string& actor) {
  if (actor.size() != kIdDigits) return std::nullopt;
  if (actor.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
  return std::strtoull(actor.c_str(), nullptr, 16);
}

std::string ActorOfHandle(uint64_t number) {
  char text[kIdDigits + 1];
  std::snprintf(text, sizeof text, "%016" PRIx64, number);
  return text;
}

// ---- actors ----

void ActorHolders::Made(uint64_t actor, const std::string& by) {
  Counted& counted = actors_[actor];
  if (counted.processes.contains(by)) return;  // It has said more since.
  Set(actor, HoldOf(actor, by), true);
  if (TROUPE_MUTATED("HC-1 who has made it does not hold it")) Set(actor, HoldOf(actor, by), false);
}

void ActorHolders::Restored(uint64_t actor) {
  complete_ = TROUPE_MUTATED("HC-1 a new head does not wait");
  actors_.try_emplace(actor);
  unheld_.insert(actor);
}

void ActorHolders::Ended(uint64_t actor) {
  const auto it = actors_.find(actor);
  if (it == actors_.end()) return;
  for (const auto& [name, hold] : it->second.processes) {
    const auto process = processes_.find(name);
    process->second.actors.erase(actor);
    if (process->second.actors.empty()) processes_.erase(process);
  }
  holds_ -= it->second.processes.size();
  actors_.erase(it);
  unheld_.erase(actor);
}

ActorHolders::Hold& ActorHolders::HoldOf(uint64_t actor, const std::string& process) {
  const auto [entry, fresh] = actors_.at(actor).processes.try_emplace(process);
  if (fresh) {
    ++holds_;
    processes_[process].actors.insert(actor);
  }
  return entry->second;
}

void ActorHolders::Set(uint64_t actor, Hold& hold, bool held) {
  if (std::exchange(hold.held, held) == held) return;
  size_t& holders = actors_.at(actor).holders;
  holders = held ? holders + 1 : holders - 1;
  if (holders > 0 && !TROUPE_MUTATED("HC-1 holders do not count")) {
    unheld_.erase(actor);
  } else if (!TROUPE_MUTATED("HC-2 nobody is told of the last")) {
    unheld_.insert(actor);
  }
}

// ---- processes ----

void ActorHolders::OnNotes(const std::string& from, const std::vector<RefNote>& notes) {
  for (const RefNote& note : notes) {
    if (!actors_.contains(note.number)) continue;  // It has ended, or is not counted.
    Hold& hold = HoldOf(note.number, from);
    if (note.version <= hold.version && !TROUPE_MUTATED("HC-3 old notes count")) continue;
    hold.version = note.version;
    Set(note.number, hold, note.held);
    if (holds_ > kHoldsMax) Ended(note.number);
  }
}

void ActorHolders::Gone(Time now, const std::string& process, const std::string& heir) {
  Settle(now, process);
  const auto it = processes_.find(process);
  if (heir.empty() || TROUPE_MUTATED("HC-1 who comes back has held nothing")) {
    if (it != processes_.end()) it->second.gone = std::min(it->second.gone, now);
    return;
  }
  if (it != processes_.end()) {
    const std::set<uint64_t> actors = it->second.actors;
    for (const uint64_t actor : actors) {
      if (HoldOf(actor, process).held) Set(actor, HoldOf(actor, heir), true);
    }
    Forget(process);
  }
  // Also what the life before had, of which this one may not have said yet that it has it.
  if (const auto next = processes_.find(heir); next != processes_.end())
    next->second.gone = now + kHeirsMost;
  if (expected_.contains(heir) || expected_.contains(process)) expected_[heir] = now + kHeirsMost;
}

// Of what is expected: what its process had passed on is to be heard of, too.
void ActorHolders::Settle(Time now, const std::string& who) {
  if (const auto due = expected_.find(who); due != expected_.end())
    due->second = std::min(due->second, now + kRefSettle);
}

void ActorHolders::Back(Time now, const std::string& heir) {
  Settle(now, heir);
  const auto it = processes_.find(heir);
  if (it != processes_.end()) it->second.gone = std::min(it->second.gone, now);
}

void ActorHolders::Forget(const std::string& process) {
  const auto node = processes_.extract(process);
  if (node.empty()) return;
  for (const uint64_t actor : node.mapped().actors) {
    Set(actor, HoldOf(actor, process), false);
    actors_.at(actor).processes.erase(process);
    --holds_;
  }
}

void ActorHolders::Tick(Time now) {
  std::vector<std::string> over;
  for (const auto& [name, process] : processes_) {
    if (process.gone == Time::Never() || TROUPE_MUTATED("HC-2 the dead hold for ever")) continue;
    if (now >= process.gone + kRefSettle || TROUPE_MUTATED("HC-1 no time to settle"))
      over.push_back(name);
  }
  for (const std::string& name : over) Forget(name);
  std::erase_if(expected_, [now](const auto& entry) { return now >= entry.second; });
}

// ---- who is told ----

void ActorHolders::Expect(const std::string& who, Time until) {
  if (!complete_) expected_.try_emplace(who, until);
}

std::optional<bool> ActorHolders::Held(uint64_t actor, const std::string& by) const {
  const auto counted = actors_.find(actor);
  if (counted == actors_.end()) return std::nullopt;
  const auto hold = counted->second.processes.find(by);
  if (hold == counted->second.processes.end()) return std::nullopt;
  return hold->second.held;
}

uint64_t ActorHolders::Heard(uint64_t actor, const std::string& from) const {
  const auto counted = actors_.find(actor);
  if (counted == actors_.end()) return 0;
  const auto hold = counted->second.processes.find(from);
  return hold == counted->second.processes.end() ? 0 : hold->second.version;
}

std::vector<uint64_t> ActorHolders::TakeUnheld() {
  if (!complete_) return {};
  if (!expected_.empty() && !TROUPE_MUTATED("HC-1 a new head does not wait for all")) return {};
  const std::set<uint64_t> told = std::exchange(unheld_, {});
  return {told.begin(), told.end()};
}

}  // namespace troupe::actors
