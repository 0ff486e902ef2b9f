// Drivers as HeadCore sees them: whether they are there, what ends without them, and how long a
// run that has ended can be asked for.
#include <algorithm>

#include "daemons/head/core/head_core.h"

namespace troupe::daemons {
namespace {

// For drivers that ask late; longer for one that may be silent longer, unless it has seen all.
constexpr Duration kEndedJobsKept = seconds(300);
// Of all that have ended: then the oldest go before their time.
constexpr size_t kEndedJobsMax = 1000;
constexpr uint64_t kEndedBytesMax = uint64_t{256} << 20;
constexpr uint64_t kEndedFileBytesMax = uint64_t{4} << 30;
constexpr Duration kLookFrom = seconds(1);  // Of silence: whether its process runs.
constexpr size_t kDriversMax = 10'000;
constexpr double kSilenceMax = 1e9;                  // In nanoseconds it still fits a Duration.
constexpr uint64_t kDrainMsMax = 1'000'000'000'000;  // Likewise.
constexpr size_t kRunsNamed = 10;                    // In a message.

Duration SilenceOf(double seconds) {
  return Duration(static_cast<int64_t>(std::clamp(seconds, 0.0, kSilenceMax) * 1e9));
}

}  // namespace

void HeadCore::OnDriverHello(const std::string& from, const DriverHello& hello) {
  if (drivers_.size() < kDriversMax || drivers_.contains(hello.driver))
    drivers_[hello.driver] = {hello.place, SilenceOf(hello.silence_s), Now()};
  for (auto& [name, job] : jobs_) {
    if (job.record.driver != hello.driver) continue;
    driver_peers_[hello.driver] = from;
    if (job.done()) {  // It need not ask, if it knows that from the head before.
      SendEvents(job);
      continue;
    }
    job.driver_heard = Now();
    if (job.record.driver_place == hello.place) continue;
    job.record.driver_place = hello.place;
    Save(job);
  }
}

void HeadCore::OnLeave(const std::string& from, const JobCommand& command) {
  drivers_.erase(command.job);
  for (auto& [name, job] : jobs_) {
    if (job.record.driver != command.job || job.done() || job.spec.detached) continue;
    End(job, JobState::kCancelled, "its driver has ended");
    job.end_kept = false;  // There is nobody to tell.
    Forget(job);
  }
  ReplyWhenKept(from, command.request);
}

void HeadCore::OnDrainNode(const std::string& from, const JobCommand& command) {
  std::string there;
  for (const auto& [id, node] : nodes_.nodes()) {
    if (node.up()) there += (there.empty() ? "" : ", ") + id;
  }
  const auto node = nodes_.nodes().find(command.member);
  if (node == nodes_.nodes().end() || !node->second.up()) {
    return Reply(from, command.request,
                 Error{ErrorCode::kNotFound, "no node " + command.member + " is up; there is " +
                                                 (there.empty() ? "none" : there)});
  }
  Reply(from, command.request, Status::Ok());
  ApplyNodes(nodes_.Step(
      Now(),
      NodeDrain{command.member, Now() + milliseconds(std::min(command.deadline_ms, kDrainMsMax)),
                "asked by `troupe drain`"}));
}

std::optional<std::string> HeadCore::DriverLost(const std::string& place, Time heard,
                                                Duration silence) const {
  if (Now() > heard + kLookFrom && options_.surely_ended(place)) return "its driver has ended";
  if (Now() <= heard + silence) return std::nullopt;
  return "its driver has been silent for " +
         std::to_string(static_cast<int64_t>(ToSeconds(silence))) +
         " s (driver_silence_s; runs with detached=True need no driver)";
}

std::optional<std::string> HeadCore::OwnerLost(const std::string& owner, Time heard) const {
  const std::string driver = owner.substr(owner.find('/') + 1);
  const auto known = drivers_.find(driver);
  if (known == drivers_.end()) return DriverLost("", heard, options_.driver_lease);
  return DriverLost(known->second.place, std::max(heard, known->second.heard),
                    known->second.silence);
}

std::optional<std::string> HeadCore::DriverLost(const Job& job) const {
  return DriverLost(job.record.driver_place, job.driver_heard,
                    SilenceOf(job.spec.driver_silence_s));
}

void HeadCore::EndWithoutDriver(Job& job) {
  if (job.spec.detached) return job.events.SetUnattended(!Attended(job));
  if (const auto why = DriverLost(job)) End(job, JobState::kCancelled, *why);
}

bool HeadCore::Attended(const Job& job) const {
  return Now() <= job.driver_heard + options_.driver_lease;
}

void HeadCore::TakeUp(Job& job, const std::string& driver) {
  if (job.record.driver == driver || Attended(job)) return;
  queue_.Note("run ", job.spec.job, " has a new driver, ", driver);
  job.record.driver = driver;
  const auto known = drivers_.find(driver);
  job.record.driver_place = known == drivers_.end() ? "" : known->second.place;
  job.events.Promote(driver);
  job.events.SetUnattended(false);
  if (!job.done()) Save(job);
}

std::vector<std::string> HeadCore::Outdated() {
  std::erase_if(drivers_, [&](const auto& entry) {
    const Driver& driver = entry.second;
    return DriverLost(driver.place, driver.heard, std::max(driver.silence, options_.driver_lease))
        .has_value();
  });
  std::vector<std::string> over;
  std::vector<std::pair<Time, std::string>> kept;
  uint64_t bytes = 0;
  uint64_t file_bytes = 0;
  for (auto& [name, job] : jobs_) {
    if (!job.done()) continue;
    if (job.ended == Time::Never()) {
      job.ended = Now();
      job.spec.payload = {};
      job.results.clear();  // They are events now.
    }
    const bool awaited = !job.events.all_seen() && !options_.surely_ended(job.record.driver_place);
    Duration keep = kEndedJobsKept;
    if (job.spec.detached) {
      keep = options_.detached_kept;
    } else if (awaited) {
      keep = std::max(keep, SilenceOf(job.spec.driver_silence_s));
    }
    if (Now() > std::max(job.driver_heard, job.ended) + keep) {
      over.push_back(name);
      continue;
    }
    bytes += job.events.bytes();
    file_bytes += job.events.file_bytes();
    kept.emplace_back(job.ended, name);
  }
  std::ranges::sort(kept);
  for (size_t i = 0; i < kept.size(); ++i) {
    const Job& job = jobs_.at(kept[i].second);
    const bool much = kept.size() - i > kEndedJobsMax || bytes > kEndedBytesMax ||
                      file_bytes > kEndedFileBytesMax;
    if (!much || Now() <= job.ended + kEndedJobsKept) break;
    bytes -= job.events.bytes();
    file_bytes -= job.events.file_bytes();
    over.push_back(kept[i].second);
  }
  return over;
}

Error HeadCore::NoRun(const std::string& job) const {
  std::string there;
  size_t named = 0;
  for (const auto& [name, known] : jobs_) {
    if (++named > kRunsNamed) continue;
    there += (there.empty() ? "" : ", ") + name + " (" + known.spec.name + ", " +
             JobStateName(known.state) + ")";
  }
  if (named > kRunsNamed) there += " and " + std::to_string(named - kRunsNamed) + " more";
  return {ErrorCode::kNotFound, "no run " + job + "; it may be long over. There " +
                                    (named == 0 ? "are none" : "is " + there)};
}

}  // namespace troupe::daemons
