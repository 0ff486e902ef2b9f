// What HeadActors knows of who has handles of the actors whose handles are counted.
#include "actors/core/actor_holders.h"
#include "daemons/head/core/head_actors.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::ActorState;

namespace {

constexpr const char* kDriverOwner = "driver/";

}  // namespace

// When all actors are known again. Who holds which is not: all may who are there.
void HeadActors::RestoreHandles() {
  for (const auto& [id, actor] : directory_.actors()) {
    const auto number = actors::HandleOf(id);
    if (actor.spec.counted && !actor.dead() && number) holders_.Restored(*number);
  }
  for (const auto& [id, actor] : directory_.actors()) {
    if (actor.dead()) continue;
    if (!actor.spec.detached && actor.spec.owner.starts_with(kDriverOwner))
      holders_.Expect(actor.spec.owner);
    // Its next life may find handles in its state.
    if (actor.life.incarnation > 1 && actor.life.state != ActorState::kAlive)
      holders_.Expect(actors::kActorOwner + id, Now() + actors::kHeirsMost);
  }
}

// Repeated, perhaps to a head that does not know yet that its maker holds it.
void HeadActors::MadeBy(const std::string& from, const actors::ActorSpec& spec, bool repeated) {
  const auto number = actors::HandleOf(spec.actor);
  const actors::PlacedActor* actor = directory_.Find(spec.actor);
  if (!spec.counted || spec.detached || !number || actor == nullptr || actor->dead()) return;
  if (repeated && (!holders_.Counts(*number) || ended_.contains(from))) return;
  holders_.Made(*number, from);
  if (ended_.contains(from)) holders_.Gone(Now(), from);  // It has not lived to hear of it.
}

void HeadActors::OnHold(const std::string& from, const actors::HoldActors& hold) {
  if (ended_.contains(from)) return;
  // From now on its end matters.
  if (hold.owner.starts_with(kDriverOwner)) OwnFrom(hold.owner, from);
  holders_.OnNotes(from, hold.holds);
  actors::DirectoryActions actions;
  for (const actors::RefNote& note : hold.holds) {
    if (note.held && holders_.Held(note.number, from).value_or(false))
      directory_.Held(actors::ActorOfHandle(note.number), actions);
  }
  Do(actions);
  Send(from, wire::Encode(actors::kFrameActorAnswer,
                          actors::ActorAnswer{hold.request, {}, {}, {}, {}, {}}));
  EndUnheld();
}

// What an actor held that is started again, its next life may find in its state.
void HeadActors::HandlesGone(const std::string& process, const ProcessOwner& owner) {
  const actors::PlacedActor* actor = directory_.Find(owner.actor);
  const bool returns =
      actor != nullptr && !actor->dead() && actor->life.state != ActorState::kAlive;
  holders_.Gone(Now(), process, returns ? actors::kActorOwner + owner.actor : "");
}

void HeadActors::ReadyAgain(const std::string& process, const std::string& id) {
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor != nullptr && actor->life.state == ActorState::kAlive && actor->life.process == process)
    holders_.Back(Now(), actors::kActorOwner + id);
}

void HeadActors::ForgetHandles(const std::string& actor) {
  if (const auto number = actors::HandleOf(actor)) holders_.Ended(*number);
  holders_.Back(Now(), actors::kActorOwner + actor);  // What it held, nobody will find.
}

void HeadActors::TickHandles() {
  holders_.Tick(Now());
  if (confirm_by_ == Time::Never()) holders_.ExpectNoMore();
  EndUnheld();
}

void HeadActors::EndUnheld() {
  actors::DirectoryActions actions;
  for (const uint64_t number : holders_.TakeUnheld())
    directory_.Unheld(Now(), actors::ActorOfHandle(number), actions);
  Do(actions);
}

}  // namespace troupe::daemons
