#include "collective_groups/group_agent.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/metrics.h"
#include "runtime/trace.h"

namespace troupe::groups {
namespace {

constexpr Duration kTickInterval = milliseconds(20);

Error ExpelError(ExpelKind kind, const std::string& reason) {
  switch (kind) {
    case ExpelKind::kDrained:
      return {ErrorCode::kDrained, "this member was asked to leave: " + reason};
    case ExpelKind::kEnded:
      return {ErrorCode::kDrained, "the group has ended and needs no more members: " + reason};
    default:
      return {ErrorCode::kFenced, "this member was declared dead and put aside: " + reason};
  }
}

}  // namespace

GroupAgent::GroupAgent(MemberOptions options, EventLoop* loop,
                       std::unique_ptr<Communicator> communicator, SendReportFn send)
    : options_(options),
      loop_(loop),
      send_(std::move(send)),
      communicator_(std::move(communicator)),
      core_(std::move(options), clock_.Now()),
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
  if (trace::On() && core_.state() != before)
    trace::Enter("member", MemberStateName(core_.state()),
                 {{"epoch", static_cast<int64_t>(core_.epoch())}});
}

// Runs under mu_. Nothing here waits: sends are queued, links and collectives have their lanes.
void GroupAgent::Act(const MemberAction& action) {
  if (const auto* a = std::get_if<SendReport>(&action)) {
    send_(a->report);
  } else if (const auto* a = std::get_if<AbortEpoch>(&action)) {
    communicator_->Abort(a->epoch);
  } else if (const auto* a = std::get_if<MakeOffers>(&action)) {
    communicator_
        ->CancelLinks();  // Links of an epoch that will not be must not hold up the next one.
    (void)links_.Post([this, a = *a] {
      const trace::Span span("make offers");
      OffersMade made{a.epoch, {}, ""};
      for (const uint32_t slot : a.slots) {
        Result<std::string> address = communicator_->Offer(a.my_slot, slot);
        if (!address.ok()) {
          made.problem = address.error().message;
          break;
        }
        made.offers.push_back({slot, 0, *address});
      }
      Feed(made);
    });
  } else if (const auto* a = std::get_if<LinkEpoch>(&action)) {
    (void)links_.Post([this, a = *a] { DoLink(a); });
  } else if (const auto* a = std::get_if<MakePrelink>(&action)) {
    (void)links_.Post([this, a = *a] {
      Result<std::string> address = communicator_->Offer(a.my_slot, a.slot);
      Feed(PrelinkOffered{a.slot, a.attempt, address.ok() ? *address : ""});
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
    communicator_->Abort(a->epoch);
  } else if (const auto* a = std::get_if<Activated>(&action)) {
    next_sequence_ = 1;
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
  for (const LinkOffer& offer : link.offers) {
    if (const Status s = communicator_->Link(offer.slot, offer.address); !s.ok()) {
      problem = s.error().message;
      break;
    }
  }
  if (problem.empty()) {
    const Status s = communicator_->Begin(link.view, RankOf(link.view, options_.id));
    if (!s.ok()) problem = s.error().message;
  }
  Feed(EpochLinked{link.view.epoch, problem});
}

// ---- membership ----

void GroupAgent::Ready(uint64_t version, bool has_state, bool founder) {
  std::lock_guard lock(mu_);
  too_late_ = false;
  in_epoch_ = false;
  active_fresh_ = false;
  FeedLocked(UserReady{version, has_state, founder});
}

Result<ActiveView> GroupAgent::WaitActive(Duration limit) {
  const trace::Span span("wait for a view");
  std::unique_lock lock(mu_);
  const bool woke = changed_.wait_for(lock, limit, [this] {
    return active_fresh_ || too_late_ || stopped_ || expelled_ != ExpelKind::kNone;
  });
  if (expelled_ != ExpelKind::kNone) return ExpelError(expelled_, expel_reason_);
  if (stopped_) return Error{ErrorCode::kCancelled, "the group agent stopped"};
  if (too_late_)
    return Error{ErrorCode::kDeadlineExceeded, "the group trains already; build first"};
  if (!woke) return Error{ErrorCode::kDeadlineExceeded, "the group did not become active in time"};
  active_fresh_ = false;
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

GroupAgent::Handle GroupAgent::Submit(const char* what, size_t bytes, Body body,
                                      Agreement agreement) {
  auto operation = std::make_shared<Operation>();
  Handle handle = 0;
  Epoch epoch = 0;
  Progress progress{0, agreement.signature, std::move(agreement.operation), !agreement.whole_view};
  if (progress.operation.empty())
    progress.operation = std::string(what) + " of " + std::to_string(bytes) + " bytes";
  {
    std::lock_guard lock(mu_);
    handle = next_handle_++;
    operations_[handle] = operation;
    if (in_epoch_) epoch = active_.view.epoch;
    if (epoch == 0) {
      operation->done = true;
      operation->status = Error{ErrorCode::kEpochChanged,
                                "this member is in no epoch; call ready and wait for a view"};
      return handle;
    }
    progress.sequence = agreement.whole_view ? next_sequence_++ : next_sequence_ - 1;
  }
  const Status posted = collectives_.Post([this, what, bytes, operation, epoch,
                                           progress = std::move(progress), body = std::move(body)] {
    bool current = false;
    const Time begin = trace::On() ? clock_.Now() : Time{};
    {
      std::lock_guard lock(mu_);
      current = in_epoch_ && active_.view.epoch == epoch;
      if (current) FeedLocked(OperationBegan{epoch, progress});
    }
    Result<uint64_t> result =
        Error{ErrorCode::kEpochChanged, "the epoch ended before the operation began"};
    if (current) result = body(*communicator_);
    std::lock_guard lock(mu_);
    if (current) FeedLocked(OperationEnded{epoch, progress.sequence});
    if (current && trace::On()) TraceCollective(what, bytes, epoch, begin);
    operation->done = true;
    if (result.ok()) {
      operation->value = *result;
    } else {
      operation->status = EndedEarly(epoch, result.error());
      const ErrorCode code = result.error().code;
      if (code == ErrorCode::kPeerGone || code == ErrorCode::kCorrupt) {
        FeedLocked(CommunicatorBroke{epoch, result.error().message});
      }
    }
    changed_.notify_all();
  });
  if (!posted.ok()) {
    std::lock_guard lock(mu_);
    operation->done = true;
    operation->status = posted.error();
  }
  return handle;
}

// An operation that was aborted by a verdict fails for good. Runs under mu_.
Error GroupAgent::EndedEarly(Epoch epoch, Error error) const {
  if (error.code != ErrorCode::kEpochChanged || failed_epoch_ != epoch) return error;
  return {ErrorCode::kInvalidArgument, fail_reason_};
}

// The first one of an epoch is what a recovery is measured by. Runs under mu_.
void GroupAgent::TraceCollective(const char* what, size_t bytes, Epoch epoch, Time begin) {
  const auto number = static_cast<int64_t>(epoch);
  trace::Complete(what, begin, {{"epoch", number}, {"bytes", static_cast<int64_t>(bytes)}});
  if (activated_at_ == Time::Never() || active_.view.epoch != epoch) return;
  trace::Complete("to the first collective", activated_at_, {{"epoch", number}}, "first");
  activated_at_ = Time::Never();
}

GroupAgent::Handle GroupAgent::AllReduce(std::vector<Segment> segments, DataType type, ReduceOp op,
                                         double prescale, double postscale) {
  const size_t element = ElementBytes(type);
  size_t total = 0;
  for (const Segment& s : segments) total += s.count;
  return Submit("all-reduce", total * element,
                [segments = std::move(segments), total, element, type, op, prescale,
                 postscale](Communicator& c) -> Result<uint64_t> {
                  std::vector<char> fused;
                  void* data = segments.size() == 1 ? segments[0].data : nullptr;
                  if (data == nullptr) {
                    fused.resize(total * element);
                    size_t offset = 0;
                    for (const Segment& s : segments) {
                      std::memcpy(fused.data() + offset, s.data, s.count * element);
                      offset += s.count * element;
                    }
                    data = fused.data();
                  }
                  if (prescale != 1.0) ScaleInPlace(data, total, type, prescale);
                  if (const Status s = c.AllReduce(data, total, type, op); !s.ok())
                    return s.error();
                  if (postscale != 1.0) ScaleInPlace(data, total, type, postscale);
                  size_t offset = 0;
                  for (const Segment& s : segments) {
                    if (fused.empty()) break;
                    std::memcpy(s.data, fused.data() + offset, s.count * element);
                    offset += s.count * element;
                  }
                  return uint64_t{0};
                });
}

namespace {
Result<uint64_t> NoValue(const Status& status) {
  if (!status.ok()) return status.error();
  return uint64_t{0};
}
}  // namespace

GroupAgent::Handle GroupAgent::Broadcast(void* data, size_t bytes, int root) {
  return Submit("broadcast", bytes,
                [=](Communicator& c) { return NoValue(c.Broadcast(data, bytes, root)); });
}

GroupAgent::Handle GroupAgent::AllGather(const void* in, void* out,
                                         std::vector<size_t> bytes_per_rank) {
  const size_t total = std::accumulate(bytes_per_rank.begin(), bytes_per_rank.end(), size_t{0});
  return Submit("all-gather", total, [in, out, sizes = std::move(bytes_per_rank)](Communicator& c) {
    return NoValue(c.AllGather(in, out, sizes));
  });
}

GroupAgent::Handle GroupAgent::Barrier() {
  return Submit("barrier", 0, [](Communicator& c) { return NoValue(c.Barrier()); });
}

GroupAgent::Handle GroupAgent::Transfer(std::vector<int> chain,
                                        std::vector<MutableBuffer> buffers) {
  size_t total = 0;
  for (const MutableBuffer& buffer : buffers) total += buffer.bytes;
  return Submit("state transfer", total,
                [chain = std::move(chain), buffers = std::move(buffers)](Communicator& c) {
                  Result<uint64_t> sent = c.Transfer(chain, buffers);
                  if (sent.ok() && *sent > 0) {
                    metrics::Add(metrics::Id::kStateTransfers);
                    metrics::Add(metrics::Id::kStateBytes, static_cast<double>(*sent));
                  }
                  return sent;
                },
                {0, "", false});
}

Result<uint64_t> GroupAgent::Wait(Handle handle, Duration limit) {
  std::unique_lock lock(mu_);
  const auto it = operations_.find(handle);
  if (it == operations_.end())
    return Error{ErrorCode::kNotFound, "unknown handle, or one that was waited for before"};
  const std::shared_ptr<Operation> operation = it->second;
  if (!changed_.wait_for(lock, limit, [&] { return operation->done || stopped_; })) {
    return Error{ErrorCode::kDeadlineExceeded, "the operation is still running"};
  }
  operations_.erase(handle);
  if (!operation->done) return Error{ErrorCode::kCancelled, "the group agent stopped"};
  if (!operation->status.ok()) return operation->status.error();
  return operation->value;
}

bool GroupAgent::Poll(Handle handle) const {
  std::lock_guard lock(mu_);
  const auto it = operations_.find(handle);
  return it == operations_.end() || it->second->done;
}

}  // namespace troupe::groups
