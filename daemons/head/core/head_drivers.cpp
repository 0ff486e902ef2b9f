// Drivers as HeadCore sees them: whether they are there, what ends without them, and how long a
// run that has ended can be asked for.
#include <algorithm>

#include "daemons/head/core/head_core.h"

namespace troupe::daemons {
namespace {

// For drivers that ask late; longer for one that may be silent longer, unless it has seen all.
constexpr Duration kEndedRunsKept = seconds(300);
// Of all that have ended: then the oldest go before their time.
constexpr size_t kEndedRunsMax = 1000;
constexpr uint64_t kEndedBytesMax = uint64_t{256} << 20;
constexpr uint64_t kEndedFileBytesMax = uint64_t{4} << 30;
constexpr Duration kLookFrom = seconds(1);  // Of silence: whether its process runs.
constexpr size_t kDriversMax = 10'000;
constexpr double kSilenceMax = 1e9;  // In nanoseconds it still fits a Duration.
constexpr size_t kReasonMax = 200;   // Bytes of a drain's.
constexpr size_t kRunsNamed = 10;    // In a message.

Duration SilenceOf(double seconds) {
  return Duration(static_cast<int64_t>(std::clamp(seconds, 0.0, kSilenceMax) * 1e9));
}

}  // namespace

void HeadCore::OnDriverHello(const std::string& from, const DriverHello& hello) {
  if (drivers_.size() < kDriversMax || drivers_.contains(hello.driver))
    drivers_[hello.driver] = {hello.place, SilenceOf(hello.silence_s), Now()};
  for (auto& [name, run] : runs_) {
    if (run.record.driver != hello.driver) continue;
    driver_peers_[hello.driver] = from;
    if (run.done()) {  // It need not ask, if it knows that from the head before.
      SendEvents(run);
      continue;
    }
    run.driver_heard = Now();
    if (run.record.driver_place == hello.place) continue;
    run.record.driver_place = hello.place;
    Save(run);
  }
}

void HeadCore::OnLeave(const std::string& from, const RunCommand& command) {
  drivers_.erase(command.run);
  for (auto& [name, run] : runs_) {
    if (run.record.driver != command.run || run.done() || run.spec.detached) continue;
    End(run, RunState::kCancelled, "its driver has ended");
    run.end_kept = false;  // There is nobody to tell.
    Forget(run);
  }
  ReplyWhenKept(from, command.request);
}

void HeadCore::OnDrainNode(const std::string& from, const RunCommand& command) {
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
                "asked by `troupe drain`" +
                    (command.reason.empty() ? "" : ": " + command.reason.substr(0, kReasonMax))}));
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

std::optional<std::string> HeadCore::DriverLost(const Run& run) const {
  return DriverLost(run.record.driver_place, run.driver_heard,
                    SilenceOf(run.spec.driver_silence_s));
}

void HeadCore::EndWithoutDriver(Run& run) {
  if (run.spec.detached) return run.events.SetUnattended(!Attended(run));
  if (const auto why = DriverLost(run)) End(run, RunState::kCancelled, *why);
}

bool HeadCore::Attended(const Run& run) const {
  return Now() <= run.driver_heard + options_.driver_lease;
}

void HeadCore::TakeUp(Run& run, const std::string& driver) {
  if (run.record.driver == driver || Attended(run)) return;
  queue_.Note("run ", run.spec.id, " has a new driver, ", driver);
  run.record.driver = driver;
  const auto known = drivers_.find(driver);
  run.record.driver_place = known == drivers_.end() ? "" : known->second.place;
  run.events.Promote(driver);
  run.events.SetUnattended(false);
  if (!run.done()) Save(run);
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
  for (auto& [name, run] : runs_) {
    if (!run.done()) continue;
    if (run.ended == Time::Never()) {
      run.ended = Now();
      run.spec.payload = {};
      run.results.clear();  // They are events now.
    }
    const bool awaited = !run.events.all_seen() && !options_.surely_ended(run.record.driver_place);
    Duration keep = kEndedRunsKept;
    if (run.spec.detached) {
      keep = options_.detached_kept;
    } else if (awaited) {
      keep = std::max(keep, SilenceOf(run.spec.driver_silence_s));
    }
    if (Now() > std::max(run.driver_heard, run.ended) + keep) {
      over.push_back(name);
      continue;
    }
    bytes += run.events.bytes();
    file_bytes += run.events.file_bytes();
    kept.emplace_back(run.ended, name);
  }
  std::ranges::sort(kept);
  for (size_t i = 0; i < kept.size(); ++i) {
    const Run& run = runs_.at(kept[i].second);
    const bool much = kept.size() - i > kEndedRunsMax || bytes > kEndedBytesMax ||
                      file_bytes > kEndedFileBytesMax;
    if (!much || Now() <= run.ended + kEndedRunsKept) break;
    bytes -= run.events.bytes();
    file_bytes -= run.events.file_bytes();
    over.push_back(kept[i].second);
  }
  return over;
}

Error HeadCore::NoRun(const std::string& run) const {
  std::string there;
  size_t named = 0;
  for (const auto& [name, known] : runs_) {
    if (++named > kRunsNamed) continue;
    there += (there.empty() ? "" : ", ") + name + " (" + known.spec.name + ", " +
             RunStateName(known.state) + ")";
  }
  if (named > kRunsNamed) there += " and " + std::to_string(named - kRunsNamed) + " more";
  return {ErrorCode::kNotFound, "no run " + run + "; it may be long over. There " +
                                    (named == 0 ? "are none" : "is " + there)};
}

}  // namespace troupe::daemons
