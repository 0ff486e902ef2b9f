#include "tests/sim/actors/holder_sim.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <variant>
#include <vector>

#include "actors/core/actor_holders.h"
#include "actors/core/ref_table.h"

namespace troupe::actors::sim {
namespace {

constexpr int kDrivers = 2;
constexpr int kActorsMost = 9;  // That live at once.
constexpr int kDeathsMost = 3;
constexpr int kHeadsMost = 3;
constexpr int kLossesInARow = 1;  // See ref_sim.cpp.
constexpr uint64_t kNoteDelayMs = 300;
constexpr uint64_t kMessageDelayMs = 800;
constexpr uint64_t kBackMs = 9000;  // Longer than kRefSettle.
constexpr Duration kBeat = milliseconds(500);
constexpr Duration kSavedAfter = seconds(3);  // The head has heard of it then.
constexpr Duration kGrace = seconds(5);       // Of a new head.

class HolderSim {
 public:
  explicit HolderSim(uint64_t seed) : random_(seed) {
    for (int i = 0; i < kDrivers; ++i) Start(0);
  }

  HolderResult Run(int events) {
    for (int i = 0; i < events && result_.ok; ++i) Event();
    quiet_ = true;
    PassFor(kRefUnclaimed + seconds(30));
    CheckNothingIsLeft("HC-2 after all has settled ");
    for (size_t p = 0; p < processes_.size() && result_.ok; ++p) {
      while (!At(p).dead && !At(p).held.empty()) Drop(p);
    }
    // One after another: what an actor has held counts until it has ended.
    for (int i = 0; i < kActorsMost + 2; ++i) PassFor(seconds(12));
    CheckNothingIsLeft("HC-2 when nobody holds anything ");
    if (result_.ok && holders_.holds() + holders_.counted() > 0)
      Violate("HC-2 the head keeps holders of actors that have ended");
    return result_;
  }

 private:
  struct Process {
    explicit Process(std::string called) : name(std::move(called)), table(name) {}
    std::string name;
    RefTable table;
    uint64_t actor = 0;  // That it hosts.
    bool dead = false;
    int head = 0;                    // That it knows of.
    std::vector<uint64_t> held;      // Handles of others.
    std::map<uint64_t, Time> since;  // When it had the first.
    std::set<uint64_t> creating;     // That the head has not answered.
    Time beat{};
  };
  struct Actor {
    size_t host = 0;
    bool placed = false;  // There is a process.
    bool waits = true;    // As the head knows, there is none.
    bool ready = false;
    bool dead = false;
    bool unheld = false;   // As the head sees it.
    bool excused = false;  // Its process died when its handle had just left from there.
    Time asked{};
    int lives = 0;
    std::vector<uint64_t> saved;  // What it held at its death.
  };
  struct Message {
    size_t from;
    size_t to;
    uint64_t token;
    std::vector<RefKey> keys;
  };
  struct Over {
    Message of;
  };
  struct Create {
    int head;
    size_t by;
    uint64_t actor;
  };
  struct Created {
    size_t by;
    uint64_t actor;
  };
  struct Notes {  // What is sent to the head goes to the one of then.
    int head;
    size_t from;
    RefNotes notes;
  };
  struct Answers {
    size_t to;
    RefAnswers answers;
  };
  struct Beat {  // Behind what it repeats.
    int head;
    size_t from;
    std::set<uint64_t> creating;
    int knows;  // Which head.
    bool told;
  };
  struct NewHead {
    size_t to;
    int head;
  };
  struct Death {
    size_t of;
  };
  struct Return {
    uint64_t actor;
    bool ready;
  };
  struct Leave {
    int head;
    uint64_t actor;
    size_t host;
    uint64_t heard;
  };
  using Flying = std::variant<Message, Over, Create, Created, Notes, Answers, Beat, NewHead, Death,
                              Return, Leave>;

  Process& At(size_t index) { return *processes_[index]; }
  uint64_t Random(uint64_t n) { return random_() % n; }
  static RefKey KeyOf(uint64_t actor) { return {kHandles, actor}; }
  static std::string HeirOf(uint64_t actor) { return "actor/" + std::to_string(actor); }
  void Violate(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }
  void Fly(uint64_t most_ms, Flying what) {
    const Time due = now_ + milliseconds(static_cast<int64_t>(1 + Random(most_ms)));
    flying_.emplace(std::pair(due, ++order_), std::move(what));
  }
  struct Unsafe {
    int index;
    Flying flying;
  };
  void FlyUnsafely(size_t process, Unsafe what) {
    int& losses = losses_[{process, what.index}];
    if (!quiet_ && losses < kLossesInARow && Random(5) == 0) {
      ++losses;
      return;
    }
    losses = 0;
    if (!quiet_ && Random(5) == 0) Fly(5000, what.flying);
    Fly(kNoteDelayMs, std::move(what.flying));
  }

  // ---- what programs do ----

  size_t Start(uint64_t actor) {
    processes_.push_back(std::make_unique<Process>("p" + std::to_string(processes_.size())));
    processes_.back()->actor = actor;
    if (actor != 0) processes_.back()->table.SetOwn(KeyOf(actor));
    processes_.back()->head = head_;
    return processes_.size() - 1;
  }
  void Make(size_t p) {
    const auto alive = std::ranges::count_if(actors_, [](const auto& e) { return !e.second.dead; });
    if (alive >= kActorsMost) return;
    const uint64_t actor = ++last_actor_;
    At(p).creating.insert(actor);
    Fly(kMessageDelayMs, Create{head_, p, actor});
  }
  void Take(size_t p, uint64_t actor) {
    Process& process = At(p);
    if (process.actor == actor) return;  // Its own: it does not hold itself.
    process.table.AddLocal(KeyOf(actor));
    if (std::ranges::count(process.held, actor) == 0) process.since[actor] = now_;
    process.held.push_back(actor);
  }
  void Drop(size_t p) {
    Process& process = At(p);
    if (process.held.empty()) return;
    const size_t at = Random(process.held.size());
    const uint64_t actor = process.held[at];
    process.held.erase(process.held.begin() + static_cast<ptrdiff_t>(at));
    process.table.DropLocal(KeyOf(actor));
  }
  void SendHandles(size_t p, size_t q) {
    Process& process = At(p);
    if (p == q || At(q).dead) return;
    Message message{p, q, 0, {}};
    for (uint64_t i = 0; i <= Random(2) && !process.held.empty(); ++i)
      message.keys.push_back(KeyOf(process.held[Random(process.held.size())]));
    const bool own = process.actor != 0 && Random(2) == 0;
    if (own) message.keys.push_back(KeyOf(process.actor));
    if (message.keys.empty()) return;
    message.token = process.table.Pin(message.keys, Random(3) == 0 ? "" : At(q).name);
    ++result_.sent;
    result_.own += own ? 1 : 0;
    if (Random(10) == 0) return Fly(kMessageDelayMs, Over{message});
    Fly(kMessageDelayMs, message);
  }
  void Kill(size_t p) {
    if (result_.deaths >= kDeathsMost) return;
    ++result_.deaths;
    if (const auto it = actors_.find(At(p).actor); it != actors_.end())
      it->second.excused |= !At(p).table.MayLeave(holders_.Heard(it->first, At(p).name));
    End(p);
  }
  std::vector<uint64_t> Saved(const Process& process) {
    std::vector<uint64_t> saved = process.held;
    std::erase_if(saved, [&](uint64_t id) { return now_ < process.since.at(id) + kSavedAfter; });
    return saved;
  }
  void End(size_t p) {
    Process& process = At(p);
    if (std::exchange(process.dead, true)) return;
    if (const auto it = actors_.find(process.actor); it != actors_.end()) {
      if (std::exchange(it->second.ready, false)) it->second.saved = Saved(process);
      it->second.placed = false;
    }
    for (size_t other = 0; other < processes_.size(); ++other) {
      if (other != p && !At(other).dead)
        told_dead_.emplace(now_ + milliseconds(1 + Random(1000)), std::pair(other, p));
    }
    Fly(1000, Death{p});
  }
  void Event() {
    const size_t p = Random(processes_.size());
    const uint64_t what = Random(100);
    result_.hash = (result_.hash ^ what) * 1099511628211ULL;
    if (what >= 66 || At(p).dead) {
      Pass(milliseconds(static_cast<int64_t>(Random(700))));
    } else if (what < 12) {
      Make(p);
    } else if (what < 36) {
      SendHandles(p, Random(processes_.size()));
    } else if (what < 62) {
      Drop(p);
    } else if (what < 64) {
      if (Random(2) == 0) Kill(p);
    } else if (Random(2) == 0) {
      RestartHead();
    }
    Pump();
  }

  // ---- the head ----

  void RestartHead() {
    if (result_.restarts >= kHeadsMost) return;
    ++result_.restarts;
    ++head_;
    holders_ = ActorHolders();
    gone_.clear();
    for (auto& [id, actor] : actors_) {
      if (actor.dead) continue;
      holders_.Restored(id);
      actor.unheld = false;
    }
    for (const auto& [id, actor] : actors_) {
      if (!actor.dead && actor.host != 0 && (actor.waits || !actor.ready))
        holders_.Expect(HeirOf(id), now_ + kHeirsMost);
    }
    for (size_t p = 0; p < processes_.size(); ++p) {
      if (At(p).dead) continue;
      holders_.Expect(At(p).name);
      Fly(3000, NewHead{p, head_});
    }
    no_more_at_ = now_ + kGrace;
  }
  void OnCreate(const Create& create) {
    const auto [it, fresh] = actors_.try_emplace(create.actor);
    Actor& actor = it->second;
    if (fresh) {
      ++result_.actors;
      actor.lives = static_cast<int>(Random(3));
      Fly(2000, Return{create.actor, false});
    }
    if (actor.dead) return;
    if (!gone_.contains(At(create.by).name)) {
      holders_.Made(create.actor, At(create.by).name);
    } else if (fresh) {
      holders_.Made(create.actor, At(create.by).name);
      holders_.Gone(now_, At(create.by).name);
    }
    Fly(kNoteDelayMs, Created{create.by, create.actor});
  }
  void OnDeath(size_t p) {
    const Process& process = At(p);
    gone_.insert(process.name);
    const auto it = actors_.find(process.actor);
    const bool returns = it != actors_.end() && !it->second.dead && !it->second.placed &&
                         !it->second.unheld && it->second.lives > 0;
    holders_.Gone(now_, process.name, returns ? HeirOf(process.actor) : "");
    if (it == actors_.end() || it->second.dead || it->second.placed) return;
    if (!returns) return Bury(process.actor);
    --it->second.lives;
    it->second.waits = true;
    ++result_.returns;
    Fly(kBackMs, Return{process.actor, false});
  }
  void Bury(uint64_t id) {
    Actor& actor = actors_.at(id);
    actor.dead = true;
    actor.saved.clear();
    holders_.Ended(id);
    holders_.Back(now_, HeirOf(id));
  }
  void OnReturn(const Return& back) {
    Actor& actor = actors_.at(back.actor);
    if (actor.dead) return;
    if (back.ready) {
      if (!actor.placed || std::exchange(actor.ready, true)) return;
      for (const uint64_t saved : std::exchange(actor.saved, {})) {
        if (!actors_.at(saved).dead && Random(3) > 0) Take(actor.host, saved);
      }
      return holders_.Back(now_, HeirOf(back.actor));
    }
    if (actor.placed) return;
    actor.placed = true;
    actor.waits = false;
    actor.host = Start(back.actor);
    Fly(1000, Return{back.actor, true});
  }
  void LookAtUnheld() {
    for (const uint64_t id : holders_.TakeUnheld()) actors_.at(id).unheld = true;
    for (auto& [id, actor] : actors_) {
      if (actor.dead || !actor.unheld) continue;
      if (actor.waits) {
        ++result_.ended;
        CheckEnd(id);
        Bury(id);
      } else if (actor.placed && now_ >= actor.asked + seconds(2)) {
        actor.asked = now_;
        const uint64_t heard = holders_.Heard(id, At(actor.host).name);
        FlyUnsafely(actor.host, Unsafe{0, Leave{head_, id, actor.host, heard}});
      }
    }
  }
  void OnLeave(const Leave& leave) {
    Process& host = At(leave.host);
    if (host.dead || leave.head < host.head) return;  // Of the head before the one that it hears.
    if (!host.table.MayLeave(leave.heard)) {
      ++result_.refused;
      return;
    }
    CheckEnd(leave.actor);
    ++result_.ended;
    actors_.at(leave.actor).lives = 0;
    End(leave.host);
    actors_.at(leave.actor).saved.clear();
  }

  // ---- the network, and time ----

  void Pump() {
    LookAtUnheld();
    for (size_t p = 0; p < processes_.size(); ++p) {
      Process& process = At(p);
      if (process.dead) continue;
      (void)process.table.TakeFreed();
      for (auto& [to, notes] : process.table.TakeNotes(now_)) {
        if (to == kHandles) {
          FlyUnsafely(p, Unsafe{1, Notes{head_, p, std::move(notes)}});
        } else {
          between_.emplace_back(p, to, std::move(notes));
        }
      }
      if (now_ >= process.beat + kBeat) {
        process.beat = now_;
        FlyUnsafely(p, Unsafe{2, Beat{head_, p, process.creating, process.head,
                                      process.table.Told(kHandles)}});
      }
    }
    // That handles have been taken.
    for (auto& [from, to, notes] : std::exchange(between_, {})) {
      const size_t owner = std::stoul(to.substr(1));
      if (At(owner).dead) continue;
      const RefAnswers answers = At(owner).table.OnNotes(At(from).name, notes);
      At(from).table.OnAnswers(to, answers);
    }
  }
  void OnNotes(const Notes& told) {
    const Process& from = At(told.from);
    if (gone_.contains(from.name)) return;
    holders_.OnNotes(from.name, told.notes.holds);
    for (const RefNote& note : told.notes.holds) {
      const auto it = actors_.find(note.number);
      if (it != actors_.end() && holders_.Held(note.number, from.name).value_or(false))
        it->second.unheld = false;
      auto& newest = newest_[{head_, told.from, note.number}];
      newest = std::max(newest, std::pair(note.version, note.held));
      const auto held = holders_.Held(note.number, from.name);
      if (held && *held != newest.second)
        Violate("HC-3 a late note of " + from.name + " has changed what holds");
    }
    RefAnswers answers;
    for (const RefNote& note : told.notes.holds)
      answers.holds.push_back({note.number, note.version, true});
    FlyUnsafely(told.from, Unsafe{3, Answers{told.from, answers}});
  }
  void OnBeat(const Beat& beat) {
    if (gone_.contains(At(beat.from).name)) return;
    for (const uint64_t actor : beat.creating) OnCreate({head_, beat.from, actor});
    if (beat.knows == head_ && beat.told) holders_.Heard(At(beat.from).name);
  }
  void Deliver(const Message& message) {
    Process& to = At(message.to);
    if (!to.dead) {
      std::vector<RefKey> held;
      for (const RefKey& key : message.keys) {
        if (key.number != to.actor) held.push_back(key);
        Take(message.to, key.number);
      }
      to.table.Arrived(At(message.from).name, message.token, held);
    }
    Fly(kMessageDelayMs, Over{message});
  }
  void Arrive(const Flying& what) {
    if (const auto* message = std::get_if<Message>(&what)) return Deliver(*message);
    if (const auto* over = std::get_if<Over>(&what)) {
      if (!At(over->of.from).dead) At(over->of.from).table.Over(now_, over->of.token);
    } else if (const auto* create = std::get_if<Create>(&what)) {
      if (create->head == head_) OnCreate(*create);
    } else if (const auto* created = std::get_if<Created>(&what)) {
      if (!At(created->by).dead && At(created->by).creating.erase(created->actor) > 0)
        Take(created->by, created->actor);
    } else if (const auto* notes = std::get_if<Notes>(&what)) {
      if (notes->head == head_) OnNotes(*notes);
    } else if (const auto* answers = std::get_if<Answers>(&what)) {
      if (!At(answers->to).dead) At(answers->to).table.OnAnswers(kHandles, answers->answers);
    } else if (const auto* beat = std::get_if<Beat>(&what)) {
      if (beat->head == head_) OnBeat(*beat);
    } else if (const auto* fresh = std::get_if<NewHead>(&what)) {
      if (At(fresh->to).dead || At(fresh->to).head >= fresh->head) return;
      At(fresh->to).head = fresh->head;
      At(fresh->to).table.OwnerAnew(kHandles);
    } else if (const auto* death = std::get_if<Death>(&what)) {
      OnDeath(death->of);
    } else if (const auto* back = std::get_if<Return>(&what)) {
      OnReturn(*back);
    } else {
      OnLeave(std::get<Leave>(what));
    }
  }
  void Pass(Duration d) {
    now_ = now_ + d;
    while (result_.ok && !flying_.empty() && flying_.begin()->first.first <= now_) {
      const Flying next = flying_.begin()->second;
      flying_.erase(flying_.begin());
      Arrive(next);
      Pump();
    }
    while (!told_dead_.empty() && told_dead_.begin()->first <= now_) {
      const auto [told, dead] = told_dead_.begin()->second;
      told_dead_.erase(told_dead_.begin());
      if (!At(told).dead) At(told).table.PeerGone(now_, At(dead).name);
    }
    if (now_ >= no_more_at_) holders_.ExpectNoMore();
    holders_.Tick(now_);
    for (const auto& process : processes_) {
      if (!process->dead) process->table.Tick(now_);
    }
    Pump();
  }
  void PassFor(Duration whole) {
    for (const Time until = now_ + whole; now_ < until && result_.ok;) Pass(milliseconds(200));
  }

  // ---- what must hold ----

  std::string WhoReaches(uint64_t id) {
    for (const auto& process : processes_) {
      if (!process->dead && std::ranges::count(process->held, id) > 0) return process->name;
      if (!process->dead && process->creating.contains(id)) return process->name + ", its maker,";
    }
    for (const auto& [when, what] : flying_) {
      const auto* message = std::get_if<Message>(&what);
      if (message == nullptr || At(message->to).dead || At(message->to).actor == id) continue;
      if (std::ranges::count(message->keys, KeyOf(id)) > 0) return "a message";
    }
    for (const auto& [other, actor] : actors_) {
      if (!actor.dead && other != id && std::ranges::count(actor.saved, id) > 0)
        return "the state of an actor";
    }
    return "";
  }
  void CheckEnd(uint64_t id) {
    const std::string who = WhoReaches(id);
    if (!who.empty() && !actors_.at(id).excused)
      Violate("HC-1 actor " + std::to_string(id) + " ends, and " + who + " can reach it");
  }
  void CheckNothingIsLeft(const std::string& when) {
    for (const auto& [id, actor] : actors_) {
      if (result_.ok && !actor.dead && WhoReaches(id).empty())
        Violate(when + "actor " + std::to_string(id) + " lives and cannot be reached");
    }
  }

  std::mt19937_64 random_;
  HolderResult result_;
  bool quiet_ = false;
  Time now_{1'000'000'000};
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<uint64_t, Actor> actors_;
  uint64_t last_actor_ = 0;
  ActorHolders holders_;
  int head_ = 1;
  Time no_more_at_ = Time::Never();
  std::set<std::string> gone_;  // As the head knows.
  std::map<std::pair<Time, uint64_t>, Flying> flying_;
  std::multimap<Time, std::pair<size_t, size_t>> told_dead_;
  std::vector<std::tuple<size_t, std::string, RefNotes>> between_;
  uint64_t order_ = 0;
  std::map<std::pair<size_t, int>, int> losses_;
  std::map<std::tuple<int, size_t, uint64_t>, std::pair<uint64_t, bool>> newest_;
};

}  // namespace

HolderResult RunHolderSimulation(uint64_t seed, int events) { return HolderSim(seed).Run(events); }

}  // namespace troupe::actors::sim
