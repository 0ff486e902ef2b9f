// The calls of three processes to one actor that dies and is started again.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <variant>
#include <vector>

#include "actors/core/mailbox.h"
#include "tests/sim/actors/actor_sim.h"

namespace troupe::actors::sim {
namespace {

constexpr int kCallers = 3;
constexpr size_t kDepth = 8;
constexpr uint64_t kBytes = 400;
// The receiver counts from when a call arrives: it may leave a step late, is on
// its way for two, and arrives in a step.
constexpr Duration kWayMost = milliseconds(250);

using Frame = std::variant<ActorCall, ActorReply, ActorCheck, ActorMissing, ActorFull, ActorRoom>;

class CallSim {
 public:
  explicit CallSim(const SimOptions& options)
      : options_(options), random_(options.seed), saves_(options.seed % 2 == 0) {
    for (int i = 0; i < kCallers; ++i) {
      callers_.push_back(Caller{"c" + std::to_string(i), CallWindow("a", 1000)});
    }
    StartActor();
  }

  SimResult Run() {
    for (int i = 0; i < options_.events && result_.ok; ++i) Event();
    healed_ = true;
    for (int i = 0; i < 4000 && result_.ok && Open(); ++i) Pass(milliseconds(20));
    if (result_.ok && Open()) Violate("AC-3 calls are open long after their deadlines");
    return result_;
  }

 private:
  struct Caller {
    std::string name;
    CallWindow window;
    uint64_t incarnation = 0;  // It is bound to.
  };
  struct Known {  // Of a call, by its text.
    Time deadline;
    bool retry = false;
    int settled = 0;
    std::optional<uint64_t> ran_in;  // The last incarnation.
    int runs = 0;
    std::set<uint64_t> sent_to;
    bool asked_again = false;
  };
  struct Flying {
    Time due;
    uint64_t order;
    int caller;
    bool to_actor;
    uint64_t incarnation;  // Of the actor's end.
    Frame frame;
    bool operator<(const Flying& other) const {
      return std::tie(due, order) < std::tie(other.due, other.order);
    }
  };
  struct Saved {
    std::string mailbox;
    std::vector<std::string> log;
  };
  struct Running {
    Mailbox::Work work;
    Time until;
  };

  uint64_t Random(uint64_t n) { return random_() % n; }
  void Violate(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }
  void Fold(uint64_t value) { result_.hash = (result_.hash ^ value) * 1099511628211ULL; }
  bool Is(Sabotage sabotage) const { return options_.sabotage == sabotage; }

  // ---- the network ----

  void Send(int caller, bool to_actor, const Frame& frame) {
    const int copies = healed_ ? 1 : (Random(10) < 2 ? 0 : Random(10) < 2 ? 2 : 1);
    for (int i = 0; i < copies; ++i) {
      const auto delay = milliseconds(static_cast<int64_t>(healed_ ? 1 : Random(120)));
      // Every incarnation has a process, and a name, of its own.
      const uint64_t process = callers_[static_cast<size_t>(caller)].incarnation;
      flying_.insert({now_ + delay, ++order_, caller, to_actor, process, frame});
    }
  }
  void Deliver(const Flying& flying) {
    Fold(flying.order);
    auto& caller = callers_[static_cast<size_t>(flying.caller)];
    if (flying.to_actor) {
      if (!mailbox_ || flying.incarnation != incarnation_) return;  // Its process is gone.
      if (const auto* call = std::get_if<ActorCall>(&flying.frame))
        return Handle(flying.caller, mailbox_->Offer(now_, caller.name, *call));
      return Handle(flying.caller,
                    mailbox_->OnCheck(now_, caller.name, std::get<ActorCheck>(flying.frame)));
    }
    if (const auto* reply = std::get_if<ActorReply>(&flying.frame)) {
      if (auto settled = caller.window.OnReply(*reply)) Settle(*settled);
      if (Is(Sabotage::kSettleTwice) && reply->number % 7 == 0 && last_) Settle(*last_);
    } else if (const auto* missing = std::get_if<ActorMissing>(&flying.frame)) {
      caller.window.OnMissing(missing->numbers);
    } else if (const auto* full = std::get_if<ActorFull>(&flying.frame)) {
      caller.window.OnFull(now_, full->number);
    } else {
      caller.window.OnRoom();
    }
    Pump(flying.caller);
  }

  // ---- callers ----

  void Call(int i) {
    const std::string text = std::to_string(next_call_++);
    Known& known = calls_[text];
    known.deadline = now_ + milliseconds(static_cast<int64_t>(Random(4) == 0 ? 100 : 20'000));
    known.retry = Random(2) == 0;
    const auto done = [this, text](const Result<std::string>& result) { OnDone(text, result); };
    order_of_[callers_[static_cast<size_t>(i)].name].push_back(text);
    auto& window = callers_[static_cast<size_t>(i)].window;
    const std::string padding(Random(100), 'x');
    numbers_[text] = *window.Add({text, padding, known.deadline, known.retry, done});
    Pump(i);
  }
  void OnDone(const std::string& text, const Result<std::string>& result) {
    Known& known = calls_.at(text);
    if (++known.settled > 1) Violate("AC-2 call " + text + " is settled twice");
    Fold(result.ok() ? 1 : 2);
    ++(result.ok() ? result_.completed : result_.failed);
    if (!result.ok()) return;
    if (*result != text) Violate("MB-3 call " + text + " got the reply " + *result);
    if (known.runs == 0) Violate("MB-3 call " + text + " has a value and never ran");
    const bool safe = std::ranges::count(log_, text) + std::ranges::count(safe_.log, text) > 0;
    const bool kept = std::ranges::count(safe_.log, text) > 0;
    if (saves_ && !kept) Violate("AL-1 call " + text + " was answered before it was safe");
    if (!saves_ && mailbox_ && !safe && known.ran_in == incarnation_)
      Violate("MB-1 call " + text + " has no effect");
  }
  void Settle(const SettledCall& call) {
    last_ = call;
    call.done(call.result);
  }
  void Settle(const std::vector<SettledCall>& calls) {
    for (const SettledCall& call : calls) Settle(call);
  }
  void Pump(int i) {
    Caller& caller = callers_[static_cast<size_t>(i)];
    std::vector<ActorCall> calls = caller.window.TakeSendable(now_);
    if (Is(Sabotage::kSwapSends) && calls.size() > 1) {
      std::swap(calls[0].method, calls[1].method);
    }
    for (ActorCall& call : calls) {
      if (!call.method.empty()) {
        Known& known = calls_.at(call.method);
        known.sent_to.insert(call.incarnation);
        if (known.sent_to.size() > 1) ++result_.repeats;
        if (known.sent_to.size() > 1 && !known.retry)
          Violate("AC-4 call " + call.method + " is sent to two incarnations");
        if (numbers_.at(call.method) != call.number)
          Violate("AC-1 call " + call.method + " has another's number");
      }
      if (Is(Sabotage::kRunLate)) call.timeout_ms = 0;
      Send(i, true, std::move(call));
    }
  }
  void Sweep() {
    for (int i = 0; i < kCallers; ++i) {
      Caller& caller = callers_[static_cast<size_t>(i)];
      if (!Is(Sabotage::kForgetSweep)) Settle(caller.window.Sweep(now_, "restarting"));
      if (auto check = caller.window.TakeCheck(now_)) Send(i, true, std::move(*check));
      Pump(i);
    }
  }

  // ---- the actor ----

  void StartActor() {
    ++incarnation_;
    const size_t depth = Is(Sabotage::kDeepMailbox) ? 2 * kDepth : kDepth;
    mailbox_.emplace("a",
                     Mailbox::Limits{depth, kBytes,
                                     options_.seed % 3 == 0 ? Overflow::kRefuse : Overflow::kWait});
    log_ = safe_.log;
    if (!safe_.mailbox.empty() && !Is(Sabotage::kLoseState))
      (void)mailbox_->Restore(now_, safe_.mailbox);
  }
  void Die() {
    ++result_.deaths;
    mailbox_.reset();
    running_.clear();
    held_.clear();
    saving_.reset();
    log_.clear();
    last_number_.clear();
  }
  void Rebind() {
    for (int i = 0; i < kCallers; ++i) {
      Caller& caller = callers_[static_cast<size_t>(i)];
      const uint64_t alive = mailbox_ ? incarnation_ : 0;
      if (caller.incarnation == alive || (!healed_ && Random(3) == 0)) continue;
      caller.incarnation = alive;
      if (!Is(Sabotage::kHideDeath))
        Settle(caller.window.Unbind({ErrorCode::kPeerGone, "it died"}, false));
      if (alive == 0) continue;
      if (Is(Sabotage::kHideDeath)) caller.window.OnMissing(All(caller));
      caller.window.Bind(alive);
      Pump(i);
    }
  }
  static std::vector<uint64_t> All(const Caller& caller) {
    std::vector<uint64_t> numbers;
    for (uint64_t n = caller.window.base(); n < caller.window.base() + 300; ++n)
      numbers.push_back(n);
    return numbers;
  }
  void Handle(int i, const Mailbox::Answer& answer) {
    for (const ActorReply& reply : answer.replies) {
      Give(i, reply);
    }
    if (!answer.missing.empty()) Send(i, false, ActorMissing{"a", answer.missing});
    if (answer.full) {
      ++result_.full;
      Send(i, false, ActorFull{"a", *answer.full});
    }
    if (mailbox_->waiting() > kDepth) Violate("MB-2 too many calls wait");
    // One that is larger than the bound, or is next where others are held, comes on top.
    if (mailbox_->bytes() > kBytes + 100) Violate("MB-2 too many bytes wait");
  }
  // MB-3: a reply is the same however often it is given.
  void Give(int i, ActorReply reply) {
    const auto key = std::tuple(incarnation_, i, reply.number);
    if (Is(Sabotage::kOtherReply) && given_.contains(key)) reply.value += "!";
    const auto [it, first] = given_.emplace(key, reply.value);
    if (!first && it->second != reply.value) Violate("MB-3 a repeated reply has changed");
    Send(i, false, std::move(reply));
  }
  static int IndexOf(const std::string& caller) { return caller[1] - '0'; }

  void Begin() {
    std::vector<Mailbox::Work> late;
    auto work = mailbox_->Next(now_, late);
    for (const Mailbox::Work& lost : late) {
      ActorReply reply{"a", lost.number, ToChain({ErrorCode::kDeadlineExceeded, "late"}), "",
                       false};
      mailbox_->Settle(lost, reply);
      Give(IndexOf(lost.caller), reply);
    }
    for (const std::string& caller : mailbox_->TakeRooms())
      Send(IndexOf(caller), false, ActorRoom{"a"});
    if (!work) return;
    if (Is(Sabotage::kRunLast)) {
      std::vector<Mailbox::Work> more;
      if (auto second = mailbox_->Next(now_, more)) {
        Note(*second);
        Note(*work);
        running_.push_back({*second, now_});
        running_.push_back({*work, now_});
        return;
      }
    }
    Note(*work);
    if (Is(Sabotage::kRunTwice) && Random(5) == 0) Note(*work);
    running_.push_back({std::move(*work), now_ + milliseconds(static_cast<int64_t>(Random(50)))});
  }
  void Note(const Mailbox::Work& work) {
    Known& known = calls_.at(work.method);
    ++known.runs;
    if (known.ran_in == incarnation_) Violate("MB-1 call " + work.method + " runs twice");
    if (known.ran_in && !known.retry)
      Violate("AC-4 call " + work.method + " runs in a second life");
    if (saves_ && std::ranges::count(log_, work.method) > 0)
      Violate("MB-1 call " + work.method + " has its effect twice");
    known.ran_in = incarnation_;
    uint64_t& last = last_number_[work.caller];
    if (work.number <= last) Violate("MB-1 call " + work.method + " runs out of order");
    last = work.number;
    if (now_ > known.deadline + kWayMost) Violate("MB-4 a call that is late has begun");
    log_.push_back(work.method);
  }
  void Finish() {
    if (running_.empty()) return;
    const size_t at = Random(running_.size());
    const Mailbox::Work work = running_[at].work;
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(at));
    const ActorReply reply{"a", work.number, {}, work.method, false};
    const bool hold = saves_ && !Is(Sabotage::kReplyUnsaved);
    mailbox_->Settle(work, reply, hold);
    if (hold) {
      held_.emplace_back(work.caller, work.number);
    } else {
      Give(IndexOf(work.caller), reply);
    }
  }
  void Save() {
    if (!saves_ || !running_.empty() || held_.empty() || saving_) return;
    saving_.emplace(Saved{mailbox_->Save(), log_}, std::exchange(held_, {}));
  }
  void FinishSave() {
    if (!saving_) return;
    ++result_.saves;
    safe_ = saving_->first;
    const auto calls = saving_->second;
    saving_.reset();
    for (auto& [caller, reply] : mailbox_->Publish(calls)) Give(IndexOf(caller), std::move(reply));
  }

  // ---- time ----

  void Work() {
    if (!mailbox_) return;
    if (running_.size() < 3 && (!saves_ || held_.empty() || Random(2) == 0)) Begin();
    if (Random(2) == 0) Finish();
    if (running_.empty() || Random(3) == 0) Save();
    if (Random(2) == 0) FinishSave();
  }
  void Pass(Duration d) {
    now_ = now_ + d;
    while (result_.ok && !flying_.empty() && flying_.begin()->due <= now_) {
      const Flying next = *flying_.begin();
      flying_.erase(flying_.begin());
      Deliver(next);
    }
    if (!mailbox_ && (healed_ || Random(4) == 0)) StartActor();
    Rebind();
    for (int i = 0; i < 4; ++i) Work();
    Sweep();
    CheckDeadlines();
  }
  void CheckDeadlines() {
    for (auto it = calls_.begin(); it != calls_.end(); ++it) {
      if (it->second.settled == 0 && it->second.deadline <= now_)
        return Violate("AC-3 call " + it->first + " is open after its deadline");
    }
  }
  void Event() {
    const uint64_t what = Random(100);
    Fold(what);
    if (what < 45) Call(static_cast<int>(Random(kCallers)));
    if (what >= 45 && what < 49 && mailbox_) Die();
    if (what >= 49 && what < 55) {
      Caller& caller = callers_[Random(kCallers)];
      const uint64_t number = caller.window.base() + Random(10);
      auto given_up = caller.window.Cancel(number, {ErrorCode::kCancelled, "enough"});
      if (given_up.settled) Settle(*given_up.settled);
    }
    if (what >= 55) Pass(milliseconds(static_cast<int64_t>(Random(60))));
  }
  bool Open() const {
    return std::ranges::any_of(callers_, [](const Caller& c) { return c.window.open() > 0; });
  }

  const SimOptions options_;
  std::mt19937_64 random_;
  const bool saves_;
  bool healed_ = false;
  SimResult result_;
  Time now_{1'000'000'000};
  std::multiset<Flying> flying_;
  uint64_t order_ = 0;
  std::vector<Caller> callers_;
  std::map<std::string, Known> calls_;
  std::map<std::string, uint64_t> numbers_;
  std::map<std::string, std::vector<std::string>> order_of_;
  std::optional<SettledCall> last_;
  int next_call_ = 0;

  uint64_t incarnation_ = 0;
  std::optional<Mailbox> mailbox_;
  std::vector<std::string> log_;  // Its state: what has run.
  Saved safe_;
  std::optional<std::pair<Saved, std::vector<std::pair<std::string, uint64_t>>>> saving_;
  std::vector<Running> running_;
  std::vector<std::pair<std::string, uint64_t>> held_;
  std::map<std::string, uint64_t> last_number_;
  std::map<std::tuple<uint64_t, int, uint64_t>, std::string> given_;
};

}  // namespace

SimResult RunCallSimulation(const SimOptions& options) { return CallSim(options).Run(); }

}  // namespace troupe::actors::sim
