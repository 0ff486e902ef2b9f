// ActorCell: one actor in its process: its mailbox, its running calls, its saved state.
//
// Calls run on fibers of one thread, or on threads of the actor's own, at most `max_concurrency` at
// once; one that waits lets the others run. If the instance saves its state, a reply leaves only
// when the state that it is due to is safe; calls that end while a save is on its way share the
// next one.
// Thread: any; methods run on the fiber thread that the cell was given, or on its own threads.
// Owns: the instance, its threads.
// Invariants: AL-1 no reply leaves before the state of its call is saved. AL-2 after End no method
// begins, and every call that has not run, or runs, is answered with the reason. MB-1..4 of its
// mailbox.
// Limits: those of its mailbox; kMaxConcurrencyMax, and kCallThreadsMax on threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/core/mailbox.h"
#include "actors/host/instance.h"
#include "runtime/brief_mutex.h"

namespace troupe::actors {

class ActorCell;
class CallThreads;
class CpuLoan;

// kInvalidArgument: so many threads cannot be asked for.
[[nodiscard]] Status CheckConcurrency(const ActorBlueprint& blueprint);

// What a cell asks of its process. From any thread, with no lock of the cell's held.
class CellHost {
 public:
  virtual ~CellHost() = default;
  virtual void SendTo(const std::string& to, const ActorReply& reply) = 0;
  virtual void SendTo(const std::string& to, const ActorMissing& missing) = 0;
  virtual void SendTo(const std::string& to, const ActorFull& full) = 0;
  virtual void SendTo(const std::string& to, const ActorRoom& room) = 0;
  // Keeps the state of this incarnation; `done` follows when it is safe or cannot be.
  virtual void Save(const ActorAddress& actor, std::string state,
                    std::function<void(Status)> done) = 0;
  // It has ended itself, for good: End follows.
  virtual void Exited(const ActorAddress& actor, const Error& reason) = 0;
  // It cannot go on, but another incarnation may: as after a crash.
  virtual void Failed(const ActorAddress& actor, const Error& reason) = 0;
  virtual Status Spawn(size_t thread, std::function<void()> fn) = 0;
  [[nodiscard]] virtual const std::string& node() const = 0;
  // Where calls are counted; null: nowhere.
  [[nodiscard]] virtual CpuLoan* loan() const { return nullptr; }
};

class ActorCell : public std::enable_shared_from_this<ActorCell> {
 public:
  // Methods run on the host's thread `thread`; `system` is what they see of it.
  ActorCell(CellHost* host, ActorSystem* system, ActorAddress self,
            std::unique_ptr<Instance> instance, const ActorBlueprint& blueprint, size_t thread);
  ~ActorCell();

  // Before the first call: what the incarnation before had saved.
  [[nodiscard]] Status Restore(const std::string& saved);
  void OnCall(const std::string& from, ActorCall call);
  void OnCheck(const std::string& from, const ActorCheck& check);
  void OnCancel(const std::string& from, uint64_t number, const Cancellation& how);
  // From this process; the number is for OnCancel, with an empty `from`.
  uint64_t CallLocal(std::string method, std::string arguments, Time deadline,
                     const CallDone& done);
  // Settles what waits with `reason` and cancels what runs. Idempotent. Not `for_good`: other
  // processes are told nothing, since another incarnation may do what they wait for.
  void End(const Error& reason, bool for_good = true);
  // It ends when nothing runs and nothing waits; unless it stays then. If it may stay, calls that
  // it makes to itself while nothing of others is left do not hold it up: they fail. Idempotent.
  void Leave(const Error& reason, std::function<bool()> stays = nullptr);
  // Whether nothing runs any more.
  [[nodiscard]] bool Idle() const;
  void Forget(Time now);
  // Who wants to know when it ends; End's caller tells them.
  void Watch(const std::string& peer, bool on);
  [[nodiscard]] std::set<std::string> watchers() const;
  [[nodiscard]] const ActorAddress& self() const { return self_; }
  [[nodiscard]] size_t waiting() const;

 private:
  using CallKey = std::pair<std::string, uint64_t>;

  void Handle(const std::string& from, Mailbox::Answer answer);
  void Refuse(Mailbox::Answer& answer);
  // Where methods run, one at a time on a fiber thread.
  Status RunThere(std::function<void()> fn);
  void StartMore();
  [[nodiscard]] bool WantsFiber() const;  // With mu_ held.
  void Drain();
  void Run(Mailbox::Work work, const std::shared_ptr<RunningCall>& call);
  // A method has returned; with a reason, the actor is to exit.
  void Finish(Mailbox::Work& work, Result<std::string> result, const std::string& exit_reason);
  // From any thread, while the call's fiber waits: the reply, unless it is due later or elsewhere.
  bool AnswerNow(const Mailbox::Work& work, const Result<std::string>& result);
  // What a call ended with, and where.
  [[nodiscard]] Error Located(Error error) const;
  // `ran`: it may have changed the state.
  void Answer(Mailbox::Work& work, Result<std::string> result, bool ran, bool last = false);
  using Unsaved = std::pair<Mailbox::Work, Result<std::string>>;
  void ReplyIsLast(const CallKey& key);  // With mu_ held.
  void LeaveAfter(const CallKey& last, const Error& reason);
  // With mu_ held: why it is to end now, if it is.
  [[nodiscard]] std::optional<Error> LeavesNow();
  [[nodiscard]] bool OnlyItself() const;
  void SaveIfDue();
  void OnSaved(const std::vector<CallKey>& calls, const std::vector<Unsaved>& local,
               const Status& status);
  [[nodiscard]] ActorReply ToReply(uint64_t number, const Result<std::string>& result) const;
  [[nodiscard]] Error Ended() const;
  [[nodiscard]] std::string Name() const;

  CellHost* const host_;
  ActorSystem* const system_;
  const ActorAddress self_;
  const std::unique_ptr<Instance> instance_;
  const uint32_t max_concurrency_;
  const size_t thread_;
  const std::unique_ptr<CallThreads> threads_;  // Null: on thread_'s fibers.

  mutable BriefMutex mu_;  // A leaf: never held across a wait (F-4).
  Mailbox mailbox_;
  std::map<CallKey, std::shared_ptr<RunningCall>> running_;
  uint32_t fibers_ = 0;
  uint64_t next_local_ = 1;
  std::optional<Error> ended_;
  bool ended_for_good_ = false;
  std::set<std::string> watchers_;
  std::optional<Error> leaving_;
  std::function<bool()> stays_;  // Whether it does not, after all.
  size_t local_waiting_ = 0;     // Of the calls that wait: those of this process.
  std::optional<CallKey> last_;  // When its reply has arrived, the actor leaves.
  std::optional<FiberEvent> last_arrived_;
  // Of an instance that saves.
  bool saving_ = false;
  bool quiet_ = false;  // Nothing begins before the state is taken.
  std::vector<CallKey> unsaved_;
  std::vector<Unsaved> unsaved_local_;
};

}  // namespace troupe::actors
