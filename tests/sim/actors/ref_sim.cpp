#include "tests/sim/actors/ref_sim.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <variant>
#include <vector>

#include "actors/core/ref_table.h"

namespace troupe::actors::sim {
namespace {

constexpr int kProcesses = 5;
constexpr int kDeathsMost = 2;
// A note arrives at the third attempt at the latest, so within 2 x kRefRepeat + kNoteDelay.
constexpr int kLossesInARow = 1;
constexpr uint64_t kNoteDelayMs = 300;
constexpr uint64_t kMessageDelayMs = 800;

class RefSim {
 public:
  explicit RefSim(uint64_t seed) : random_(seed), refuses_(Random(2) == 0) {
    for (int i = 0; i < kProcesses; ++i) processes_.emplace_back(NameOf(i));
  }

  RefResult Run(int events) {
    for (int i = 0; i < events && result_.ok; ++i) {
      Event();
      CheckReachable();
    }
    quiet_ = true;
    // Only what has never arrived is kept for long when its receiver is known.
    PassFor((refuses_ ? kRefUnclaimed : kRefSettle) + seconds(20));
    CheckNothingIsLeft("RF-2 after all has settled ");
    for (int p = 0; p < kProcesses && result_.ok; ++p) DropAll(p);
    PassFor(kRefUnclaimed + seconds(20));
    for (const Process& process : processes_) {
      if (process.dead || !result_.ok) continue;
      if (!process.table.settled() || process.table.imports() > 0)
        Violate("RF-2 " + process.name + " keeps something when nobody holds anything");
    }
    return result_;
  }

 private:
  struct Process {
    explicit Process(std::string called) : name(std::move(called)), table(name) {}
    std::string name;
    RefTable table;
    bool dead = false;
    std::vector<RefKey> held;  // Refs that have come from somewhere.
    std::set<int> own;         // Objects that it refers to itself.
  };
  struct Object {
    int owner = 0;
    uint64_t number = 0;  // While others may know of it.
    std::vector<RefKey> contents;
  };
  struct Message {
    int from;
    int to;
    uint64_t token;
    std::vector<RefKey> keys;
    bool retries;
  };
  struct Notes {
    int from;
    int to;
    RefNotes notes;
  };
  struct Answers {
    int from;
    int to;
    RefAnswers answers;
  };
  struct Death {
    int dead;
    int told;
  };
  struct Over {
    Message of;
  };
  using Flying = std::variant<Message, Notes, Answers, Death, Over>;

  static std::string NameOf(int process) { return "p" + std::to_string(process); }
  static int IndexOf(const std::string& name) { return name[1] - '0'; }
  Process& At(int index) { return processes_[static_cast<size_t>(index)]; }
  Process& OwnerOf(const RefKey& key) { return At(IndexOf(key.owner)); }
  uint64_t Random(uint64_t n) { return random_() % n; }
  void Violate(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }
  void Fly(uint64_t most_ms, Flying what) {
    const Time due = now_ + milliseconds(static_cast<int64_t>(1 + Random(most_ms)));
    flying_.emplace(std::pair(due, ++order_), std::move(what));
  }
  // Not lost, twice or late too often in a row, since who has died must be waited for no longer
  // than kRefSettle.
  template <class T>
  void FlyUnsafely(T what) {
    int& losses = losses_[{what.from, what.to}];
    if (!quiet_ && losses < kLossesInARow && Random(5) == 0) {
      ++losses;
      return;
    }
    losses = 0;
    if (!quiet_ && Random(5) == 0) Fly(5000, what);
    Fly(kNoteDelayMs, std::move(what));
  }

  // ---- what programs do ----

  // What a process can send or put into a value: refs that it holds, and its own.
  std::vector<RefKey> Pick(Process& process, uint64_t most) {
    std::vector<RefKey> keys;
    for (uint64_t i = 0; i < most; ++i) {
      const uint64_t count = process.held.size() + process.own.size();
      if (count == 0) break;
      const uint64_t at = Random(count);
      if (at < process.held.size()) {
        keys.push_back(process.held[at]);
        if (keys.back().owner == process.name) (void)process.table.Publish(keys.back().number);
        continue;
      }
      auto own = process.own.begin();
      std::advance(own, static_cast<ptrdiff_t>(at - process.held.size()));
      keys.push_back({process.name, PublishOwn(*own)});
    }
    return keys;
  }
  uint64_t PublishOwn(int id) {
    Object& object = objects_[static_cast<size_t>(id)];
    object.number = At(object.owner).table.Publish(object.number);
    ids_[{NameOf(object.owner), object.number}] = id;
    return object.number;
  }
  void Create(int p) {
    Process& process = At(p);
    Object object;
    object.owner = p;
    object.contents = Pick(process, Random(3));
    for (const RefKey& key : object.contents) {
      if (key.owner != process.name) process.table.AddLocal(key);
    }
    process.own.insert(static_cast<int>(objects_.size()));
    objects_.push_back(std::move(object));
    ++result_.objects;
  }
  void SendRefs(int p, int q) {
    Process& process = At(p);
    Message message{p, q, 0, Pick(process, 1 + Random(3)), Random(3) == 0};
    if (message.keys.empty()) return;
    message.token = process.table.Pin(message.keys, message.retries ? "" : NameOf(q));
    for (const RefKey& key : message.keys) {
      if (key.owner == process.name) process.table.Pickled(key.number);
    }
    ++result_.sent;
    if (refuses_ && Random(10) == 0) return Fly(kMessageDelayMs, Over{message});  // On its way.
    Fly(kMessageDelayMs, message);
  }
  void Deliver(const Message& message) {
    Process& to = At(message.to);
    if (!to.dead) {
      for (const RefKey& key : message.keys) {
        to.table.AddLocal(key);
        to.held.push_back(key);
      }
      to.table.Arrived(NameOf(message.from), message.token, message.keys);
    }
    Fly(kMessageDelayMs, Over{message});
  }
  // The call that a message was for is over, or is made again elsewhere.
  void End(const Over& over) {
    Process& from = At(over.of.from);
    if (from.dead) return;
    if (At(over.of.to).dead && over.of.retries) {
      Message again = over.of;
      again.retries = false;
      again.to = static_cast<int>(Random(kProcesses));
      if (again.to != again.from) return Fly(kMessageDelayMs, again);
    }
    from.table.Over(now_, over.of.token, NameOf(over.of.to));
  }
  void Read(int p) {
    Process& process = At(p);
    if (process.held.empty()) return;
    const RefKey outer = process.held[Random(process.held.size())];
    if (OwnerOf(outer).dead || process.table.Lost(outer)) return;
    const std::vector<RefKey> contents = objects_[static_cast<size_t>(ids_.at(outer))].contents;
    for (const RefKey& key : contents) {
      process.table.AddLocal(key);
      process.held.push_back(key);
    }
    process.table.Opened(outer, contents);
    result_.reads += contents.empty() ? 0 : 1;
  }
  void DropOne(int p) {
    Process& process = At(p);
    if (process.held.empty()) return;
    const size_t at = Random(process.held.size());
    const RefKey key = process.held[at];
    process.held.erase(process.held.begin() + static_cast<ptrdiff_t>(at));
    process.table.DropLocal(key);
  }
  void DropOwn(int p) {
    Process& process = At(p);
    if (process.own.empty()) return;
    auto it = process.own.begin();
    std::advance(it, static_cast<ptrdiff_t>(Random(process.own.size())));
    const int id = *it;
    process.own.erase(it);
    if (objects_[static_cast<size_t>(id)].number == 0) DropContents(id);
  }
  void DropAll(int p) {
    while (!At(p).dead && !At(p).held.empty()) DropOne(p);
    while (!At(p).dead && !At(p).own.empty()) DropOwn(p);
  }
  void DropContents(int id) {
    Object& object = objects_[static_cast<size_t>(id)];
    Process& owner = At(object.owner);
    for (const RefKey& key : std::exchange(object.contents, {})) {
      if (key.owner == owner.name) {
        owner.table.Pickled(key.number);
      } else {
        owner.table.DropLocal(key);
      }
    }
  }
  void Kill(int p) {
    if (result_.deaths == kDeathsMost) return;
    ++result_.deaths;
    At(p).dead = true;
    for (int other = 0; other < kProcesses; ++other) {
      const bool borrows = !At(other).dead && std::ranges::any_of(At(other).held, [&](auto& key) {
        return key.owner == NameOf(p);
      });
      result_.lost += borrows ? 1 : 0;
      if (other != p) Fly(1000, Death{p, other});
    }
  }
  void Event() {
    const int p = static_cast<int>(Random(kProcesses));
    const uint64_t what = Random(100);
    result_.hash = (result_.hash ^ what) * 1099511628211ULL;
    const int q = static_cast<int>(Random(kProcesses));
    if (what >= 70 || At(p).dead) {
      Pass(milliseconds(static_cast<int64_t>(Random(700))));
    } else if (what < 14) {
      Create(p);
    } else if (what < 32) {
      if (p != q) SendRefs(p, q);
    } else if (what < 42) {
      Read(p);
    } else if (what < 58) {
      DropOne(p);
    } else if (what < 69) {
      DropOwn(p);
    } else if (Random(3) == 0) {
      Kill(p);
    }
    Pump();
  }

  // ---- the network, and time ----

  void Pump() {
    for (int p = 0; p < kProcesses; ++p) {
      Process& process = At(p);
      if (process.dead) continue;
      for (bool more = true; more;) {
        const std::vector<uint64_t> freed = process.table.TakeFreed();
        more = !freed.empty();
        for (const uint64_t number : freed) {
          const auto known = ids_.find({process.name, number});
          if (known == ids_.end()) continue;  // A token.
          const int id = known->second;
          objects_[static_cast<size_t>(id)].number = 0;
          ++result_.freed;
          if (!process.own.contains(id)) DropContents(id);
        }
      }
      for (auto& [to, notes] : process.table.TakeNotes(now_))
        FlyUnsafely(Notes{p, IndexOf(to), std::move(notes)});
    }
  }
  void Arrive(const Flying& what) {
    if (const auto* message = std::get_if<Message>(&what)) return Deliver(*message);
    if (const auto* over = std::get_if<Over>(&what)) return End(*over);
    if (const auto* death = std::get_if<Death>(&what)) {
      if (!At(death->told).dead) At(death->told).table.PeerGone(now_, NameOf(death->dead));
      return;
    }
    if (const auto* notes = std::get_if<Notes>(&what)) {
      if (At(notes->to).dead) return;
      RefAnswers answers = At(notes->to).table.OnNotes(NameOf(notes->from), notes->notes);
      CheckNewest(*notes);
      return FlyUnsafely(Answers{notes->to, notes->from, std::move(answers)});
    }
    const auto& answers = std::get<Answers>(what);
    if (!At(answers.to).dead) At(answers.to).table.OnAnswers(NameOf(answers.from), answers.answers);
  }
  void Pass(Duration d) {
    now_ = now_ + d;
    while (result_.ok && !flying_.empty() && flying_.begin()->first.first <= now_) {
      const Flying next = flying_.begin()->second;
      flying_.erase(flying_.begin());
      Arrive(next);
      Pump();
      CheckReachable();
    }
    for (Process& process : processes_) {
      if (!process.dead) process.table.Tick(now_);
    }
    Pump();
  }
  void PassFor(Duration whole) {
    for (const Time until = now_ + whole; now_ < until && result_.ok;) Pass(milliseconds(200));
  }

  // ---- what must hold ----

  // RF-3: of the notes of one process on one object the newest counts.
  void CheckNewest(const Notes& told) {
    if (At(told.from).dead) return;  // Its last words may count or not.
    for (const RefNote& note : told.notes.holds) {
      auto& newest = newest_[{told.from, told.to, note.number}];
      newest = std::max(newest, std::pair(note.version, note.held));
      const auto borrowed = At(told.to).table.Borrowed(note.number, NameOf(told.from));
      if (borrowed && *borrowed != newest.second)
        Violate("RF-3 a late note of " + NameOf(told.from) + " has changed what holds");
    }
  }
  // What somebody can reach, of owners that live.
  std::set<RefKey> Reachable() {
    std::set<RefKey> keys;
    for (const Process& process : processes_) {
      if (!process.dead) keys.insert(process.held.begin(), process.held.end());
    }
    for (const auto& [when, what] : flying_) {
      const auto* message = std::get_if<Message>(&what);
      if (message != nullptr && !At(message->to).dead)
        keys.insert(message->keys.begin(), message->keys.end());
    }
    for (size_t i = 0; i < objects_.size(); ++i) {
      const Object& object = objects_[i];
      const Process& owner = At(object.owner);
      if (!owner.dead && (object.number != 0 || owner.own.contains(static_cast<int>(i))))
        keys.insert(object.contents.begin(), object.contents.end());
    }
    std::erase_if(keys, [this](const RefKey& key) { return OwnerOf(key).dead; });
    return keys;
  }
  void CheckReachable() {
    for (const RefKey& key : Reachable()) {
      if (OwnerOf(key).table.Lost(key))
        return Violate("RF-1 " + key.owner + "#" + std::to_string(key.number) +
                       " is freed and can be reached");
    }
    for (const Process& process : processes_) {
      for (const RefKey& key : process.held) {
        if (!process.dead && !OwnerOf(key).dead && process.table.Lost(key))
          return Violate("RF-4 " + process.name + " has lost what " + key.owner + " has");
      }
    }
  }
  void CheckNothingIsLeft(const std::string& when) {
    const std::set<RefKey> reachable = Reachable();
    for (const auto& [key, id] : ids_) {
      if (!OwnerOf(key).dead && !OwnerOf(key).table.Lost(key) && !reachable.contains(key))
        return Violate(when + key.owner + "#" + std::to_string(key.number) +
                       " is kept and cannot be reached");
    }
    for (const Process& process : processes_) {
      for (const RefKey& key : process.held) {
        if (!process.dead && OwnerOf(key).dead && !process.table.Lost(key))
          return Violate("RF-4 " + process.name + " does not know that " + key.owner + " is gone");
      }
    }
  }

  std::mt19937_64 random_;
  const bool refuses_;  // Some calls are.
  RefResult result_;
  bool quiet_ = false;
  Time now_{1'000'000'000};
  std::vector<Process> processes_;
  std::vector<Object> objects_;
  std::map<RefKey, int> ids_;
  std::map<std::pair<Time, uint64_t>, Flying> flying_;
  uint64_t order_ = 0;
  std::map<std::pair<int, int>, int> losses_;
  std::map<std::tuple<int, int, uint64_t>, std::pair<uint64_t, bool>> newest_;
};

}  // namespace

RefResult RunRefSimulation(uint64_t seed, int events) { return RefSim(seed).Run(events); }

}  // namespace troupe::actors::sim
