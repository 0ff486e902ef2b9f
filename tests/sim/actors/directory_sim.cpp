// The directory, with requests, news and ticks in any order, each perhaps twice, and a head that is
// restarted from what it was told to keep.
#include <map>
#include <random>
#include <set>

#include "actors/core/directory.h"
#include "tests/sim/actors/actor_sim.h"

namespace troupe::actors::sim {
namespace {

class DirectorySim {
 public:
  explicit DirectorySim(const SimOptions& options) : options_(options), random_(options.seed) {}

  SimResult Run() {
    for (int i = 0; i < options_.events && result_.ok; ++i) {
      Event();
      Check();
    }
    return result_;
  }

 private:
  struct Model {
    ActorSpec spec;
    std::string name;  // Its own still.
    uint64_t incarnation = 1;
    int deaths = 0;
    bool dead = false;
    bool unheld = false;
    uint64_t last_life = 0;  // While it is.
  };
  struct Kept {
    ActorSpec spec;
    ActorLife life;
  };

  uint64_t Random(uint64_t n) { return random_() % n; }
  bool Is(Sabotage sabotage) const { return options_.sabotage == sabotage; }
  void Violate(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }

  // Does what the directory wants done.
  void Do() {
    for (const DirectoryAction& action : std::exchange(actions_, {})) {
      result_.hash = (result_.hash ^ action.index()) * 1099511628211ULL;
      if (const auto* want = std::get_if<WantPlace>(&action)) {
        if (!wanted_.emplace(want->actor, want->incarnation).second)
          Violate("DR-1 " + want->actor + " wants a place twice in one life");
      } else if (const auto* keep = std::get_if<KeepActor>(&action)) {
        const PlacedActor* actor = directory_.Find(keep->actor);
        if (actor == nullptr || actor->dead()) continue;
        Kept& kept = kept_[keep->actor];
        if (keep->spec) kept.spec = actor->spec;
        kept.life = actor->life;
      } else if (const auto* forget = std::get_if<ForgetActor>(&action)) {
        if (!Is(Sabotage::kRaiseDead)) kept_.erase(forget->actor);
      }
    }
  }

  void Create() {
    ActorSpec spec;
    spec.actor = "a" + std::to_string(next_++);
    spec.type = "T";
    spec.owner = "driver/" + std::to_string(driver_);
    if (Random(3) == 0 && !models_.empty()) spec.owner = "actor/" + Any();
    spec.detached = Random(6) == 0;
    if (Random(2) == 0) spec.name = "n" + std::to_string(Random(3));
    spec.get_if_exists = Random(2) == 0;
    spec.max_restarts = static_cast<int32_t>(Random(5)) - 1;
    ActorSpec told = spec;
    if (Is(Sabotage::kForgetName)) told.name.clear();
    if (Is(Sabotage::kForgetOwner)) told.owner = "driver/other";
    if (Is(Sabotage::kMoreRestarts) && told.max_restarts >= 0) ++told.max_restarts;
    const Result<ActorAddress> made = directory_.Create(now_, told, actions_);
    if (!made.ok() || made->actor != spec.actor) return Do();
    models_[spec.actor].spec = spec;
    models_[spec.actor].name = spec.name;
    Do();
    Twice([&] { (void)directory_.Create(now_, told, actions_); });
  }
  [[nodiscard]] std::string Any() {
    auto it = models_.begin();
    std::advance(it, static_cast<ptrdiff_t>(Random(models_.size())));
    return it->first;
  }
  [[nodiscard]] std::string Seen() const {
    std::string text;
    for (const auto& [id, model] : models_) {
      const PlacedActor* actor = directory_.Find(id);
      if (actor == nullptr) continue;
      text += id + ":" + ActorStateName(actor->life.state) + "#" +
              std::to_string(actor->life.incarnation) + "/" + std::to_string(actor->life.restarts) +
              " ";
    }
    return text;
  }
  // What is asked for, or told, again changes nothing.
  template <class F>
  void Twice(F&& again) {
    if (Random(2) == 0) return;
    const std::string before = Seen();
    again();
    Do();
    if (Seen() != before) Violate("DR-6 a repeat has changed " + before + "to " + Seen());
  }
  // Of a life that is over, or has not begun.
  template <class F>
  void OldNews(uint64_t incarnation, F&& tell) {
    const std::string before = Seen();
    tell(Is(Sabotage::kOldIncarnation) ? incarnation : incarnation - 1);
    tell(incarnation + 1);
    Do();
    if (Seen() != before) Violate("DR-1 news of another life has changed " + before);
  }
  void Die(const std::string& id, bool constructor) {
    const PlacedActor* actor = directory_.Find(id);
    if (actor == nullptr) return;
    const ActorState state = actor->life.state;
    const uint64_t life = actor->life.incarnation;
    const auto tell = [&](uint64_t incarnation) {
      directory_.Died(now_, id, incarnation, {ErrorCode::kPeerGone, "died"}, constructor, actions_);
    };
    OldNews(life, tell);
    if (state == ActorState::kStarting || state == ActorState::kAlive) ++models_[id].deaths;
    tell(life);
    Do();
    ++result_.deaths;
    Twice([&] { tell(life); });
  }
  void Restart() {  // Of the head.
    directory_ = Directory();
    wanted_.clear();
    for (const auto& [id, kept] : kept_) {
      ActorLife life = kept.life;
      directory_.Restore(now_, kept.spec, life);
    }
    CountLate();
    directory_.Tick(now_, actions_);  // As the head does, before anything else.
    Do();
    for (auto& [id, model] : models_) model.unheld = false;  // It does not know that any more.
    for (auto& [id, model] : models_) {
      const bool kept = kept_.contains(id);
      if (!kept && !model.dead) Violate("DR-3 " + id + " lives and is not kept");
    }
  }
  void Link() {
    const std::string one = Any();
    const std::string other = Any();
    const auto alive = [this](const std::string& id) {
      const PlacedActor* actor = directory_.Find(id);
      return actor != nullptr && !actor->dead();
    };
    const bool can = one != other && alive(one) && alive(other);
    if (directory_.Link(one, other, actions_).ok() != can) Violate("DR-7 " + one + "-" + other);
    if (!can) return;
    links_.insert(std::minmax(one, other));
    if (Is(Sabotage::kForgetLink)) (void)directory_.Unlink(one, other, actions_);
    if (actions_.size() == 2 && Random(4) == 0) {  // The head dies between the two records.
      actions_.pop_back();
      Do();
      return Restart();
    }
    Do();
    Twice([&] { (void)directory_.Link(other, one, actions_); });
    if (Random(4) > 0) return;
    links_.erase(std::minmax(one, other));
    (void)directory_.Unlink(other, one, actions_);
    Do();
  }
  void Event() {
    const uint64_t what = Random(100);
    if (!models_.empty() && Random(25) == 0) return Link();
    if (!models_.empty() && Random(12) == 0) return Hold(Any());
    if (models_.empty() || what < 18) return Create();
    const std::string id = Any();
    const PlacedActor* actor = directory_.Find(id);
    const uint64_t life = actor == nullptr ? 1 : actor->life.incarnation;
    if (what < 40) {
      const auto tell = [&](uint64_t i) {
        directory_.Placed(now_, id, i, "n" + std::to_string(Random(2)), "p" + id, actions_);
      };
      OldNews(life, tell);
      tell(life);
      Do();
      Twice([&] { tell(life); });
    } else if (what < 60) {
      const auto tell = [&](uint64_t i) { directory_.Ready(now_, id, i, {}, actions_); };
      OldNews(life, tell);
      tell(life);
      Do();
      Twice([&] { tell(life); });
    } else if (what < 75) {
      Die(id, Random(6) == 0);
    } else if (what < 79) {
      const auto tell = [&](uint64_t i) {
        directory_.Exited(now_, id, i, {ErrorCode::kPeerGone, "left"}, actions_);
      };
      OldNews(life, tell);
      if (Random(2) == 0) tell(life);
      Do();
    } else if (what < 81) {
      (void)directory_.Kill(now_, id, false, "killed", "", actions_);
      Do();
      Twice([&] { (void)directory_.Kill(now_, id, false, "killed", "", actions_); });
    } else if (what < 87) {
      AskRestart(id);
    } else if (what < 89) {
      directory_.OwnerGone(now_, "driver/" + std::to_string(driver_), "gone", actions_);
      gone_.insert("driver/" + std::to_string(driver_++));
      Do();
    } else if (what < 92) {
      directory_.Drain(now_, "n" + std::to_string(Random(2)), "notice", actions_);
      Do();
    } else if (what < 94) {
      Restart();
    } else {
      now_ = now_ + milliseconds(static_cast<int64_t>(Random(20'000)));
      CountLate();
      directory_.Tick(now_, actions_);
      Do();
    }
  }
  // Nobody refers to it any more, or somebody does again.
  void Hold(const std::string& id) {
    Model& model = models_[id];
    if (model.unheld && Random(2) == 0) {
      model.unheld = false;
      directory_.Held(id, actions_);
      Do();
      if (!model.dead) model.name = directory_.Find(id)->spec.name;
      return Twice([&] { directory_.Held(id, actions_); });
    }
    directory_.Unheld(now_, id, actions_);
    Do();
    const PlacedActor* actor = directory_.Find(id);
    if (actor == nullptr || actor->dead()) return;
    model.name.clear();
    if (!std::exchange(model.unheld, true)) model.last_life = actor->life.incarnation;
    Twice([&] { directory_.Unheld(now_, id, actions_); });
  }
  void AskRestart(const std::string& id) {
    const std::string request = "driver#" + std::to_string(++requests_);
    const PlacedActor* actor = directory_.Find(id);
    const bool counts = actor != nullptr && (actor->life.state == ActorState::kStarting ||
                                             actor->life.state == ActorState::kAlive);
    if (counts) ++models_[id].deaths;
    (void)directory_.Kill(now_, id, true, "restart", request, actions_);
    Do();
    // Its next life has begun when the repeat comes.
    const PlacedActor* next = directory_.Find(id);
    if (next == nullptr || next->dead()) return;
    directory_.Tick(now_, actions_);
    directory_.Placed(now_, id, next->life.incarnation, "n0", "p" + id, actions_);
    Do();
    const std::string repeat = Is(Sabotage::kRestartTwice) ? request + "?" : request;
    Twice([&] { (void)directory_.Kill(now_, id, true, "restart", repeat, actions_); });
  }
  // Those that did not start in time die of it.
  void CountLate() {
    for (auto& [id, model] : models_) {
      const PlacedActor* actor = directory_.Find(id);
      if (actor != nullptr && actor->life.state == ActorState::kStarting && actor->wake <= now_)
        ++model.deaths;
    }
  }

  void Check() {
    std::map<std::string, std::string> names;
    for (auto& [id, model] : models_) {
      const PlacedActor* actor = directory_.Find(id);
      const bool dead = actor == nullptr || actor->dead();
      if (model.dead && !dead) Violate("DR-3 " + id + " is back from the dead");
      model.dead = dead;
      if (dead) continue;
      if (actor->life.incarnation < model.incarnation) Violate("DR-1 " + id + " has grown younger");
      model.incarnation = actor->life.incarnation;
      const int32_t most = model.spec.max_restarts;
      if (most >= 0 && model.deaths > most) Violate("DR-4 " + id + " has died too often to live");
      if (model.unheld && actor->life.incarnation != model.last_life)
        Violate("DR-8 " + id + " is started again, and nobody refers to it");
      if (model.unheld && directory_.Named(model.spec.name) == actor)
        Violate("DR-8 the name of " + id + " is not free");
      const std::string& name = model.name;
      if (!name.empty() && !names.emplace(name, id).second)
        Violate("DR-2 " + id + " and " + names[name] + " have one name");
    }
    for (const auto& [id, model] : models_) {
      if (model.dead || model.spec.detached) continue;
      const std::string& owner = model.spec.owner;
      const auto other =
          owner.starts_with("actor/") ? models_.find(owner.substr(6)) : models_.end();
      if (gone_.contains(owner) || (other != models_.end() && other->second.dead))
        Violate("DR-5 " + id + " has outlived " + owner);
    }
    CheckLinks();
  }

  void CheckLinks() {
    for (const auto& [one, other] : links_) {
      if (models_[one].dead != models_[other].dead)
        Violate("DR-7 of " + one + " and " + other + " one lives");
    }
  }

  const SimOptions options_;
  std::mt19937_64 random_;
  SimResult result_;
  Time now_{1'000'000'000};
  Directory directory_;
  DirectoryActions actions_;
  std::map<std::string, Model> models_;
  std::map<std::string, Kept> kept_;
  std::set<std::pair<std::string, uint64_t>> wanted_;
  std::set<std::string> gone_;
  std::set<std::pair<std::string, std::string>> links_;
  int next_ = 0;
  int driver_ = 0;
  int requests_ = 0;
};

}  // namespace

SimResult RunDirectorySimulation(const SimOptions& options) { return DirectorySim(options).Run(); }

}  // namespace troupe::actors::sim
