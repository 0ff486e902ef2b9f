// Why a peer does not answer: tried with a connection of its own, which sends nothing.
//
// Thread: any; blocks up to `limit`.
#pragma once

#include <string>

#include "runtime/transport.h"

namespace troupe {

enum class LinkState {
  kOpen,          // Somebody takes the connection, and does not turn our key away.
  kStranger,      // Somebody listens there who has another key than we look for, or refuses ours.
  kNoConnection,  // Nobody listens there, or nothing gets through.
};

// Of a tcp endpoint, with the keys with which it was connected to; of an ipc endpoint whether
// somebody listens.
[[nodiscard]] LinkState ProbeLink(const CurveKeys& own, const PeerAddress& peer, Duration limit);

// For people: what the state says of a head, and what to do.
[[nodiscard]] std::string ExplainLink(LinkState state, const std::string& key_file);

}  // namespace troupe
