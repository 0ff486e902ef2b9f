#include "actors/host/actor_cell.h"

#include <algorithm>
#include <utility>

#include "actors/host/actor_ref.h"
#include "actors/host/call_threads.h"
#include "actors/host/cpu_loan.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"

namespace troupe::actors {
namespace {

struct SavedActor {
  std::string state;
  std::string mailbox;
  template <class A>
  void Fields(A& a) {
    a(state, mailbox);
  }
};
constexpr uint8_t kSavedActor = 84;
constexpr Duration kLastWords = seconds(1);  // For the last reply to arrive.

Mailbox::Limits LimitsOf(const ActorBlueprint& blueprint) {
  return {std::clamp<size_t>(blueprint.mailbox_depth, 1, kMailboxDepthMax),
          std::clamp<uint64_t>(blueprint.mailbox_bytes, 1, kMailboxBytesMax), blueprint.overflow};
}

Error TooLate() {
  return Error{ErrorCode::kDeadlineExceeded, "the call waited in the mailbox past its deadline"};
}

}  // namespace

Status CheckConcurrency(const ActorBlueprint& blueprint) {
  if (!blueprint.threads || blueprint.max_concurrency <= kCallThreadsMax) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument,
               "max_concurrency is " + std::to_string(blueprint.max_concurrency) +
                   ", but calls on threads are at most " + std::to_string(kCallThreadsMax) +
                   " at once; without `threads` they are fibers, of which there may be " +
                   std::to_string(kMaxConcurrencyMax)};
}

ActorCell::ActorCell(CellHost* host, ActorSystem* system, ActorAddress self,
                     std::unique_ptr<Instance> instance, const ActorBlueprint& blueprint,
                     size_t thread)
    : host_(host),
      system_(system),
      self_(std::move(self)),
      instance_(std::move(instance)),
      max_concurrency_(std::clamp(blueprint.max_concurrency, 1U, kMaxConcurrencyMax)),
      thread_(thread),
      threads_(blueprint.threads ? std::make_unique<CallThreads>(max_concurrency_) : nullptr),
      mailbox_(self_.actor, LimitsOf(blueprint)) {}

ActorCell::~ActorCell() = default;

std::string ActorCell::Name() const {
  std::string name = self_.type + " " + self_.actor;
  if (self_.incarnation > 1) name += "#" + std::to_string(self_.incarnation);
  return name;
}

Status ActorCell::Restore(const std::string& saved) {
  Result<SavedActor> parts = wire::Decode<SavedActor>(kSavedActor, saved);
  if (!parts.ok()) return parts.error().WithContext("the saved state of " + Name());
  if (Status s = instance_->Restore(parts->state); !s.ok()) return s;
  std::lock_guard lock(mu_);
  return mailbox_.Restore(SteadyClock().Now(), parts->mailbox);
}

Error ActorCell::Ended() const {
  return Error{ErrorCode::kPeerGone, Name() + " has ended: " + ended_->message, ended_->origin};
}

// ---- from other processes ----

void ActorCell::OnCall(const std::string& from, ActorCall call) {
  Mailbox::Answer answer;
  {
    std::lock_guard lock(mu_);
    if (ended_) {  // It may have run before; else it does not any more.
      const ActorCheck check{self_.actor, self_.incarnation, call.base, {call.number}};
      answer = mailbox_.OnCheck(SteadyClock().Now(), from, check);
      Refuse(answer);
    } else {
      const size_t before = mailbox_.waiting();
      answer = mailbox_.Offer(SteadyClock().Now(), from, std::move(call));
      metrics::Add(metrics::Id::kMailboxDepth,
                   static_cast<double>(mailbox_.waiting()) - static_cast<double>(before));
      if (answer.full) metrics::Add(metrics::Id::kMailboxRejects);
      answer.work = answer.work && WantsFiber();
    }
  }
  Handle(from, std::move(answer));
}

void ActorCell::OnCheck(const std::string& from, const ActorCheck& check) {
  Mailbox::Answer answer;
  {
    std::lock_guard lock(mu_);
    answer = mailbox_.OnCheck(SteadyClock().Now(), from, check);
    if (last_ && last_->first == from && check.base > last_->second) last_arrived_->Set();
    if (ended_) Refuse(answer);
  }
  Handle(from, std::move(answer));
}

// With mu_ held, after the end: what has not come will not be taken.
void ActorCell::Refuse(Mailbox::Answer& answer) {
  for (const uint64_t number : std::exchange(answer.missing, {})) {
    if (ended_for_good_) answer.replies.push_back(ToReply(number, Ended()));
  }
}

void ActorCell::Handle(const std::string& from, Mailbox::Answer answer) {
  for (const ActorReply& reply : answer.replies) host_->SendTo(from, reply);
  if (!answer.missing.empty())
    host_->SendTo(from, ActorMissing{self_.actor, std::move(answer.missing)});
  if (answer.full) host_->SendTo(from, ActorFull{self_.actor, *answer.full});
  if (answer.work) StartMore();
}

void ActorCell::OnCancel(const std::string& from, uint64_t number, const Cancellation& how) {
  std::shared_ptr<RunningCall> running;
  std::optional<Mailbox::Work> waiting;
  {
    std::lock_guard lock(mu_);
    if (const auto it = running_.find({from, number}); it != running_.end()) running = it->second;
    if (!running) waiting = mailbox_.Withdraw(from, number);
    if (waiting) metrics::Add(metrics::Id::kMailboxDepth, -1);
    if (waiting && from.empty()) --local_waiting_;
  }
  if (running) running->Cancel(how);
  if (waiting) Answer(*waiting, Error{ErrorCode::kCancelled, "cancelled before it ran"}, false);
}

// ---- from this process ----

uint64_t ActorCell::CallLocal(std::string method, std::string arguments, Time deadline,
                              const CallDone& done) {
  std::optional<Error> refusal;
  uint64_t number = 0;
  {
    std::lock_guard lock(mu_);
    number = next_local_++;
    if (ended_) {
      refusal = Ended();
    } else if (leaving_ && stays_ && OnlyItself()) {
      refusal = Error{ErrorCode::kPeerGone, Name() + " ends: " + leaving_->message};
    } else {
      Mailbox::Work work{"", number, std::move(method), std::move(arguments), deadline, done};
      const Status taken = mailbox_.OfferLocal(std::move(work));
      if (taken.ok()) metrics::Add(metrics::Id::kMailboxDepth);
      if (taken.ok()) ++local_waiting_;
      if (!taken.ok()) refusal = taken.error();
    }
  }
  if (refusal) {
    done(*refusal);
  } else {
    StartMore();
  }
  return number;
}

// ---- running ----

Status ActorCell::RunThere(std::function<void()> fn) {
  return threads_ ? threads_->Spawn(std::move(fn)) : host_->Spawn(thread_, std::move(fn));
}

bool ActorCell::WantsFiber() const {
  const size_t wanted = std::min<size_t>(max_concurrency_, running_.size() + mailbox_.waiting());
  return fibers_ < wanted && !quiet_ && mailbox_.waiting() > 0;
}

// A fiber, or a thread, takes calls until there are none; there are as many as calls may run.
void ActorCell::StartMore() {
  for (;;) {
    {
      std::lock_guard lock(mu_);
      if (!WantsFiber()) return;
      ++fibers_;
    }
    const Status spawned = RunThere([self = shared_from_this()] { self->Drain(); });
    if (spawned.ok()) continue;
    {
      std::lock_guard lock(mu_);
      --fibers_;
    }
    return End(spawned.error());
  }
}

void ActorCell::Drain() {
  for (;;) {
    std::vector<Mailbox::Work> late;
    std::optional<Mailbox::Work> work;
    std::vector<std::string> rooms;
    const auto call = std::make_shared<RunningCall>();
    {
      std::lock_guard lock(mu_);
      if (!quiet_ && !ended_) work = mailbox_.Next(SteadyClock().Now(), late);
      rooms = mailbox_.TakeRooms();
      if (!work) --fibers_;
      if (work) running_[{work->caller, work->number}] = call;
      if (work && work->caller.empty()) --local_waiting_;
      for (const Mailbox::Work& lost : late) local_waiting_ -= lost.caller.empty() ? 1 : 0;
    }
    const auto taken = static_cast<double>(late.size() + (work ? 1 : 0));
    if (taken > 0) metrics::Add(metrics::Id::kMailboxDepth, -taken);
    for (Mailbox::Work& lost : late) Answer(lost, TooLate(), false);
    for (const std::string& caller : rooms) host_->SendTo(caller, ActorRoom{self_.actor});
    if (!work) return;
    Run(std::move(*work), call);
  }
}

void ActorCell::Run(Mailbox::Work work, const std::shared_ptr<RunningCall>& call) {
  metrics::Add(metrics::Id::kActorCalls);
  CallContext context(system_, &self_, work.caller, work.deadline, call);
  // Calls on several fibers overlap, so they are told apart by where their context lies.
  const auto id = reinterpret_cast<uint64_t>(&context);
  if (trace::On()) trace::AsyncBegin(work.method, id, {{"caller", work.caller}});
  bool answered = false;  // Already.
  context.set_answer_now(
      [&](const Result<std::string>& early) { return answered = AnswerNow(work, early); });
  SetFiberLocal(&context);
  Result<std::string> result = std::string();
  if (work.method == kNeeded) {
    result = std::string(instance_->needed() ? kIsNeeded : "");
  } else if (work.method != kPing) {
    if (instance_->runs_in_invoke()) context.set_loan(host_->loan());
    const LoanCall counted(context.loan());
    result = instance_->Invoke(context, work.method, std::move(work.arguments));
  }
  SetFiberLocal(nullptr);
  if (trace::On()) trace::AsyncEnd(work.method, id);
  if (!answered) return Finish(work, std::move(result), context.exit_reason());
  const CallKey key{work.caller, work.number};
  std::optional<Error> leaves;
  {
    std::lock_guard lock(mu_);
    running_.erase(key);
    leaves = LeavesNow();
    if (leaves) ReplyIsLast(key);
  }
  if (leaves) LeaveAfter(key, *leaves);
}

// One hold of the lock for the usual reply, for which the caller's next calls wait.
void ActorCell::Finish(Mailbox::Work& work, Result<std::string> result,
                       const std::string& exit_reason) {
  const CallKey key{work.caller, work.number};
  if (!result.ok()) result = Located(result.error());
  const bool at_once = !instance_->saves() && !work.caller.empty();
  ActorReply reply;
  if (at_once) reply = ToReply(work.number, result);
  ActorReply kept = reply;
  bool told_to_stop = false;  // What it returned then is not what it was called for.
  bool say_nothing = false;
  std::optional<Error> leaves;
  {
    std::lock_guard lock(mu_);
    running_.erase(key);
    if (!instance_->saves()) leaves = LeavesNow();  // Else when its effect is safe.
    told_to_stop = ended_.has_value();
    say_nothing = told_to_stop && !ended_for_good_ && !work.caller.empty();
    if (told_to_stop) {
      const Error why = Ended();
      result = Error{why.code, why.message + " (the call was running)", why.origin};
    } else {
      if (!exit_reason.empty()) leaves = Error{ErrorCode::kPeerGone, exit_reason};
      if (leaves) ReplyIsLast(key);
      kept.confirm = reply.confirm = leaves.has_value();
      if (at_once) mailbox_.Settle(work, std::move(kept));
    }
  }
  if (told_to_stop) {
    if (!say_nothing) Answer(work, std::move(result), false);
    return SaveIfDue();  // Others may have waited for its end.
  }
  if (at_once) {
    host_->SendTo(work.caller, reply);
  } else {
    Answer(work, std::move(result), true, leaves.has_value());
  }
  if (leaves) LeaveAfter(key, *leaves);
}

void ActorCell::ReplyIsLast(const CallKey& key) {
  last_ = key;
  last_arrived_.emplace();
}

bool ActorCell::AnswerNow(const Mailbox::Work& work, const Result<std::string>& result) {
  if (work.caller.empty() || instance_->saves()) return false;
  const ActorReply reply = ToReply(work.number, result.ok() ? result : Located(result.error()));
  {
    std::lock_guard lock(mu_);
    if (ended_) return false;
    mailbox_.Settle(work, reply);
  }
  host_->SendTo(work.caller, reply);
  return true;
}

Error ActorCell::Located(Error error) const {
  ErrorOrigin origin = error.origin ? *error.origin : ErrorOrigin{};
  if (origin.actor.empty()) origin.actor = Name();
  if (origin.node.empty()) origin.node = host_->node();
  error.origin = std::make_shared<const ErrorOrigin>(std::move(origin));
  return error;
}

// Whoever watches learns of the end by another way than the caller of its reply, which must not
// be overtaken.
void ActorCell::LeaveAfter(const CallKey& last, const Error& reason) {
  End(reason);
  if (!last.first.empty()) (void)last_arrived_->WaitFor(kLastWords);
  host_->Exited(self_, reason);
}

ActorReply ActorCell::ToReply(uint64_t number, const Result<std::string>& result) const {
  ActorReply reply{self_.actor, number, {}, "", false};
  if (result.ok()) {
    reply.value = *result;
  } else {
    reply.error = ToChain(result.error());
  }
  return reply;
}

void ActorCell::Answer(Mailbox::Work& work, Result<std::string> result, bool ran, bool last) {
  const bool held_back = ran && instance_->saves();
  if (work.caller.empty() && !held_back) return work.done(std::move(result));
  ActorReply reply = ToReply(work.number, result);
  reply.confirm = last;
  if (!held_back) {
    {
      std::lock_guard lock(mu_);
      mailbox_.Settle(work, reply);
    }
    return host_->SendTo(work.caller, reply);
  }
  {
    std::lock_guard lock(mu_);
    if (work.caller.empty()) {
      unsaved_local_.emplace_back(std::move(work), std::move(result));
    } else {
      unsaved_.emplace_back(work.caller, work.number);
      mailbox_.Settle(work, std::move(reply), true);
    }
  }
  SaveIfDue();
}

// ---- saving ----

// The state is taken while no call runs, so that it holds the whole effect of each.
void ActorCell::SaveIfDue() {
  std::vector<CallKey> calls;
  std::vector<Unsaved> local;
  SavedActor saved;
  {
    std::lock_guard lock(mu_);
    if (saving_ || (unsaved_.empty() && unsaved_local_.empty())) return;
    quiet_ = true;  // Also while Save waits on its fiber.
    if (!running_.empty()) return;
    saving_ = true;
    calls.swap(unsaved_);
    local.swap(unsaved_local_);
    saved.mailbox = mailbox_.Save();
  }
  Result<std::string> state = instance_->Save();
  {
    std::lock_guard lock(mu_);
    quiet_ = false;
  }
  const auto done = [self = shared_from_this(), calls, local](const Status& status) {
    self->OnSaved(calls, local, status);
  };
  if (!state.ok()) return done(state.error());
  saved.state = std::move(*state);
  host_->Save(self_, wire::Encode(kSavedActor, saved), done);
  StartMore();
}

void ActorCell::OnSaved(const std::vector<CallKey>& calls, const std::vector<Unsaved>& local,
                        const Status& status) {
  std::vector<std::pair<std::string, ActorReply>> replies;
  {
    std::lock_guard lock(mu_);
    saving_ = false;
    if (status.ok()) replies = mailbox_.Publish(calls);
  }
  if (!status.ok()) {
    // It cannot promise anything any more: the next incarnation goes on from what is safe.
    const Error why = status.error().WithContext("the state could not be saved");
    for (const auto& [work, result] : local) work.done(why);
    return host_->Failed(self_, why);
  }
  for (const auto& [caller, reply] : replies) host_->SendTo(caller, reply);
  for (const auto& [work, result] : local) work.done(result);
  // The next one on the actor's thread, where nothing runs meanwhile.
  bool more = false;
  std::optional<Error> leaves;
  CallKey last;
  {
    std::lock_guard lock(mu_);
    more = !unsaved_.empty() || !unsaved_local_.empty();
    leaves = LeavesNow();
    if (leaves && !calls.empty()) {
      last = calls.back();
      ReplyIsLast(last);
    }
  }
  if (leaves) {
    (void)RunThere(
        [self = shared_from_this(), last, why = *leaves] { self->LeaveAfter(last, why); });
  }
  if (more) {
    (void)RunThere([self = shared_from_this()] { self->SaveIfDue(); });
  }
}

// ---- the end ----

void ActorCell::End(const Error& reason, bool for_good) {
  std::vector<Mailbox::Work> left;
  std::vector<std::shared_ptr<RunningCall>> running;
  Error why{ErrorCode::kPeerGone, ""};
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    ended_ = reason;
    ended_for_good_ = for_good;
    why = Ended();
    left = mailbox_.Clear();
    local_waiting_ = 0;
    for (const auto& [key, call] : running_) running.push_back(call);
  }
  metrics::Add(metrics::Id::kMailboxDepth, -static_cast<double>(left.size()));
  for (const auto& call : running) call->Cancel({.force = false, .recursive = false});
  for (Mailbox::Work& work : left) {
    if (work.caller.empty()) {
      work.done(why);
      continue;
    }
    if (!for_good) continue;
    const ActorReply reply = ToReply(work.number, why);
    {
      std::lock_guard lock(mu_);
      mailbox_.Settle(work, reply);
    }
    host_->SendTo(work.caller, reply);
  }
}

// With mu_ held: whether it is busy for nobody but itself.
bool ActorCell::OnlyItself() const {
  return mailbox_.waiting() == local_waiting_ &&
         std::ranges::all_of(running_, [](const auto& call) { return call.first.first.empty(); });
}

std::optional<Error> ActorCell::LeavesNow() {
  const bool busy = !running_.empty() || mailbox_.waiting() > 0;
  const bool unsafe = saving_ || !unsaved_.empty() || !unsaved_local_.empty();
  if (ended_ || busy || unsafe || !leaving_) return std::nullopt;
  if (stays_ && stays_()) leaving_.reset();
  return leaving_;
}

void ActorCell::Leave(const Error& reason, std::function<bool()> stays) {
  std::optional<Error> leaves;
  {
    std::lock_guard lock(mu_);
    if (stays) stays_ = std::move(stays);  // It is asked again because more is known.
    if (leaving_) return;
    leaving_ = reason;
    leaves = LeavesNow();
  }
  if (!leaves) return;
  (void)RunThere([self = shared_from_this(), why = *leaves] { self->LeaveAfter({}, why); });
}

bool ActorCell::Idle() const {
  std::lock_guard lock(mu_);
  return running_.empty() && fibers_ == 0 && !saving_;
}

size_t ActorCell::waiting() const {
  std::lock_guard lock(mu_);
  return mailbox_.waiting();
}

void ActorCell::Forget(Time now) {
  std::lock_guard lock(mu_);
  mailbox_.Forget(now);
}

void ActorCell::Watch(const std::string& peer, bool on) {
  std::lock_guard lock(mu_);
  if (on) {
    watchers_.insert(peer);
  } else {
    watchers_.erase(peer);
  }
}

std::set<std::string> ActorCell::watchers() const {
  std::lock_guard lock(mu_);
  return watchers_;
}

}  // namespace troupe::actors
