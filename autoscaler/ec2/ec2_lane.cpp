#include "autoscaler/ec2/ec2_lane.h"

#include <chrono>
#include <random>
#include <utility>

#include "autoscaler/exec_command.h"
#include "runtime/thread.h"

namespace troupe::ec2 {
namespace {

constexpr Duration kProcessLimit = seconds(60);  // Of a credential_process.
constexpr Duration kProcessLook = milliseconds(100);

}  // namespace

Ec2Lanes::Ec2Lanes(const Ec2Options* options, AwsWorld world,
                   std::function<std::unique_ptr<AwsLink>()> link, const Clock* clock,
                   Limits limits)
    : options_(options),
      link_(std::move(link)),
      clock_(clock),
      limits_(limits),
      identity_(AwsChain(WithRun(std::move(world)), options->aws)) {
  lanes_[static_cast<size_t>(Ec2Work::kCreate)].threads_max = limits.create_threads;
}

Ec2Lanes::~Ec2Lanes() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
    for (AwsLink* link : links_) link->Cancel();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status Ec2Lanes::Post(Ec2Work work, Task task, std::shared_ptr<const std::atomic<bool>> wanted) {
  {
    const std::lock_guard lock(mu_);
    Lane& lane = lanes_[static_cast<size_t>(work)];
    if (lane.waiting.size() >= limits_.waiting_max)
      return Error{ErrorCode::kBackpressure, "too many requests wait for EC2 to answer"};
    lane.waiting.push_back({std::move(task), std::move(wanted)});
    if (lane.waiting.size() > lane.idle && lane.threads < lane.threads_max) {
      ++lane.threads;
      threads_.emplace_back([this, &lane] { Run(lane); });
    }
  }
  wake_.notify_all();
  return Status::Ok();
}

bool Ec2Lanes::Step() {
  if (!has_finished_.load()) return false;
  std::vector<Finish> finished;
  {
    const std::lock_guard lock(mu_);
    finished.swap(finished_);
    has_finished_.store(false);
  }
  for (const Finish& finish : finished) finish();  // It may post more.
  return !finished.empty();
}

void Ec2Lanes::Run(Lane& lane) {
  NameThisThread("ec2");
  const std::unique_ptr<AwsLink> link = link_();
  std::minstd_rand random(std::random_device{}());
  Ec2Seams seams;
  seams.send = [&link](const HttpRequest& request) { return link->Send(request); };
  Posted current;
  seams.pause = [&](Duration span) { return Pause(span, current); };
  seams.wanted = [&] { return current.IsWanted(); };
  seams.clock = clock_;
  seams.random = [&random] { return std::uniform_real_distribution<double>(0, 1)(random); };
  Ec2Api api(options_, &identity_, seams);
  std::unique_lock lock(mu_);
  links_.insert(link.get());
  while (!stopping_) {
    if (lane.waiting.empty()) {
      ++lane.idle;
      wake_.wait(lock, [&] { return stopping_ || !lane.waiting.empty(); });
      --lane.idle;
      continue;
    }
    current = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    lock.unlock();
    Finish finish = current.task(api);
    lock.lock();
    finished_.push_back(std::move(finish));
    has_finished_.store(true);
  }
  links_.erase(link.get());
}

bool Ec2Lanes::Pause(Duration span, const Posted& of) {
  std::unique_lock lock(mu_);
  const bool wanted = of.IsWanted();
  wake_.wait_for(lock, span, [&] { return stopping_ || of.IsWanted() != wanted; });
  return !stopping_;
}

void Ec2Lanes::Wake() {
  { const std::lock_guard lock(mu_); }  // Who is about to wait has looked, or will see it.
  wake_.notify_all();
}

Result<std::string> Ec2Lanes::RunCommand(const std::string& command) {
  ExecCommand exec;
  exec.argv = {"sh", "-c", command};
  exec.limit = kProcessLimit;
  Result<RunningCommand> running = RunningCommand::Start(exec, "");
  if (!running.ok()) return running.error();
  for (;;) {
    running->Await(kProcessLook);
    if (auto answer = running->Step(SteadyClock().Now())) {
      // Nothing of what it prints is told: half of it may be a secret.
      if (!answer->ok() && answer->error().code == ErrorCode::kDeadlineExceeded)
        return Error{ErrorCode::kDeadlineExceeded, "it did not end within 60 s"};
      if (!answer->ok()) return Error{answer->error().code, "it cannot be run"};
      if ((*answer)->code != 0)
        return Error{ErrorCode::kPermissionDenied,
                     "it ended with status " + std::to_string((*answer)->code) +
                         ((*answer)->log.empty() ? "" : ": " + Printable((*answer)->log, 200))};
      return std::move((*answer)->out);
    }
    const std::lock_guard lock(mu_);
    if (!stopping_) continue;
    running->Kill();
    return Error{ErrorCode::kCancelled, "cancelled"};
  }
}

AwsWorld Ec2Lanes::WithRun(AwsWorld world) {
  world.run = [this](const std::string& command) { return RunCommand(command); };
  return world;
}

}  // namespace troupe::ec2
