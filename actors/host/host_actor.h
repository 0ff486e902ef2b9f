// HostActor: the actor that every process has, through which others start and end actors in it.
//
// Methods: "spawn"(an encoded ActorBlueprint) -> an encoded ActorAddress; "end"(actor, reason);
// "link"(an actor here, another, what: "check" that it is here, "link" or "unlink").
// Thread: that of an actor.
#pragma once

#include <string>

#include "actors/host/actor_system.h"
#include "actors/host/links.h"

namespace troupe::actors {

class HostActor final : public Instance {
 public:
  explicit HostActor(ActorSystem* system) : system_(system) {}

  Result<std::string> Invoke(CallContext&, const std::string& method,
                             std::string arguments) override {
    if (method == "spawn") {
      Result<Pack<ActorBlueprint>> pack =
          wire::Decode<Pack<ActorBlueprint>>(kArgumentsType, arguments);
      if (!pack.ok()) return pack.error();
      Result<ActorAddress> address = system_->Host(std::get<0>(pack->values));
      if (!address.ok()) return address.error();
      return wire::Encode(kValueType, Box<ActorAddress>{*address});
    }
    if (method == "end") {
      Result<Pack<std::string, std::string>> pack =
          wire::Decode<Pack<std::string, std::string>>(kArgumentsType, arguments);
      if (!pack.ok()) return pack.error();
      const auto& [actor, reason] = pack->values;
      (void)system_->End(actor, Error{ErrorCode::kPeerGone, reason});  // Already gone is as good.
      return wire::Encode(kValueType, Box<void>{});
    }
    if (method == "link") {
      using Arguments = Pack<ActorAddress, ActorAddress, std::string>;
      Result<Arguments> pack = wire::Decode<Arguments>(kArgumentsType, arguments);
      if (!pack.ok()) return pack.error();
      const auto& [mine, other, what] = pack->values;
      if (Status there = system_->Has(mine.actor); !there.ok()) return there.error();
      if (what == "link") links_->Link(mine, other);
      if (what == "unlink") links_->Unlink(mine.actor, other.actor);
      return wire::Encode(kValueType, Box<void>{});
    }
    return Error{ErrorCode::kNotFound, "a host actor has no method " + method};
  }

  [[nodiscard]] bool runs_in_invoke() const override { return false; }

 private:
  ActorSystem* const system_;
  const std::shared_ptr<ProcessLinks> links_ = std::make_shared<ProcessLinks>(system_);
};

}  // namespace troupe::actors
