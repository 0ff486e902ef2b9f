// The Coordinator and its record: terms, conflicts, stores that forget.
#include <algorithm>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {
namespace {

constexpr int kTermShift = 40;
constexpr int kOwnerShift = 24;
constexpr int kConflictsAtOnce = 2;
constexpr int kConflictsSlowest = 20;  // Times store_retry.

}  // namespace

// Plans and attempts to link ahead are numbered within the term of their coordinator, and within
// what tells it from another one that was given the same term by a store that had lost the count.
uint64_t Coordinator::FirstOfTerm(uint64_t term) const {
  uint64_t mark = 0;
  for (const char c : options_.owner) mark = (mark * 31 + static_cast<unsigned char>(c)) & 0xFFFF;
  return term << kTermShift | mark << kOwnerShift;
}

// Where the count of terms was lost, plans of this coordinator may look old to its members: what
// they have seen and it has not given out lifts its term.
void Coordinator::ExceedPlan(uint64_t seen) {
  if (seen <= std::max(plan_, prelink_attempt_)) return;
  plan_ = prelink_attempt_ = FirstOfTerm((seen >> kTermShift) + 1);
  plan_boundary_ = 0;
}

void Coordinator::OnStore(const StoreAnswered& answer) {
  const bool ending = phase_ == GroupPhase::kEnding;
  if ((phase_ != GroupPhase::kPersisting && !ending) || answer.request != request_) return;
  if (answer.code == ErrorCode::kOk && ending) {
    out_.actions.emplace_back(GroupEnded{});
    out_.reason = "every member finished";
    End(GroupPhase::kEnded);
    return;
  }
  if (answer.code == ErrorCode::kOk) {
    conflicts_ = 0;
    stored_ =
        EpochRecord{options_.owner, options_.term, next_, next_seniority_, false, Finishing()};
    const bool all_alive = std::all_of(
        next_.members.begin(), next_.members.end(),
        [&](const ViewMember& m) { return peers_.contains(m.id) && !finished_.contains(m.id); });
    // A member that was heard meanwhile may know a later epoch.
    if (all_alive && next_.epoch == last_epoch_) {
      BeginPreparing();
    } else {
      Propose(cause_, false, Survivors());
    }
    return;
  }
  if (answer.code == ErrorCode::kConflict) {
    if (answer.actual && answer.actual->term > options_.term) {
      out_.actions.emplace_back(Deposed{});
      out_.reason = "another coordinator (" + answer.actual->owner + ") owns the group";
      deposed_ = true;
      peers_.clear();  // They are the other's: nothing is said to them any more.
      End(GroupPhase::kFailed);
      return;
    }
    // An older coordinator that still runs, our own write whose answer was lost, or a store that
    // came back empty: go on from what it holds; our next write ends the older one.
    stored_ = answer.actual;
    finishing_ = finishing_ || (stored_ && stored_->finishing);
    if (stored_) last_epoch_ = std::max(last_epoch_, stored_->view.epoch);
    // Twice is a race; more often something else writes there, and is not to be raced with.
    if (++conflicts_ > kConflictsAtOnce) {
      waiting_for_ = "the store, where the record of the group changes under every write";
      store_retry_at_ = now_ + options_.store_retry * std::min(conflicts_, kConflictsSlowest);
      return;
    }
    Retry();
    return;
  }
  store_retry_at_ = now_ + options_.store_retry;
  waiting_for_ = "the store (Redis) to answer";
}

// Writes the epoch that is to come, or the end, anew.
void Coordinator::Retry() {
  store_retry_at_ = Time::Never();
  if (phase_ == GroupPhase::kEnding) PersistEnd();
  if (phase_ != GroupPhase::kPersisting) return;
  // What was learned meanwhile, from the store or from a member, may be a later epoch.
  const bool stored = stored_ && stored_->view.epoch >= next_.epoch;
  if (stored || last_epoch_ > next_.epoch) next_.epoch = ++last_epoch_;
  Persist();
}

void Coordinator::Persist() {
  phase_ = GroupPhase::kPersisting;
  phase_deadline_ = Time::Never();
  store_retry_at_ = Time::Never();
  waiting_for_ = "the store";
  out_.actions.emplace_back(PersistRecord{
      ++request_,
      EpochRecord{options_.owner, options_.term, next_, next_seniority_, false, Finishing()},
      stored_});
}

// The end is stored before anybody is sent away, so that a restarted coordinator does not wait for
// members.
void Coordinator::PersistEnd() {
  phase_ = GroupPhase::kEnding;
  phase_deadline_ = Time::Never();
  store_retry_at_ = Time::Never();
  waiting_for_ = "the store";
  out_.actions.emplace_back(PersistRecord{
      ++request_,
      EpochRecord{options_.owner, options_.term, current_, next_seniority_, true, Finishing()},
      stored_});
}

}  // namespace troupe::groups
