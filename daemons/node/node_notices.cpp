// What NodeService is told of its own end: a file, signals, the end of a job, metadata services.
#include <chrono>
#include <fstream>
#include <utility>

#include "autoscaler/notices/notice.h"
#include "daemons/node/node_service.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"

namespace troupe::daemons {

void NodeService::WatchNotices() {
  if (options_.sources.slurm) WatchJob();
  if (options_.sources.clouds.empty()) return;
  const auto tell = [this, back = scope_.back()](const std::string& source,
                                                 notices::NoticeChange change) {
    back.Post([this, source, change = std::move(change)] { OnNotice(source, change); });
  };
  sources_ = std::make_unique<NoticeSources>(options_.sources.clouds, tell);
}

std::optional<Duration> NodeService::JobLeft() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return notices::SlurmLeft(Env("SLURM_JOB_END_TIME"),
                            std::chrono::duration_cast<seconds>(wall).count());
}

// The time of day is read once: its jumps would end the job early, or late.
void NodeService::WatchJob() {
  const std::optional<Duration> left = JobLeft();
  if (!left)
    return LogWarning("SLURM_JOB_END_TIME tells no time: the end of this job is not known");
  const Time end = transport_->loop().Now() + *left;
  scope_.CallAt(end - options_.walltime, [this, end] {
    TakeNotice({"walltime", "slurm", "the job's time ends"}, end - transport_->loop().Now());
  });
}

// On the lane: the folder may be on a file system that hangs.
void NodeService::ReadNotice() {
  if (core_.notice() || options_.notice_file.empty() || reading_notice_) return;
  reading_notice_ = files_.Post(
      0, [this, back = scope_.back(), path = options_.notice_file, left = options_.notice] {
        std::ifstream file(path);
        std::string text;
        Duration after = left;
        const bool found = file.good();
        if (found) {
          std::getline(file, text);
          double left_s = 0;
          if (file >> left_s && left_s >= 0 && left_s < 1e6)
            after = Duration(static_cast<int64_t>(left_s * 1e9));
        }
        back.Post([this, found, text, after] {
          reading_notice_ = false;
          if (!found) return;
          const std::string reason = text.substr(0, notices::kNoticeTextMax);
          TakeNotice({"preempt", "file", reason.empty() ? "preemption notice" : reason}, after);
        });
      });
}

void NodeService::Notice(NodeNotice notice, Duration left) {
  scope_.Post([this, notice = std::move(notice), left] { TakeNotice(notice, left); });
}

// `left`: of the time to drain.
void NodeService::TakeNotice(NodeNotice notice, Duration left) {
  const NodeNotice& warning = core_.warning();
  const bool counted = warning.kind == notice.kind && warning.source == notice.source;
  const std::string labels = notice.source + "," + notice.kind;
  const std::string what = notice.kind + " (" + notice.source + ": " + notice.reason + ")";
  if (!core_.Notice(std::move(notice), transport_->loop().Now() + left)) return SayHello();
  if (!counted) metrics::Add(metrics::Id::kPreemptionNotices, 1, labels);
  LogWarning("this node drains within ", static_cast<int64_t>(ToSeconds(left)), " s: ", what);
  SayHello();
}

void NodeService::OnNotice(const std::string& source, const notices::NoticeChange& change) {
  using What = notices::NoticeChange::What;
  const std::string kind(notices::KindName(change.kind));
  const std::string what = kind + " (" + source + ": " + change.text + ")";
  const std::string service = "the metadata service of " + source;
  switch (change.what) {
    case What::kHard:
      return TakeNotice({kind, source, change.text},
                        notices::DrainLimit(change.deadline - transport_->loop().Now()));
    case What::kSoft:
      LogWarning("this node may go away: ", what);
      metrics::Add(metrics::Id::kPreemptionNotices, 1, source + "," + kind);
      core_.AtRisk({kind, source, change.text}, change.deadline);
      return SayHello();
    case What::kWithdrawn:
      if (core_.warning().kind == kind && core_.warning().source == source)
        core_.AtRisk({}, Time::Never());
      LogWarning(what, change.hard ? " was taken back; this node has drained all the same, and "
                                     "takes work again after a restart"
                                   : " is over");
      return SayHello();
    case What::kTrouble:
      return LogWarning(service, " is of no use now, its notices are not seen: ", change.text);
    case What::kTroubleOver:
      return LogWarning(service, " answers again");
  }
}

void NodeService::NoteDrained() {
  if (drained_ || !core_.drained()) return;
  drained_ = true;
  LogWarning("this node has drained");
  if (sources_) sources_->Drained();
}

}  // namespace troupe::daemons
