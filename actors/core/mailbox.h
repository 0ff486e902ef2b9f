// Mailbox: the receiver's half of all sessions with one actor: order, duplicates, bounds, replies.
//
//   absent --offered--> queued --Next--> running --Settle--> settled --base passes--> forgotten
//      |                  ^
//      +--ahead--> held --+   (until the calls before it have come)
//
// A call that comes twice runs once: while its reply may still be asked for it is kept and sent
// again. With Save and Restore the kept replies outlive the process, so that a call that is sent to
// the next incarnation, too, has its effect once.
// Thread: one at a time. Reads no clock.
// Invariants: MB-1 calls of one session run in the order of their numbers, each at most once.
// MB-2 no more than `depth` calls and `bytes` of arguments wait. MB-3 what was settled and not yet
// confirmed is answered again with the same bytes. MB-4 a call whose deadline has passed does not
// begin.
// Limits: kSessionsMax callers, kHeldMax calls of each ahead of a gap; idle sessions are forgotten.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/core/call_window.h"
#include "actors/core/protocol.h"
#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr size_t kSessionsMax = 100'000;
inline constexpr size_t kHeldMax = 10'000;
inline constexpr size_t kUnconfirmedMax = 100'000;  // Replies kept for one caller.
inline constexpr Duration kSessionIdle = seconds(600);

class Mailbox {
 public:
  struct Limits {
    size_t depth = kMailboxDepthMax;
    uint64_t bytes = kMailboxBytesMax;
    Overflow overflow = Overflow::kWait;
  };
  // A call that may run now.
  struct Work {
    std::string caller;  // Empty: somebody in this process, who is told by `done`.
    uint64_t number = 0;
    std::string method;
    std::string arguments;
    Time deadline = Time::Never();
    CallDone done;
  };
  // What a frame of the caller's is answered with.
  struct Answer {
    std::vector<ActorReply> replies;
    std::vector<uint64_t> missing;
    std::optional<uint64_t> full;  // Nothing is taken from this number on.
    bool work = false;             // Next has something (more).
  };

  Mailbox(std::string actor, Limits limits) : actor_(std::move(actor)), limits_(limits) {}

  [[nodiscard]] Answer Offer(Time now, const std::string& caller, ActorCall call);
  // From this process, where nothing gets lost: kBackpressure if there is no room.
  [[nodiscard]] Status OfferLocal(Work work);
  // The next call to run; one whose deadline has passed is settled instead and put into `late`.
  [[nodiscard]] std::optional<Work> Next(Time now, std::vector<Work>& late);
  // Keeps the reply until the caller confirms it. One that is `held_back` is not given out before
  // Publish. Nothing for a local call.
  void Settle(const Work& work, ActorReply reply, bool held_back = false);
  // All that was held back may be given out; returned with whom to send it to.
  [[nodiscard]] std::vector<std::pair<std::string, ActorReply>> Publish(
      const std::vector<std::pair<std::string, uint64_t>>& calls);
  [[nodiscard]] Answer OnCheck(Time now, const std::string& caller, const ActorCheck& check);
  // Takes a call that waits out of the queue; nullopt if it does not wait (any more).
  [[nodiscard]] std::optional<Work> Withdraw(const std::string& caller, uint64_t number);
  // Callers that were refused and for whom there is room now.
  [[nodiscard]] std::vector<std::string> TakeRooms();
  // Empties the queue, for an actor that ends.
  [[nodiscard]] std::vector<Work> Clear();
  void Forget(Time now);  // Sessions that have been idle for long.

  // All that is settled and not confirmed, held back or not, for the next incarnation.
  [[nodiscard]] std::string Save() const;
  [[nodiscard]] Status Restore(Time now, const std::string& saved);

  [[nodiscard]] size_t waiting() const { return queue_.size(); }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] size_t sessions() const { return sessions_.size(); }

 private:
  enum class State : uint8_t { kAbsent, kHeld, kQueued, kRunning, kSettled };
  struct Slot {
    State state = State::kAbsent;
    ActorCall call;
    Time deadline = Time::Never();
    ActorReply reply;
    bool held_back = false;
  };
  struct Session {
    uint64_t base = 0;
    uint64_t next = 0;   // All below have been queued.
    uint64_t asked = 0;  // What was missing below has been asked for.
    size_t running = 0;
    size_t entries = 0;  // In the queue, whether still wanted or not.
    size_t held = 0;
    bool refused = false;
    Time heard{};
    std::deque<Slot> slots;  // From base on.
  };
  struct Queued {
    const std::string* caller = nullptr;  // Key of sessions_; null: local.
    uint64_t number = 0;
    Work local;
  };

  Slot& At(Session& session, uint64_t number);
  void Confirm(Session& session, uint64_t base);
  void Release(const std::string& caller, Session& session, Answer& answer);
  [[nodiscard]] bool Fits(size_t bytes, bool next) const;

  const std::string actor_;
  const Limits limits_;
  std::map<std::string, Session> sessions_;
  std::deque<Queued> queue_;
  uint64_t bytes_ = 0;  // Of what is queued or held.
  size_t refused_ = 0;  // Sessions.
};

}  // namespace troupe::actors
