#include "daemons/head/head_service.h"

#include <memory>
#include <utility>

#include "actors/core/error_chain.h"
#include "collective_groups/membership/group_keys.h"
#include "daemons/head/core/saved_state.h"
#include "runtime/log.h"
#include "runtime/wire.h"

namespace troupe::daemons {

HeadService::HeadService(Transport* transport, Lane* store_lane, Store* store, Spool* spool,
                         const HeadOptions& options)
    : HeadService(transport, store_lane, store, spool, options, options.new_id()) {}

HeadService::HeadService(Transport* transport, Lane* store_lane, Store* store, Spool* spool,
                         const HeadOptions& options, const std::string& id)
    : transport_(transport),
      store_(store),
      groups_(
          &transport->loop(), store_lane, store, "head-" + id,
          [this](const std::string& group, const groups::GroupNotice& notice) {
            Put(step::CoordinatorSays{group, notice});
          },
          options.key_ttl),
      records_(&transport->loop(), store_lane, store, options.key_ttl,
               [this] { Put(step::WriteAll{}); }),
      saves_(&transport->loop(), store_lane, store, options.key_ttl),
      loads_(&transport->loop(), store_lane, store,
             [this](const std::string& process, std::optional<std::string> value) {
               Result<SavedState> state =
                   wire::Decode<SavedState>(actors::kFrameSaveActor, value.value_or(""));
               value.reset();  // It is large, perhaps.
               Put(step::StateLoaded{process, state.ok() ? std::move(state->state) : ""});
             }),
      core_(options, id, &groups_, spool) {}

HeadService::~HeadService() = default;

Status HeadService::Start() {
  HeadRecords records;
  const auto load = [this](const std::string& prefix, const std::string& what,
                           std::map<std::string, std::string>& into) -> Status {
    Result<std::map<std::string, std::string>> loaded = Records::Load(*store_, prefix);
    if (!loaded.ok()) return loaded.error().WithContext("cannot read the " + what);
    into = std::move(*loaded);
    return Status::Ok();
  };
  if (Status s = load("job/", "runs", records.runs); !s.ok()) return s;
  if (Status s = load("actor/", "actors", records.actors); !s.ok()) return s;
  if (Status s = load(kGroupRecords, "placement groups", records.placement_groups); !s.ok())
    return s;
  if (Status s = load(kCollectiveRecords, "collective groups", records.collective_groups); !s.ok())
    return s;
  if (Status s = load(kActorGroupRecords, "groups of actors", records.actor_groups); !s.ok())
    return s;
  if (Status s = load(kJoinTokenRecords, "join tokens", records.join_tokens); !s.ok()) return s;
  const Result<std::map<std::string, std::string>> epochs = store_->List(groups::kGroupKeys);
  if (!epochs.ok()) return epochs.error().WithContext("cannot read the epochs of groups");
  for (const auto& [key, value] : *epochs) {
    if (std::string group = groups::GroupOfKey(key); !group.empty())
      records.epochs.insert(std::move(group));
  }
  scope_.Post([this, records = std::move(records)] {
    core_.Restore(transport_->loop().Now(), records);
    transport_->SetGuestHandler(
        [this](const std::string& from, const std::string& key, const std::string& frame) {
          Put(step::GuestFrame{from, key, frame});
        });
    transport_->SetHandler([this](const std::string& from, const std::string& frame) {
      Put(step::Frame{from, frame});
    });
    Run();
  });
  return Status::Ok();
}

void HeadService::Put(HeadStep step) {
  core_.Put(std::move(step));
  Run();
}

// What an effect causes is taken up by the loop that has done it.
void HeadService::Run() {
  if (std::exchange(running_, true)) return;
  while (std::optional<HeadEffect> effect = core_.Next(transport_->loop().Now()))
    std::visit([this](auto& one) { Do(one); }, *effect);
  running_ = false;
  if (core_.WakeAt() == wake_at_) return;
  transport_->loop().Cancel(timer_);
  wake_at_ = core_.WakeAt();
  timer_ = kNoTimer;
  if (wake_at_ == Time::Never()) return;
  timer_ = scope_.CallAt(wake_at_, [this] {
    wake_at_ = Time::Never();
    Run();
  });
}

// ---- effects ----

void HeadService::Do(const step::Log& log) {
  log.warning ? LogWarning(log.text) : LogInfo(log.text);
}

void HeadService::Do(step::Keep& keep) {
  keep.record.empty() ? records_.Delete(keep.key) : records_.Put(keep.key, std::move(keep.record));
}

void HeadService::Do(const step::AwaitKept& kept) {
  records_.WhenKept(kept.name, [this, then = kept.step] { Put(*then); });
}

void HeadService::Do(const step::OfferState& offered) {
  const actors::OfferState& offer = offered.offer;
  saves_.Offer(ActorStateKey(offer.actor), {offer.incarnation, offer.version}, offer.bytes,
               [this, from = offered.from, offer] {
                 if (!core_.MayKeep(offer).ok()) return false;
                 const actors::SendState send{offer.actor, offer.version};
                 const std::string frame = wire::Encode(actors::kFrameSendState, send);
                 return transport_->Send(from, frame).ok();
               });
}

// A store that is away is tried again by the repeat.
void HeadService::Do(step::SaveState& saved) {
  actors::SaveActor& save = saved.save;
  const std::string key = ActorStateKey(save.actor);
  const StateSaves::Version given{save.incarnation, save.version};
  if (!saves_.Takes(key, given, save.state.size())) return;
  const actors::ActorSaved answer{save.actor, save.version, {}};
  const SavedState state{save.incarnation, save.version, std::move(save.state)};
  saves_.Add(key, given, wire::Encode(actors::kFrameSaveActor, state),
             [this, to = saved.from, answer](const Status& put) {
               if (!put.ok()) return;
               (void)transport_->Send(to, wire::Encode(actors::kFrameActorSaved, answer));
             });
}

void HeadService::Do(const step::LoadState& load) {
  loads_.Ask(load.process, ActorStateKey(load.actor));
}

}  // namespace troupe::daemons
