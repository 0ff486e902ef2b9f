// HostActor: the actor that every process has, through which others start and end actors in it.
//
// Methods: "spawn"(an encoded ActorBlueprint) -> an encoded ActorAddress; "end"(actor, reason).
// Thread: that of an actor.
#pragma once

#include <string>

#include "actors/actor_system.h"

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
    return Error{ErrorCode::kNotFound, "a host actor has no method " + method};
  }

 private:
  ActorSystem* const system_;
};

}  // namespace troupe::actors
