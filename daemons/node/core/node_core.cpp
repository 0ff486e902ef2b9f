#include "daemons/node/core/node_core.h"

#include <algorithm>
#include <csignal>

#include "daemons/protocol/actor_lease.h"
#include "runtime/death_watch.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kHelloInterval = milliseconds(500);
constexpr Duration kFirstHellos = milliseconds(10);  // While the head or the link to it comes up.
constexpr Duration kFirstLinkTime = seconds(5);
// The first may be to a hello of before. What the head has ordered until it knew comes ahead of the
// second.
constexpr int kAnswersToDrain = 2;

uint64_t LeftMs(Time at, Time now) {
  if (at == Time::Never()) return NodeNotice::kNoDeadline;
  return static_cast<uint64_t>(std::max(Duration::zero(), at - now) / milliseconds(1));
}

}  // namespace

NodeCore::NodeCore(NodeIdentity identity, uint64_t incarnation, Time now)
    : identity_(std::move(identity)),
      begun_(now),
      incarnation_(incarnation),
      head_(identity_.fence),
      lease_(identity_.lease) {
  head_.Begin(now);
  lease_.Begin(now);
}

bool NodeCore::OnFrame(const std::string& frame, Time now) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return false;
  head_.Heard(now);
  lease_.Heard(now);
  // What cannot be read is passed over: the head says it again, or finds that nothing came of it.
  const auto decoded = [&]<class Message>(const Message& /*sample*/, auto&& take) {
    if (const auto message = wire::Decode<Message>(*type, frame); message.ok()) take(*message);
    return false;
  };
  switch (*type) {
    case kFrameStartWorker:
      return decoded(StartWorker{}, [&](const StartWorker& start) { OnStart(start, now); });
    case kFrameKillWorker:
      return decoded(KillWorker{}, [&](const KillWorker& kill) { OnKill(kill); });
    case kFrameNodeAnswer:
      return decoded(NodeAnswer{}, [&](const NodeAnswer& answer) { OnAnswer(answer, now); });
    case kFrameNodeFenced:
      return decoded(NodeFenced{}, [&](const NodeFenced& fenced) { OnFenced(fenced, now); });
    default:
      return true;
  }
}

void NodeCore::OnStart(const StartWorker& start, Time now) {
  // What a head that has ended has sent may be read after the word of the next one, which has given
  // its actors up or to others.
  if (start.head != heard_.head && !TROUPE_MUTATED("NC-1 any head's order is followed")) {
    effects_.emplace_back(Warn{"an order to start " + start.lease +
                               " is passed over: it is of a head that has ended"});
    return;
  }
  if (workers_.contains(start.process) || leaving_) return;
  const uint32_t slot = FreeSlot();
  if (slot >= kDeathWatchSlots) {
    return Refuse(start.process,
                  "this node already runs " + std::to_string(kDeathWatchSlots) + " workers", now);
  }
  Begin(start, slot);
}

void NodeCore::Begin(const StartWorker& start, uint32_t slot, bool again) {
  Worker& worker = workers_[start.process];
  worker.lease = start.lease;
  worker.room = start.room;
  worker.incarnation = incarnation_;
  worker.slot = slot;
  worker.order = start;
  effects_.emplace_back(StartProcess{start, slot, again});
}

void NodeCore::OnStarted(const std::string& process, bool ahead) {
  const auto it = workers_.find(process);
  if (it != workers_.end() && !ahead) it->second.order.reset();
}

void NodeCore::OnNotStarted(const std::string& process, const std::string& why, Time now) {
  if (workers_.erase(process) > 0) Refuse(process, why, now);
}

void NodeCore::Refuse(const std::string& process, const std::string& why, Time now) {
  NoteEnd(process, now);
  Tell({process, true, "could not be started: " + why, -1, {why}});
}

uint32_t NodeCore::FreeSlot() const {
  std::vector<bool> used(kDeathWatchSlots, false);
  for (const auto& [name, worker] : workers_) used[worker.slot] = true;
  return static_cast<uint32_t>(std::find(used.begin(), used.end(), false) - used.begin());
}

void NodeCore::OnKill(const KillWorker& kill) {
  const auto it = workers_.find(kill.process);
  if (it != workers_.end()) Kill(it->first, it->second, kill.signal);
}

void NodeCore::Kill(const std::string& process, Worker& worker, int signal) {
  worker.killed = true;
  effects_.emplace_back(SignalProcess{process, signal});
}

void NodeCore::OnLifeLost(const std::string& process) {
  const auto it = workers_.find(process);
  if (it == workers_.end() || std::exchange(it->second.death_told, true)) return;
  Tell({process, false, "its process ended", 0, {}});
}

bool NodeCore::OnExited(const std::string& process, ProcessEnd end, Time now) {
  const auto it = workers_.find(process);
  if (it == workers_.end()) return true;
  std::optional<StartWorker> again;
  const uint32_t slot = it->second.slot;
  if (it->second.order && !end.began && !it->second.killed &&
      it->second.incarnation == incarnation_ && !leaving_ &&
      !TROUPE_MUTATED("NC-4 its order is lost with it"))
    again = std::move(it->second.order);
  workers_.erase(it);
  if (again) {
    effects_.emplace_back(
        Warn{"a process that was started ahead had ended when it was given work (" + end.how +
             "); " + process + " is started again"});
    again->spare_argv.clear();
    Begin(*again, slot, true);
    return false;
  }
  NoteEnd(process, now);
  if (!TROUPE_MUTATED("NC-3 ends are not told"))
    Tell({process, true, std::move(end.how), end.code, std::move(end.last_lines)});
  return true;
}

void NodeCore::NoteEnd(const std::string& process, Time now) {
  ended_.emplace_back(now, process);
  if (ended_.size() <= kEndedMax) return;
  ended_.pop_front();
  all_ended_ = false;
}

// Once a head has known for long what has ended, it is forgotten. One that was restarted has not.
void NodeCore::OnAnswer(const NodeAnswer& answer, Time now) {
  if (answer.head != heard_.head) {
    heard_since_ = now;
    answers_ = 0;
  }
  if (notice_told_ && answers_ < kAnswersToDrain) ++answers_;
  heard_ = answer;
  if (heard_since_ + kEndedKept > now) return;
  while (!ended_.empty() && ended_.front().first + kEndedKept < now) ended_.pop_front();
  if (ended_.empty()) all_ended_ = true;
}

// What this incarnation runs was given up, and is or will be placed elsewhere.
void NodeCore::OnFenced(const NodeFenced& fenced, Time now) {
  if (fenced.incarnation != incarnation_) return;
  if (fenced.replaced) {
    effects_.emplace_back(
        EndNode{fenced.reason + "; this one ends. Each node needs a --name of its own"});
    return;
  }
  effects_.emplace_back(Warn{fenced.reason + "; joining again when the " +
                             std::to_string(workers_.size()) + " workers of before have ended"});
  for (auto& [name, worker] : workers_) Kill(name, worker, SIGKILL);
  effects_.emplace_back(GiveUpSpares{});
  effects_.emplace_back(BeginIncarnation{std::max(incarnation_, fenced.newest)});
  join_by_ = now + kEndLimit;
  answers_ = 0;  // To the head the next one is a new node.
}

bool NodeCore::Notice(NodeNotice notice, Time until) {
  notice_until_ = std::min(notice_until_, until);
  if (notice_) return false;
  notice_ = std::move(notice);
  return true;
}

void NodeCore::AtRisk(NodeNotice warning, Time at) {
  warning_ = std::move(warning);
  warning_at_ = at;
}

bool NodeCore::drained() const {
  return notice_ && workers_.empty() && answers_ >= kAnswersToDrain;
}

// An actor is what may live twice: its callers on this side of a cut would go on with the old life.
// Workers of runs are fenced by their groups, and go on where only the head is away.
void NodeCore::Tick(Time now) {
  if (lease_.Expired(now)) {
    effects_.emplace_back(
        EndNode{"the head was not heard for " +
                std::to_string(static_cast<int64_t>(ToSeconds(identity_.lease))) +
                " s; the cluster is taken to be gone, and this node ends (--lease-s)"});
  }
  if (!head_.Expired(now) || TROUPE_MUTATED("NC-5 actors outlive the silence")) return;
  size_t actors = 0;
  for (auto& [name, worker] : workers_) {
    const std::string actor = ParseLeaseId(worker.lease).first;
    if (actor.empty() || IsRunActor(actor)) continue;
    Kill(name, worker, SIGKILL);
    ++actors;
  }
  if (actors == 0) return;
  const auto silence_s = static_cast<int64_t>(ToSeconds(identity_.fence));
  effects_.emplace_back(Warn{"the head was not heard for " + std::to_string(silence_s) +
                             " s and may have given up what runs here: " + std::to_string(actors) +
                             " actors were ended"});
}

// Else a life that was given up would still answer calls, and hold what the next one is given. One
// that cannot be killed does not keep the host out for ever.
bool NodeCore::Joins(const NodeSight& sight, Time now) const {
  const bool alone = TROUPE_MUTATED("NC-2 it joins beside its life before") ||
                     std::ranges::all_of(workers_, [&](const auto& entry) {
                       return entry.second.incarnation == incarnation_;
                     });
  return (alone && !sight.spares_end) || now > join_by_;
}

void NodeCore::Hello(const NodeSight& sight, Time now) {
  if (!Joins(sight, now)) return;
  NodeHello hello;
  hello.node = identity_.node;
  hello.incarnation = incarnation_;
  hello.host = identity_.host;
  hello.data_address = identity_.data_address;
  hello.pid = identity_.pid;
  hello.resources = identity_.resources;
  hello.labels = identity_.labels;
  hello.leaving = leaving_;
  hello.heard = heard_;
  hello.notice = notice_;
  hello.notice.left_ms = LeftMs(notice_until_, now);
  hello.warning = warning_;
  hello.warning.left_ms = LeftMs(warning_at_, now);
  notice_told_ = notice_told_ || notice_;
  for (const auto& [name, worker] : workers_) {
    if (worker.incarnation != incarnation_) continue;
    const auto seen = sight.processes.find(name);
    const NodeSight::Process process =
        seen == sight.processes.end() ? NodeSight::Process{} : seen->second;
    hello.workers.push_back({name, process.pid, worker.lease, worker.death_told, worker.room,
                             process.cpu_ms, process.rss_bytes});
  }
  hello.output = sight.output;
  for (const auto& [when, process] : ended_) hello.ended.push_back(process);
  hello.all_ended = all_ended_;
  effects_.emplace_back(TellHead{wire::Encode(kFrameNodeHello, hello)});
}

Duration NodeCore::UntilHello(Time now) const {
  return heard_.head.empty() && now < begun_ + kFirstLinkTime ? kFirstHellos : kHelloInterval;
}

void NodeCore::Tell(const WorkerExited& exited) {
  effects_.emplace_back(TellHead{wire::Encode(kFrameWorkerExited, exited)});
}

}  // namespace troupe::daemons
