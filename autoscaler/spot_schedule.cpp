#include "autoscaler/spot_schedule.h"

#include <algorithm>
#include <utility>

namespace troupe {

SpotSchedule::SpotSchedule(std::vector<SpotEvent> events) {
  for (SpotEvent& event : events) {
    if (event.kind == SpotEvent::Kind::kAdd) offers_[event.pool] = 0;
    (event.after_running ? waiting_ : events_).push_back(std::move(event));
  }
  Sort();
}

void SpotSchedule::Sort() {
  std::stable_sort(events_.begin() + static_cast<std::ptrdiff_t>(taken_), events_.end(),
                   [](const SpotEvent& a, const SpotEvent& b) { return a.at < b.at; });
}

void SpotSchedule::TrainingRuns(Duration since_start) {
  for (SpotEvent& event : waiting_) {
    event.at += since_start;
    events_.push_back(std::move(event));
  }
  waiting_.clear();
  Sort();
}

std::vector<SpotEvent> SpotSchedule::TakeDue(Duration since_start) {
  std::vector<SpotEvent> due;
  while (taken_ < events_.size() && events_[taken_].at <= since_start) {
    const SpotEvent& event = events_[taken_++];
    const auto offer = offers_.find(event.pool);
    if (offer != offers_.end()) {
      const bool adds = event.kind == SpotEvent::Kind::kAdd;
      offer->second = std::max(0, offer->second + (adds ? event.count : -1));
    }
    due.push_back(event);
  }
  return due;
}

std::optional<Duration> SpotSchedule::next() const {
  if (taken_ == events_.size()) return std::nullopt;
  return events_[taken_].at;
}

std::optional<int> SpotSchedule::OfferOf(const std::string& pool) const {
  const auto found = offers_.find(pool);
  if (found == offers_.end()) return std::nullopt;
  return found->second;
}

}  // namespace troupe
