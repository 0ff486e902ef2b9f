// How HeadService asks the scheduler for room for its jobs, and passes on what that decides.
#include <algorithm>
#include <csignal>

#include "daemons/head/head_service.h"
#include "runtime/log.h"

namespace troupe::daemons {
namespace {

constexpr const char* kJobLease = "job/";  // "job/ID/HEAD.NUMBER".

}  // namespace

// `gang`: the first workers, of which there must be enough at once.
void HeadService::AskForRoom(Job& job, uint32_t count, bool gang) {
  const PlacementStrategy strategy = *ParsePlacementStrategy(job.spec.strategy);
  std::vector<sched::LeaseRequest> leases;
  for (uint32_t i = 0; i < count; ++i) {
    sched::LeaseRequest lease;
    lease.id = kJobLease + job.spec.job + "/" + log_id_ + "." + std::to_string(job.next_lease++);
    lease.resources = job.need;
    lease.strategy = strategy == PlacementStrategy::kStrictPack     ? PlacementStrategy::kPack
                     : strategy == PlacementStrategy::kStrictSpread ? PlacementStrategy::kSpread
                                                                    : strategy;
    job.pending.insert(lease.id);
    leases.push_back(std::move(lease));
  }
  const std::string name = job.spec.job;
  if (gang && count > 1) {
    Schedule(sched::RequestGang{std::move(leases), strategy,
                                std::min<size_t>(count, job.spec.min_workers)});
  } else {
    for (sched::LeaseRequest& lease : leases) Schedule(sched::Request{std::move(lease)});
  }
  if (const auto it = jobs_.find(name); it != jobs_.end()) CheckRoom(it->second);
}

void HeadService::GiveUpRoom(Job& job, size_t count) {
  for (; count > 0 && !job.pending.empty(); --count) {
    const std::string lease = *job.pending.rbegin();
    job.pending.erase(lease);
    Schedule(sched::Cancel{lease});
  }
}

// Why it waits; and whether that makes sense.
void HeadService::CheckRoom(Job& job) {
  if (job.done() || job.pending.empty()) return;
  const std::optional<sched::LeaseStatus> lease = scheduler_.FindLease(*job.pending.begin());
  if (!lease) return;
  job.reason = lease->reason;
  if (!job.record.workers.empty()) return;
  const bool all_alive = std::ranges::all_of(
      nodes_.nodes(), [](const auto& node) { return node.second.state == NodeState::kAlive; });
  const bool patient = offered_.empty() || !all_alive || !lease->impossible || !options_.embedded;
  const bool late =
      Now() > job.submitted + milliseconds(static_cast<int64_t>(job.spec.start_timeout_s * 1000));
  if (!patient || late) End(job, "failed", "cannot place " + job.spec.name + ": " + lease->reason);
}

Job* HeadService::JobOfLease(const std::string& lease) {
  if (!lease.starts_with(kJobLease)) return nullptr;
  const size_t begin = std::string_view(kJobLease).size();
  const auto it = jobs_.find(lease.substr(begin, lease.find('/', begin) - begin));
  return it == jobs_.end() ? nullptr : &it->second;
}

void HeadService::OnGranted(const sched::Granted& granted) {
  Job* job = JobOfLease(granted.lease);
  if (job == nullptr || job->pending.erase(granted.lease) == 0) {
    // One that was claimed has its worker.
    const bool used =
        job != nullptr && std::ranges::any_of(job->record.workers, [&](const JobWorker& worker) {
          return worker.lease == granted.lease;
        });
    if (!used) Schedule(sched::Release{granted.lease});
    return;
  }
  if (Now() < job->quiet_until) {  // Its group is being re-formed; Fill starts it then.
    job->granted.push_back(granted);
    return;
  }
  StartWorkerOn(*job, granted);
}

void HeadService::OnRevoked(const sched::Revoked& revoked) {
  if (revoked.waits_again) Schedule(sched::Cancel{revoked.lease});  // Fill asks for another.
  Job* job = JobOfLease(revoked.lease);
  if (job == nullptr) return;
  job->pending.erase(revoked.lease);
  std::erase_if(job->granted, [&](const auto& one) { return one.lease == revoked.lease; });
  for (const JobWorker& worker : job->record.workers) {
    if (worker.lease == revoked.lease && worker.alive())
      Kill(worker.process, SIGKILL, revoked.reason);
  }
}

void HeadService::OnRefused(const sched::Refused& refused) {
  Job* job = JobOfLease(refused.what);
  if (job == nullptr) return;
  for (const JobWorker& worker : job->record.workers) {
    // Claimed after a restart, and there is no room for it.
    if (worker.lease == refused.what && worker.alive())
      Kill(worker.process, SIGKILL, refused.error.message);
  }
  if (!job->pending.contains(refused.what)) return;
  job->pending.clear();
  if (!job->done())
    End(*job, "failed", "cannot place " + job->spec.name + ": " + refused.error.message);
}

// What is decided may lead to the next question; they are asked one after another.
void HeadService::Schedule(const SchedulerEvent& event) {
  to_schedule_.push_back(event);
  if (std::exchange(scheduling_, true)) return;
  while (!to_schedule_.empty()) {
    const SchedulerEvent next = std::move(to_schedule_.front());
    to_schedule_.pop_front();
    const SchedulerDecision decision = scheduler_.Step(Now(), next);
    const auto of_actor = [](const std::string& lease) { return lease.starts_with(kActorLease); };
    // Groups first: what the others are told of may lie in them.
    for (const auto& one : decision.groups) placement_groups_.OnChange(one);
    for (const auto& one : decision.revoked)
      of_actor(one.lease) ? actors_.OnRevoked(one) : OnRevoked(one);
    for (const auto& one : decision.granted)
      of_actor(one.lease) ? actors_.OnGranted(one) : OnGranted(one);
    for (const auto& one : decision.refused) {
      LogWarning("the scheduler refused ", one.what, ": ", one.error.message);
      if (one.what.starts_with(actors::kGroupId)) {
        placement_groups_.OnRefused(one);
      } else {
        of_actor(one.what) ? actors_.OnRefused(one) : OnRefused(one);
      }
    }
  }
  scheduling_ = false;
  ScheduleWake();
}

void HeadService::ScheduleWake() {
  const Time wake = scheduler_.next_wake();
  if (wake == Time::Never() || wake >= wake_at_) return;
  wake_at_ = wake;
  transport_->loop().CallAt(wake, [this, alive = alive_, wake] {
    if (!*alive || wake_at_ != wake) return;
    wake_at_ = Time::Never();
    Schedule(sched::Wake{});
  });
}

}  // namespace troupe::daemons
