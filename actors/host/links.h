// Links: two actors that end together.
//
// When one of two linked actors ends for good, the other is ended, too, with the reason; a restart
// is no end. Links of placed actors are the head's, and last over restarts of all. A link with an
// actor in a process is kept by the processes of the two: a placed one that has been restarted
// since is told of the other's end, but no more of the loss of the other's whole process.
// Thread: any.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "actors/api/handle.h"

namespace troupe {

namespace actors {

// The links that the processes keep: those of this one's actors.
class ProcessLinks : public std::enable_shared_from_this<ProcessLinks> {
 public:
  explicit ProcessLinks(ActorSystem* system) : system_(system) {}
  void Link(const ActorAddress& mine, const ActorAddress& other);
  void Unlink(const std::string& mine, const std::string& other);
  [[nodiscard]] size_t size() const;

 private:
  struct Guards {
    MonitorGuard mine;
    MonitorGuard other;
  };
  using Pair = std::pair<std::string, std::string>;
  void OnEnded(const Pair& pair, const ActorAddress& left, const std::string& reason);
  // What watches must go without a lock held: it asks the actor's own.
  [[nodiscard]] std::shared_ptr<Guards> Take(const Pair& pair);

  ActorSystem* const system_;
  mutable std::mutex mu_;
  std::map<Pair, std::shared_ptr<Guards>> links_;
};

[[nodiscard]] Status SetLink(const std::shared_ptr<ActorSystem>& system, const ActorAddress& one,
                             const ActorAddress& other, bool on, Duration limit);

}  // namespace actors

// Links two actors, which need not be those of the caller. Linking them again is no error.
// kPeerGone: one has ended already, and nothing was done; kUnavailable: it is not known yet where
// one of them is.
template <class T, class U>
[[nodiscard]] Status Link(const ActorHandle<T>& one, const ActorHandle<U>& other,
                          Duration limit = seconds(30)) {
  if (!one || !other)
    return Error{ErrorCode::kInvalidArgument, "a handle of the two refers to no actor"};
  return actors::SetLink(one.system(), one.address(), other.address(), true, limit);
}
// Undoes it.
template <class T, class U>
[[nodiscard]] Status Unlink(const ActorHandle<T>& one, const ActorHandle<U>& other,
                            Duration limit = seconds(30)) {
  if (!one || !other)
    return Error{ErrorCode::kInvalidArgument, "a handle of the two refers to no actor"};
  return actors::SetLink(one.system(), one.address(), other.address(), false, limit);
}

}  // namespace troupe
