// What a Mailbox is saved as: of each caller the replies that it may still ask for.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/core/protocol.h"

namespace troupe::actors {

struct SavedSession {
  std::string caller;
  uint64_t base = 0;
  std::vector<ActorReply> replies;
  template <class A>
  void Fields(A& a) {
    a(caller, base, replies);
  }
};

struct SavedMailbox {
  std::vector<SavedSession> sessions;
  template <class A>
  void Fields(A& a) {
    a(sessions);
  }
};

}  // namespace troupe::actors
