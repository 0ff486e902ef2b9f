#include "collective_groups/membership/group_agent.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "collective_groups/collectives/internal/pending.h"
#include "collective_groups/collectives/internal/recipe.h"
#include "runtime/trace.h"

namespace troupe::groups {
namespace {

constexpr Duration kTickInterval = milliseconds(20);
// Members leave one after the other when a verdict arrives. Whose links close before it has heard
// must not take that for a death, but wait for a word; before they have stood there for some time
// there is no verdict.
constexpr Duration kVerdictPossible = milliseconds(100);
constexpr Duration kVerdictWait = seconds(1);

Error ExpelError(ExpelKind kind, const std::string& reason) {
  switch (kind) {
    case ExpelKind::kDrained:
      return {ErrorCode::kDrained, "this member was asked to leave: " + reason};
    case ExpelKind::kEnded:
      return {ErrorCode::kDrained, "the group has ended and needs no more members: " + reason};
    default:
      return {ErrorCode::kFenced, "this member was declared dead and evicted: " + reason};
  }
}

}  // namespace

namespace {

MemberOptions WithMemory(MemberOptions options, const Communicator& communicator) {
  options.memory = communicator.memory();
  return options;
}
}  // namespace

GroupAgent::GroupAgent(MemberOptions options, EventLoop* loop,
                       std::unique_ptr<Communicator> communicator, SendReportFn send,
                       RejoinFn rejoin)
    : loop_(loop),
      send_(std::move(send)),
      rejoin_(std::move(rejoin)),
      communicator_(std::move(communicator)),
      options_(WithMemory(std::move(options), *communicator_)),
      core_(options_, clock_.Now()),
      links_("group-link"),
      collectives_("group-ops") {
  loop_->Post([this, running = running_] {
    if (running->load()) ArmTick();
  });
}

GroupAgent::~GroupAgent() { Stop(); }

void GroupAgent::Stop() {
  running_->store(false);
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    stopped_ = true;
  }
  changed_.notify_all();
  communicator_->Abort(~Epoch{0});
  communicator_->CancelLinks();
  collectives_.Stop();
  links_.Stop();
  std::lock_guard lock(mu_);
  for (auto& [handle, operation] : operations_) {
    if (operation->done) continue;
    operation->done = true;
    operation->status = Error{ErrorCode::kCancelled, "the group agent stopped"};
  }
  changed_.notify_all();
}

void GroupAgent::ArmTick() {
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    if (clock_.Now() >= core_.NextDeadline()) FeedLocked(MemberTick{});
  }
  loop_->CallAfter(kTickInterval, [this, running = running_] {
    if (running->load()) ArmTick();
  });
}

void GroupAgent::OnCommand(const Command& command) { Feed(CommandReceived{command}); }

void GroupAgent::Feed(const MemberEvent& event) {
  std::lock_guard lock(mu_);
  FeedLocked(event);
}

void GroupAgent::FeedLocked(const MemberEvent& event) {
  if (stopped_) return;
  const MemberState before = core_.state();
  for (const MemberAction& action : core_.Step(clock_.Now(), event)) Act(action);
  if (core_.before_plan()) changed_.notify_all();
  if (trace::On() && core_.state() != before)
    trace::Enter("member", MemberStateName(core_.state()),
                 {{"epoch", static_cast<int64_t>(core_.epoch())}});
}

// Runs under mu_. Nothing here waits: sends are queued, links and collectives have their lanes.
void GroupAgent::Act(const MemberAction& action) {
  if (const auto* a = std::get_if<SendReport>(&action)) {
    if (!a->report.blocked) return send_(a->report);
    Report report = a->report;
    report.moved = communicator_->moved();
    send_(report);
  } else if (const auto* a = std::get_if<AbortEpoch>(&action)) {
    aborted_epoch_ = std::max(aborted_epoch_, a->epoch);
    changed_.notify_all();
    communicator_->Abort(a->epoch);
  } else if (const auto* a = std::get_if<MakeOffers>(&action)) {
    communicator_
        ->CancelLinks();  // Links of an epoch that will not be must not hold up the next one.
    if (a->peers.empty()) return FeedLocked(OffersMade{a->epoch, {}, ""});
    (void)links_.Post([this, a = *a] {
      const trace::Span span("make offers");
      OffersMade made{a.epoch, {}, ""};
      for (const LinkPeer& peer : a.peers) {
        Result<std::string> address = communicator_->Offer(a.my_slot, peer.slot, peer.memory);
        if (!address.ok()) {
          made.problem = address.error().message;
          break;
        }
        made.offers.push_back({peer.slot, 0, *address});
      }
      Feed(made);
    });
  } else if (const auto* a = std::get_if<LinkEpoch>(&action)) {
    (void)links_.Post([this, a = *a] { DoLink(a); });
  } else if (const auto* a = std::get_if<MakePrelink>(&action)) {
    (void)links_.Post([this, a = *a] {
      Result<std::string> address = communicator_->Offer(a.my_slot, a.peer.slot, a.peer.memory);
      Feed(PrelinkOffered{a.peer.slot, a.attempt, address.ok() ? *address : ""});
    });
  } else if (const auto* a = std::get_if<LinkAhead>(&action)) {
    (void)links_.Post([this, a = *a] {
      const trace::Span span("link ahead");
      Feed(PrelinkDone{a.slot, a.attempt, communicator_->Link(a.slot, a.address).ok()});
    });
  } else if (const auto* a = std::get_if<CancelPrelink>(&action)) {
    communicator_->CancelLink(a->slot);
  } else if (const auto* a = std::get_if<FailOperations>(&action)) {
    failed_epoch_ = a->epoch;
    fail_reason_ = a->reason;
    aborted_epoch_ = std::max(aborted_epoch_, a->epoch);
    changed_.notify_all();
    communicator_->Abort(a->epoch);
  } else if (const auto* a = std::get_if<Assist>(&action)) {
    assist_ = a->progress;
    changed_.notify_all();
  } else if (const auto* a = std::get_if<Activated>(&action)) {
    next_sequence_ = 1;
    agreed_.clear();
    active_ = ActiveView{a->view, TopologyOf(a->view, options_.id), a->pause};
    active_fresh_ = true;
    in_epoch_ = true;
    activated_at_ = clock_.Now();
    changed_.notify_all();
  } else if (std::holds_alternative<TooLateToFound>(action)) {
    too_late_ = true;
    changed_.notify_all();
  } else if (const auto* a = std::get_if<BoundaryAnswer>(&action)) {
    boundary_answered_ = true;
    boundary_stop_ = a->stop;
    changed_.notify_all();
  } else if (const auto* a = std::get_if<Expelled>(&action)) {
    expelled_ = a->kind;
    expel_reason_ = a->reason;
    changed_.notify_all();
  }
}

void GroupAgent::DoLink(const LinkEpoch& link) {
  const trace::Span span("link");
  std::string problem;
  std::vector<uint32_t> unreachable;
  for (size_t i = 0; i < link.offers.size() && unreachable.empty(); ++i) {
    const Status s = communicator_->Link(link.offers[i].slot, link.offers[i].address);
    if (s.ok()) continue;
    if (s.error().code == ErrorCode::kCancelled) {  // Another epoch comes.
      problem = s.error().message;
      break;
    }
    unreachable =
        Unreachable({link.offers.begin() + static_cast<ptrdiff_t>(i) + 1, link.offers.end()});
    unreachable.push_back(link.offers[i].slot);
    problem = s.error().message;
  }
  if (problem.empty()) {
    std::unique_lock lock(mu_);
    std::vector<Team> teams = TeamsIn(link.view);
    const int rank = RankOf(link.view, options_.id);
    lock.unlock();
    const Status s = rank < 0 ? Status(Error{ErrorCode::kFenced, "this member is another one now"})
                              : communicator_->Begin(link.view, rank, std::move(teams));
    if (!s.ok()) problem = s.error().message;
  }
  Feed(EpochLinked{link.view.epoch, problem, std::move(unreachable)});
}

// After one peer could not be reached: which of the others cannot either. All at once, because each
// may take kLinkTimeout.
std::vector<uint32_t> GroupAgent::Unreachable(const std::vector<LinkOffer>& offers) {
  std::vector<std::future<bool>> reached;
  for (const LinkOffer& offer : offers) {
    reached.push_back(std::async(std::launch::async, [this, &offer] {
      return communicator_->Link(offer.slot, offer.address).ok();
    }));
  }
  std::vector<uint32_t> slots;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (!reached[i].get()) slots.push_back(offers[i].slot);
  }
  return slots;
}

// ---- membership ----

void GroupAgent::Ready(uint64_t version, bool has_state, bool founder) {
  if (rejoin_) Rejoin();
  std::lock_guard lock(mu_);
  too_late_ = false;
  in_epoch_ = false;
  active_fresh_ = false;
  if (!rejoined_.ok()) return;  // The next Ready tries again.
  FeedLocked(UserReady{version, has_state, founder});
}

// What the membership before has said travels ahead of what asks for the next one, and so do the
// answers: no command of the old one comes after it.
void GroupAgent::Rejoin() {
  {
    std::lock_guard lock(mu_);
    if (expelled_ == ExpelKind::kNone || stopped_) return;
  }
  communicator_->CancelLinks();
  const Result<MemberId> id = rejoin_();
  std::lock_guard lock(mu_);
  rejoined_ = id.ok() ? Status::Ok() : Status(id.error());
  if (!id.ok() && id.error().code == ErrorCode::kDeadlineExceeded)  // It was not answered.
    rejoined_ = Error{ErrorCode::kUnavailable, id.error().message};
  if (!id.ok()) return;
  options_.id = *id;
  core_ = Member(options_, clock_.Now());
  expelled_ = ExpelKind::kNone;
  assist_.reset();
}

Result<ActiveView> GroupAgent::WaitActive(Duration limit) {
  const trace::Span span("wait for a view");
  std::unique_lock lock(mu_);
  const bool woke = changed_.wait_for(lock, limit, [this] {
    return active_fresh_ || too_late_ || stopped_ || expelled_ != ExpelKind::kNone ||
           !rejoined_.ok();
  });
  if (!rejoined_.ok()) return rejoined_.error();
  if (expelled_ == ExpelKind::kFenced && rejoin_)
    return Error{ErrorCode::kUnavailable,
                 "it was taken for dead, and joins again: " + expel_reason_};
  if (expelled_ != ExpelKind::kNone) return ExpelError(expelled_, expel_reason_);
  if (stopped_) return Error{ErrorCode::kCancelled, "the group agent stopped"};
  if (too_late_)
    return Error{ErrorCode::kDeadlineExceeded, "the group trains already; build first"};
  if (!woke) return Error{ErrorCode::kDeadlineExceeded, "the group did not become active in time"};
  active_fresh_ = false;
  while (!teams_.empty() && teams_.back().empty()) teams_.pop_back();  // Dropped.
  return active_;
}

Result<bool> GroupAgent::Boundary() {
  const trace::Span span("step boundary");
  std::unique_lock lock(mu_);
  boundary_answered_ = false;
  FeedLocked(UserBoundary{});
  // The core answers by itself after MemberOptions::boundary_wait; the slack here only guards
  // against a stuck loop.
  changed_.wait_for(lock, options_.boundary_wait + seconds(5),
                    [this] { return boundary_answered_ || stopped_; });
  if (stopped_) return Error{ErrorCode::kCancelled, "the group agent stopped"};
  return boundary_answered_ ? boundary_stop_ : true;
}

void GroupAgent::SetVersion(uint64_t version) { Feed(UserVersion{version}); }
void GroupAgent::Finish() {
  std::lock_guard lock(mu_);
  in_epoch_ = false;
  FeedLocked(UserFinished{});
}

bool GroupAgent::Left() const {
  return !in_epoch_ || aborted_epoch_ >= active_.view.epoch ||
         core_.state() != MemberState::kActive;
}

GroupAgent::Turn GroupAgent::WaitTurn(Duration limit) {
  std::unique_lock lock(mu_);
  const auto left = [this] { return stopped_ || expelled_ != ExpelKind::kNone || Left(); };
  changed_.wait_for(lock, limit, [&] { return left() || core_.before_plan(); });
  if (left()) return Turn::kLeft;
  return core_.before_plan() ? Turn::kPlanned : Turn::kNone;
}

Status GroupAgent::out() const {
  std::lock_guard lock(mu_);
  return expelled_ == ExpelKind::kNone ? Status::Ok() : ExpelError(expelled_, expel_reason_);
}

void GroupAgent::GiveUp(const std::string& reason) {
  std::lock_guard lock(mu_);
  if (in_epoch_) FeedLocked(CommunicatorBroke{active_.view.epoch, reason});
}

bool GroupAgent::Running() const {
  std::lock_guard lock(mu_);
  return too_late_;
}

ActiveView GroupAgent::Current() const {
  std::lock_guard lock(mu_);
  return in_epoch_ ? active_ : ActiveView{};
}

MemberState GroupAgent::state() const {
  std::lock_guard lock(mu_);
  return core_.state();
}

// ---- collectives ----

GroupAgent::Handle GroupAgent::Submit(const char* what, const Call& call, size_t bytes, Body body,
                                      const std::string& recipe) {
  auto pending = std::make_shared<Pending>();
  const uint64_t signature =
      call.text.empty() ? 0 : XXH3_64bits(call.text.data(), call.text.size()) | uint64_t{1};
  const std::string text = !call.text.empty()
                               ? call.text
                               : std::string(what) + " of " + std::to_string(bytes) + " bytes";
  pending->operation = {call.team, signature, text, call.device};
  pending->bytes = bytes;
  pending->body = std::move(body);
  std::lock_guard lock(mu_);
  const Handle handle = next_handle_++;
  operations_[handle] = pending;
  if (in_epoch_) pending->epoch = active_.view.epoch;
  const auto refuse = [&](Error error) {
    pending->done = true;
    pending->status = std::move(error);
    return handle;
  };
  if (pending->epoch == 0) {
    return refuse(
        {ErrorCode::kEpochChanged, "this member is in no epoch; call ready and wait for a view"});
  }
  // What only some members of the view do has no place in the sequence.
  const bool counted = call.team == 0 && call.everyone;
  pending->progress = {counted ? next_sequence_++ : next_sequence_ - 1,
                       counted ? signature : 0,
                       text,
                       !counted,
                       call.joined,
                       call.device.used() ? OnDeviceRecipe(recipe) : recipe};
  const Status posted = collectives_.Post([this, pending] { Run(*pending); });
  return posted.ok() ? handle : refuse(posted.error());
}

// On the lane, one operation after the other.
void GroupAgent::Run(Pending& pending) {
  std::unique_lock lock(mu_);
  const bool current = in_epoch_ && active_.view.epoch == pending.epoch && !stopped_;
  const Time begin = clock_.Now();
  Result<uint64_t> result =
      Error{ErrorCode::kEpochChanged, "the epoch ended before the operation began"};
  if (current) {
    at_ = &pending;
    const uint64_t signature = pending.progress.signature;
    pending.progress.compares = signature != 0 && !agreed_.contains(signature);
    FeedLocked(OperationBegan{pending.epoch, pending.progress});
    lock.unlock();
    result = pending.body(*communicator_, pending.operation);
    lock.lock();
    at_ = nullptr;
    if (result.ok() && pending.progress.compares && in_epoch_ &&
        active_.view.epoch == pending.epoch) {
      if (agreed_.size() >= kAgreedMax) agreed_.clear();
      agreed_.insert(signature);
    }
    FeedLocked(OperationEnded{pending.epoch, pending.progress.sequence});
    if (trace::On()) TraceCollective(pending, begin);
  }
  if (result.ok()) {
    pending.value = *result;
  } else {
    const ErrorCode code = result.error().code;
    if (code == ErrorCode::kPeerGone || code == ErrorCode::kCorrupt) {
      FeedLocked(CommunicatorBroke{pending.epoch, result.error().message});
    }
    if (code == ErrorCode::kPeerGone && clock_.Now() - begin >= kVerdictPossible) {
      changed_.wait_for(lock, kVerdictWait, [&] {
        return stopped_ || failed_epoch_ == pending.epoch || core_.state() != MemberState::kActive;
      });
    }
    pending.status = EndedEarly(pending.epoch, result.error());
  }
  pending.done = true;
  pending.body = nullptr;
  changed_.notify_all();
}

// An operation that was ended by a verdict, on this member or on a peer, fails for good. Runs under
// mu_.
Error GroupAgent::EndedEarly(Epoch epoch, Error error) const {
  const bool ended = error.code == ErrorCode::kEpochChanged || error.code == ErrorCode::kPeerGone;
  if (!ended || failed_epoch_ != epoch) return error;
  return {ErrorCode::kMismatch, fail_reason_};
}

// The first one of an epoch is what a recovery is measured by. Runs under mu_.
void GroupAgent::TraceCollective(const Pending& pending, Time begin) {
  const auto number = static_cast<int64_t>(pending.epoch);
  trace::Complete(pending.operation.text, begin,
                  {{"epoch", number}, {"bytes", static_cast<int64_t>(pending.bytes)}});
  if (activated_at_ == Time::Never() || active_.view.epoch != pending.epoch) return;
  trace::Complete("to the first collective", activated_at_, {{"epoch", number}}, "first");
  activated_at_ = Time::Never();
}

Result<uint64_t> GroupAgent::Wait(Handle handle, Duration limit) {
  std::unique_lock lock(mu_);
  const auto it = operations_.find(handle);
  if (it == operations_.end())
    return Error{ErrorCode::kNotFound, "unknown handle, or one that was waited for before"};
  const std::shared_ptr<Pending> operation = it->second;
  // Also of an agent that stops: until the lane has left the operation its memory is in use.
  if (!changed_.wait_for(lock, limit, [&] { return operation->done; })) {
    return Error{ErrorCode::kDeadlineExceeded, "the operation is still running"};
  }
  operations_.erase(handle);
  if (operation->status.ok()) return operation->value;
  if (stopped_) return Error{ErrorCode::kCancelled, "the group agent stopped"};
  return operation->status.error();
}

bool GroupAgent::Poll(Handle handle) const {
  std::lock_guard lock(mu_);
  const auto it = operations_.find(handle);
  return it == operations_.end() || it->second->done;
}

}  // namespace troupe::groups
