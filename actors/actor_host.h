// ActorHost: one actor in its process. Takes calls from the transport into a bounded mailbox and
// runs them on fibers.
//
// Calls of one caller start in the order they were sent. With max_concurrency 1 (the default) one
// runs at a time; with more, an actor that waits does not block its others.
// Thread: OnFrame on the loop; the actor's methods on one fiber thread.
// Owns: the instance and the fiber thread.
// Limits: the blueprint's mailbox_depth; a full mailbox answers kBackpressure.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "actors/actor_type.h"
#include "actors/protocol.h"
#include "runtime/executor.h"
#include "runtime/transport.h"

namespace troupe::actors {

class ActorHost {
 public:
  ActorHost(Transport* transport, std::unique_ptr<Instance> instance,
            const ActorBlueprint& blueprint);
  ~ActorHost();

  void OnFrame(const std::string& from, const std::string& frame);
  // Refuses new and waiting calls with kPeerGone and waits up to `limit` for the running ones.
  Status Stop(Duration limit);

 private:
  struct Waiting {
    std::string from;
    ActorCall call;
  };
  void Drain();
  void Answer(const std::string& to, uint64_t id, const Result<std::string>& result);

  Transport* const transport_;
  const std::unique_ptr<Instance> instance_;
  const uint32_t max_concurrency_;
  const size_t mailbox_depth_;
  std::mutex mu_;  // A leaf: never held across a wait (F-4).
  std::deque<Waiting> mailbox_;
  uint32_t running_ = 0;
  bool stopping_ = false;
  Executor executor_;
};

}  // namespace troupe::actors
