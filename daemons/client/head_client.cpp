#include "daemons/client/head_client.h"

#include <algorithm>
#include <utility>

#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kOfferBeat = milliseconds(500);
constexpr uint32_t kBeatsMax = 8;  // A state is offered less and less often, but after so many.

// What takes an answer for who wants the address in it.
auto WithAddress(HeadClient::OnAddress done) {
  return [done = std::move(done)](const Result<actors::ActorAnswer>& answer) {
    if (answer.ok()) return done(answer->address);
    done(answer.error());
  };
}

// For who wants to know only whether it is done.
auto WithoutValue(actors::CallDone done) {
  return [done = std::move(done)](const Result<actors::ActorAnswer>& answer) {
    done(answer.ok() ? Result<std::string>(std::string()) : Result<std::string>(answer.error()));
  };
}

// Hands one part of an answer on.
template <class T>
auto Part(T actors::ActorAnswer::*part, std::function<void(Result<T>)> done) {
  return [part, done = std::move(done)](const Result<actors::ActorAnswer>& answer) {
    answer.ok() ? done((*answer).*part) : done(answer.error());
  };
}

}  // namespace

HeadClient::HeadClient(EventLoop* loop, std::function<Status(std::string frame)> send,
                       std::string owner)
    : loop_(loop), send_(std::move(send)), owner_(std::move(owner)) {}

void HeadClient::SetSystem(const std::weak_ptr<actors::ActorSystem>& system) {
  SetTold([system](const actors::ActorLocation& one) {
    if (const auto alive = system.lock()) alive->SetWhereabouts(one);
  });
  std::lock_guard lock(mu_);
  leave_ = [system](const actors::LeaveActor& leave) {
    if (const auto alive = system.lock()) alive->Leave(leave);
  };
  room_wanted_ = [system](const actors::RoomWanted& room) {
    if (const auto alive = system.lock()) alive->SetRoomWanted(room.waiting);
  };
}

void HeadClient::SetTold(std::function<void(const actors::ActorLocation&)> told) {
  std::lock_guard lock(mu_);
  told_ = std::move(told);
}

void HeadClient::SetOutput(OnOutput output) {
  std::lock_guard lock(mu_);
  output_ = std::move(output);
}

void HeadClient::Start() {
  scope_.Post([this] { Beat(); });
}

void HeadClient::Stop() {
  std::map<uint64_t, Request> requests;
  std::map<std::string, Saving> saving;
  {
    std::lock_guard lock(mu_);
    if (std::exchange(stopped_, true)) return;
    requests.swap(requests_);
    saving.swap(saving_);
    told_ = nullptr;
    leave_ = nullptr;
    room_wanted_ = nullptr;
    output_ = nullptr;
    anew_ = nullptr;
    handles_told_ = nullptr;
  }
  if (!owner_.empty()) {
    const actors::ActorRequest gone{0, actors::ActorVerb::kOwnerGone, owner_, 0,
                                    "its owner has ended"};
    (void)send_(wire::Encode(actors::kFrameActorRequest, gone));
  }
  const Error why{ErrorCode::kCancelled, "this runtime was shut down"};
  for (auto& [id, request] : requests) request.done(why);
  for (auto& [actor, one] : saving) one.done(why);
}

// ---- requests ----

uint64_t HeadClient::NextRequest() {
  std::lock_guard lock(mu_);
  return next_request_++;
}

void HeadClient::Ask(uint64_t request, std::string frame, Duration limit, const OnAnswered& done) {
  std::optional<Error> refusal;
  {
    std::lock_guard lock(mu_);
    if (stopped_) {
      refusal = Error{ErrorCode::kCancelled, "this runtime was shut down"};
    } else if (requests_.size() >= kLinkRequestsMax) {
      refusal = Error{ErrorCode::kBackpressure, "too many requests wait for the head"};
    } else {
      requests_[request] = {frame, loop_->Now() + limit, done};
    }
  }
  if (refusal) return done(*refusal);
  (void)send_(std::move(frame));  // If it is lost, the next beat repeats it.
}

void HeadClient::Create(actors::ActorSpec spec, OnAddress done) {
  const uint64_t request = NextRequest();
  Ask(request,
      wire::Encode(actors::kFrameCreateActor, actors::CreateActor{request, std::move(spec)}),
      kLinkRequestLimit, WithAddress(std::move(done)));
}

void HeadClient::Lookup(const std::string& name, Duration limit, OnAddress done) {
  const uint64_t request = NextRequest();
  const actors::ActorRequest lookup{request, actors::ActorVerb::kLookup, name, 0, ""};
  Ask(request, wire::Encode(actors::kFrameActorRequest, lookup), limit,
      WithAddress(std::move(done)));
}

void HeadClient::Group(actors::GroupRequest request, Duration limit, OnGroup done) {
  request.request = NextRequest();
  request.spec.owner = owner_;
  const std::string frame = wire::Encode(actors::kFrameGroupRequest, request);
  Ask(request.request, frame, limit, Part(&actors::ActorAnswer::group, std::move(done)));
}

void HeadClient::Collective(actors::CollectiveRequest request, Duration limit, OnCollective done) {
  request.request = NextRequest();
  if (request.verb == actors::CollectiveVerb::kCreate) request.spec.owner = owner_;
  const std::string frame = wire::Encode(actors::kFrameCollectiveRequest, request);
  Ask(request.request, frame, limit, Part(&actors::ActorAnswer::collective, std::move(done)));
}

void HeadClient::Actors(actors::ActorGroupRequest request, Duration limit, OnActorGroup done) {
  request.request = NextRequest();
  request.spec.owner = owner_;
  const std::string frame = wire::Encode(actors::kFrameActorGroupRequest, request);
  Ask(request.request, frame, limit, Part(&actors::ActorAnswer::actors, std::move(done)));
}

void HeadClient::Kill(const std::string& actor, bool restart, const std::string& reason,
                      actors::CallDone done) {
  const uint64_t request = NextRequest();
  const actors::ActorRequest kill{
      request, restart ? actors::ActorVerb::kRestart : actors::ActorVerb::kKill, actor, 0, reason};
  Ask(request, wire::Encode(actors::kFrameActorRequest, kill), kLinkRequestLimit,
      WithoutValue(std::move(done)));
}

void HeadClient::Hold(const actors::RefNotes& notes, Duration limit, const actors::CallDone& done) {
  const uint64_t request = NextRequest();
  const actors::HoldActors hold{request, owner_, notes.holds};
  Ask(request, wire::Encode(actors::kFrameHoldActors, hold), limit, WithoutValue(done));
}

void HeadClient::SetHandles(const std::function<void()>& anew, const std::function<bool()>& told) {
  std::lock_guard lock(mu_);
  anew_ = anew;
  handles_told_ = told;
}

void HeadClient::Link(const std::string& one, const std::string& other, bool on, Duration limit,
                      actors::CallDone done) {
  const uint64_t request = NextRequest();
  const actors::ActorRequest link{
      request, on ? actors::ActorVerb::kLink : actors::ActorVerb::kUnlink, one, 0, other};
  Ask(request, wire::Encode(actors::kFrameActorRequest, link), limit,
      WithoutValue(std::move(done)));
}

void HeadClient::Failed(const std::string& actor, uint64_t incarnation, const Error& reason) {
  AskLast(actors::ActorVerb::kFailed, actor, incarnation, reason);
}

void HeadClient::Exited(const std::string& actor, uint64_t incarnation, const Error& reason) {
  AskLast(actors::ActorVerb::kExited, actor, incarnation, reason);
}

void HeadClient::AskLast(actors::ActorVerb verb, const std::string& actor, uint64_t incarnation,
                         const Error& reason) {
  const uint64_t request = NextRequest();
  const actors::ActorRequest last{request, verb, actor, incarnation, reason.message};
  Ask(request, wire::Encode(actors::kFrameActorRequest, last), kLinkRequestLimit,
      [](const Result<actors::ActorAnswer>&) {});
}

void HeadClient::OnAnswer(const actors::ActorAnswer& answer) {
  Request request;
  {
    std::lock_guard lock(mu_);
    const auto it = requests_.find(answer.request);
    if (it == requests_.end()) return;
    request = std::move(it->second);
    requests_.erase(it);
  }
  if (answer.error.empty()) {
    request.done(answer);
  } else {
    request.done(actors::FromChain(answer.error));
  }
}

// ---- whereabouts ----

void HeadClient::SendFollow(std::vector<std::string> add, std::vector<std::string> drop,
                            bool told) {
  if (!add.empty() || !drop.empty()) ++version_;
  const actors::FollowActors follow{owner_, log_,           revision_,       version_,
                                    false,  std::move(add), std::move(drop), told};
  (void)send_(wire::Encode(actors::kFrameFollowActors, follow));
}

// The first part begins the list anew; the others add to it, each with a version of its own, so
// that a part that is lost shows.
void HeadClient::SendAll(bool told) {
  actors::FollowActors part{owner_, log_, revision_, 0, true, {}, {}, told};
  const auto send = [&] {
    part.version = ++version_;
    (void)send_(wire::Encode(actors::kFrameFollowActors, part));
    part.whole = false;
    part.add.clear();
  };
  for (const auto& [actor, count] : followed_) {
    if (part.add.size() == actors::kFollowedPerFrame) send();
    part.add.push_back(actor);
  }
  send();
}

void HeadClient::Follow(const std::string& actor) {
  std::lock_guard lock(mu_);
  if (stopped_ || followed_[actor]++ > 0) return;
  SendFollow({actor}, {});
}

void HeadClient::Unfollow(const std::string& actor) {
  std::lock_guard lock(mu_);
  const auto it = followed_.find(actor);
  if (stopped_ || it == followed_.end() || --it->second > 0) return;
  followed_.erase(it);
  SendFollow({}, {actor});
}

void HeadClient::OnStates(const actors::ActorStates& states) {
  std::function<void(const actors::ActorLocation&)> told;
  std::function<void()> anew;
  {
    std::lock_guard lock(mu_);
    if (states.log != log_) {  // A new head; its first answer tells all that it has.
      log_ = states.log;
      revision_ = 0;
      asked_ = false;
      anew = anew_;
    }
  }
  if (anew) anew();  // Before the next beat, which says what it has been told.
  {
    std::lock_guard lock(mu_);
    if (states.before > revision_) {
      // Something was lost, or is late: this says where we stand, and is answered with the rest.
      if (!std::exchange(asked_, true)) SendFollow({}, {});
      return;
    }
    if (states.revision < revision_) return;  // Late: we know newer than that.
    if (states.revision > revision_) asked_ = false;
    told = told_;
    head_version_ = states.version;
    revision_ = states.revision;
  }
  if (!told) return;
  for (const actors::ActorLocation& one : states.actors) told(one);
}

// ---- state ----

void HeadClient::Save(const std::string& actor, uint64_t incarnation, std::string state,
                      std::function<void(Status)> done) {
  std::string frame;
  {
    std::lock_guard lock(mu_);
    if (!stopped_) {
      Saving& saving = saving_[actor];
      const uint64_t version = next_request_++;
      saving.version = version;
      saving.beats = saving.left = 1;
      saving.offer.clear();
      if (state.size() > actors::kDirectStateBytesMax) {
        saving.offer = wire::Encode(actors::kFrameOfferState,
                                    actors::OfferState{actor, incarnation, version, state.size()});
      }
      saving.frame = wire::Encode(actors::kFrameSaveActor,
                                  actors::SaveActor{actor, incarnation, version, std::move(state)});
      saving.done = done;
      frame = saving.offer.empty() ? saving.frame : saving.offer;
    }
  }
  if (frame.empty()) return done(Error{ErrorCode::kCancelled, "this runtime was shut down"});
  (void)send_(std::move(frame));
}

void HeadClient::OnSendState(const actors::SendState& wanted) {
  std::string frame;
  {
    std::lock_guard lock(mu_);
    const auto it = saving_.find(wanted.actor);
    if (stopped_ || it == saving_.end() || it->second.version != wanted.version) return;
    it->second.left = it->second.beats;
    frame = it->second.frame;
  }
  (void)send_(std::move(frame));
}

void HeadClient::OnSaved(const actors::ActorSaved& saved) {
  std::function<void(Status)> done;
  {
    std::lock_guard lock(mu_);
    const auto it = saving_.find(saved.actor);
    if (it == saving_.end() || it->second.version != saved.version) return;
    done = std::move(it->second.done);
    saving_.erase(it);
  }
  done(saved.error.empty() ? Status::Ok() : Status(actors::FromChain(saved.error)));
}

// ---- time ----

void HeadClient::Beat() {
  std::vector<OnAnswered> late;
  std::function<bool()> handles_told;
  {
    std::lock_guard lock(mu_);
    handles_told = handles_told_;
  }
  const bool told = !handles_told || handles_told();
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    const Time now = loop_->Now();
    for (auto it = requests_.begin(); it != requests_.end();) {
      if (now < it->second.deadline) {
        (void)send_(it->second.frame);
        ++it;
      } else {
        late.push_back(std::move(it->second.done));
        it = requests_.erase(it);
      }
    }
    for (auto& [actor, saving] : saving_) {
      if (--saving.left > 0) continue;
      if (!saving.offer.empty()) saving.beats = std::min(2 * saving.beats, kBeatsMax);
      saving.left = saving.beats;
      (void)send_(saving.offer.empty() ? saving.frame : saving.offer);
    }
    // A list that is as it was at the last beat, and that the head has not: a part was lost.
    if (version_ == version_at_beat_ && head_version_ != version_) {
      SendAll(told);
    } else {
      SendFollow({}, {}, told);
    }
    version_at_beat_ = version_;
    asked_ = false;
  }
  for (const OnAnswered& done : late)
    done(Error{ErrorCode::kDeadlineExceeded, "the head did not answer in time"});
  scope_.CallAfter(kOfferBeat, [this] { Beat(); });
}

bool HeadClient::OnFrame(const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return false;
  const auto on = [&]<class T>(void (HeadClient::*handler)(const T&)) {
    Result<T> message = wire::Decode<T>(*type, frame);
    if (message.ok()) (this->*handler)(*message);
    return true;
  };
  if (*type == actors::kFrameActorAnswer) return on(&HeadClient::OnAnswer);
  if (*type == actors::kFrameActorStates) return on(&HeadClient::OnStates);
  if (*type == actors::kFrameSendState) return on(&HeadClient::OnSendState);
  if (*type == actors::kFrameActorSaved) return on(&HeadClient::OnSaved);
  if (*type == actors::kFrameLeaveActor) return Hand(&HeadClient::leave_, *type, frame);
  if (*type == actors::kFrameRoomWanted) return Hand(&HeadClient::room_wanted_, *type, frame);
  if (*type == actors::kFrameActorOutput) return Hand(&HeadClient::output_, *type, frame);
  return false;
}

template <class T>
bool HeadClient::Hand(std::function<void(const T&)> HeadClient::*taker, uint8_t type,
                      const std::string& frame) {
  std::function<void(const T&)> take;
  {
    std::lock_guard lock(mu_);
    take = this->*taker;
  }
  const Result<T> message = wire::Decode<T>(type, frame);
  if (message.ok() && take) take(*message);
  return true;
}

}  // namespace troupe::daemons
