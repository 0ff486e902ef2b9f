#include "tests/sim/cluster/cluster_sim.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "tests/sim/cluster/sim_actors.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_driver.h"
#include "tests/sim/cluster/sim_head.h"
#include "tests/sim/cluster/sim_node.h"
#include "tests/sim/cluster/sim_training.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kStepMax = milliseconds(50);
constexpr Duration kEndLimit = seconds(60);      // From the last step to the end of the run.
constexpr Duration kCleanLimit = seconds(20);    // From there until no process of it is left,
constexpr Duration kForgetLimit = seconds(330);  // and no key.
constexpr Duration kStays = seconds(1);          // What has settled.
constexpr Duration kStoreHarm = seconds(4);      // The head takes so long to notice and to refill.
// What the keys of a head begin with: all that it keeps.
constexpr const char* kAllKeys[] = {"actor/", "actor_group/", "actor_state/",
                                    "group/", "head/",        "job/"};
constexpr Duration kUndisturbed = seconds(12);  // From the last cut or stop: leases are over.

std::string HostName(size_t host) { return "host-n" + std::to_string(host); }

// For people.
std::string NameOf(const SimWorker& worker) {
  if (worker.member() != nullptr) return " " + worker.member()->id().ToString();
  return worker.actor().empty() ? " a spare" : " " + worker.actor();
}

}  // namespace

World::World(const ClusterOptions& options) : options_(options), network_(options.seed) {
  const auto group = [this](const char* name, uint32_t fixed) {
    trainings_[name] =
        std::make_unique<SimTraining>(this, actors::CollectiveGroupName(name), fixed);
  };
  trainings_[kRun] = std::make_unique<SimTraining>(this, kRun);
  group(kGroupName, 0);
  group(kRingName, options.ring == Ring::kFixed ? options.actors : 0);
  group(kPairName, options.pair == Ring::kFixed ? options.actors : 0);
  random_.seed(options.seed * 7919);
  network_.SetFaults({0, 0, microseconds(30), milliseconds(1), true});
  own_ = network_.MakeTransport("world");
}

World::~World() {
  driver_.reset();
  actors_.reset();
  nodes_.clear();
  dead_nodes_.clear();
  dead_.clear();
  head_.reset();
  dead_heads_.clear();
}

std::string World::NewId() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random_()));
  return text;
}

void World::Fail(const std::string& what) {
  if (result_.ok) {
    result_.violation = what + " (at " + std::to_string(ToSeconds(Now() - Time{})) + " s)";
    Tell("VIOLATION: ", what);
  }
  result_.ok = false;
}

void World::Print(const std::string& what) {
  std::printf("%9.4f %s\n", ToSeconds(Now() - Time{}), what.c_str());
  (void)std::fflush(stdout);  // In order with the log.
}

// ---- network ----

void World::Forget(SimPort* port) {
  const auto it = ports_.find(port->self());
  if (it != ports_.end() && it->second == port) ports_.erase(it);
}

bool World::IsCut(const std::string& host, const std::string& to) const {
  const auto it = ports_.find(to);
  return it != ports_.end() && AreCut(host, it->second->host());
}

void World::HoldOrLose(SimPort* port, const std::string& to, std::string frame) {
  if (cut_holds_) late_.push_back({port->self(), port->life(), to, std::move(frame)});
}

// What a head that has ended since has sent comes over a connection of its own: before or after
// what the next one sends.
void World::SendLate(Late late) {
  const auto port = ports_.find(late.from);
  if (port == ports_.end()) return;
  if (port->second->life() == late.life) return port->second->SendLate(late.to, late.frame);
  loop().CallAfter(Between(Duration::zero(), milliseconds(20)), [this, late = std::move(late)] {
    const auto now = ports_.find(late.from);
    if (now != ports_.end()) now->second->SendLate(late.to, late.frame);
  });
}

void World::Cut() {
  const std::string host = HostName(random_() % static_cast<size_t>(options_.hosts));
  if (std::ranges::any_of(cut_, [&](const auto& pair) { return pair.first == host; })) return;
  ++result_.cuts;
  cut_holds_ = Uniform() < 0.5;
  const bool all = Uniform() < 0.5;
  cut_.insert({host, kHeadHost});
  for (int other = 0; all && other < options_.hosts; ++other) {
    const std::string name = HostName(static_cast<size_t>(other));
    if (name != host) cut_.insert({host, name});
  }
  Tell("cut: ", host, all ? " from all" : " from the head", cut_holds_ ? ", frames wait" : "");
  loop().CallAfter(Between(milliseconds(100), Uniform() < 0.5 ? seconds(3) : seconds(12)),
                   [this, host] { Mend(host); });
}

void World::Mend(const std::string& host) {
  if (std::erase_if(cut_, [&](const auto& pair) { return pair.first == host; }) == 0) return;
  Tell("mended: ", host);
  disturbed_ = Now();
  for (Late& late : std::exchange(late_, {})) {
    const auto port = ports_.find(late.from);
    if (port == ports_.end()) continue;
    if (IsCut(port->second->host(), late.to)) {
      late_.push_back(std::move(late));
    } else {
      SendLate(std::move(late));
    }
  }
  RetrySteps();
}

void World::RetrySteps() {
  for (const auto& [name, training] : trainings_) training->RetrySteps();
}

// ---- processes ----

void World::StartHead() {
  if (head_) return;
  Tell("a head starts");
  store_.SetAvailable(true);
  head_ = std::make_unique<SimHead>(this);
}

void World::HeadDies(bool between_writes) {
  if (!head_) return;
  Tell("the head dies", between_writes ? " between two writes" : "");
  ++result_.heads_killed;
  result_.between_writes += between_writes ? 1 : 0;
  head_->Die();
  dead_heads_.push_back(std::move(head_));
  loop().CallAfter(Between(milliseconds(20), Uniform() < 0.8 ? milliseconds(500) : seconds(4)),
                   [this] { StartHead(); });
}

void World::StartNode(size_t host, bool same_run_dir) {
  if (nodes_.contains(host)) return;
  // The time of day goes on; without the run directory nothing else is known.
  const auto time = static_cast<uint64_t>(Now().ns);
  uint64_t& known = incarnations_[host];
  const uint64_t incarnation = same_run_dir ? std::max(time, known + 1) : time;
  known = incarnation;
  const auto extra = static_cast<double>(options_.seed % 3);
  const double cpus =
      std::ceil(static_cast<double>(options_.max_workers + options_.actors + options_.group +
                                    (options_.bundles > 0 ? 1 : 0)) /
                options_.hosts) +
      extra;
  nodes_[host] = std::make_unique<SimNode>(this, "n" + std::to_string(host), incarnation, cpus);
  Tell("node n", host, " starts");
}

void World::NodeDies(SimNode& node) {
  node.Die();
  for (auto it = nodes_.begin(); it != nodes_.end(); ++it) {
    if (it->second.get() != &node) continue;
    const size_t host = it->first;
    dead_nodes_.push_back(std::move(it->second));
    nodes_.erase(it);
    const bool same_run_dir = Uniform() < 0.5;
    loop().CallAfter(Between(milliseconds(100), Uniform() < 0.5 ? seconds(2) : seconds(9)),
                     [this, host, same_run_dir] { StartNode(host, same_run_dir); });
    return;
  }
}

void World::Bury(std::unique_ptr<SimWorker> worker) { dead_.push_back(std::move(worker)); }

std::vector<SimWorker*> World::Workers() const {
  std::vector<SimWorker*> all;
  for (const auto& [host, node] : nodes_) {
    for (SimWorker* worker : node->workers()) all.push_back(worker);
  }
  return all;
}

const SimNode* World::FindNode(const std::string& id) const {
  for (const auto& [host, node] : nodes_)
    if (node->id() == id) return node.get();
  return nullptr;
}

// ---- training ----

std::vector<SimTraining*> World::TrainingsOf(const std::string& actor) const {
  if (!actor.starts_with(kActorPrefix)) return {trainings_.at(kGroupName).get()};
  std::vector<SimTraining*> all;
  if (options_.ring != Ring::kNone) all.push_back(trainings_.at(kRingName).get());
  if (options_.pair != Ring::kNone) all.push_back(trainings_.at(kPairName).get());
  return all;
}

bool World::Disturbed() const { return Now() < disturbed_ + kUndisturbed || !cut_.empty(); }

void World::CountSteps(ClusterResult& result) const {
  const SimTraining& run = *trainings_.at(kRun);
  result.epochs = run.newest();
  result.steps = run.steps();
  result.lost = run.lost();
  result.group_steps = trainings_.at(kGroupName)->steps();
  result.ring_steps = trainings_.at(kRingName)->steps() + trainings_.at(kPairName)->steps();
}

void World::OnDone(const std::string& state, const std::string& reason) {
  const bool ends = !chaos_ && (options_.ending != Ending::kReturns || state == "succeeded");
  if (!ends) Fail("the run has " + state + ": " + reason);
}

// ---- faults ----

void World::Chaos() {
  if (!chaos_) return;
  Disturb(Uniform());
  loop().CallAfter(Between(milliseconds(20), milliseconds(1500)), [this] { Chaos(); });
}

void World::Disturb(double dice) {
  if (dice < 0.30) {
    KillSomeWorker();
  } else if (dice < 0.40) {
    const std::vector<SimWorker*> all = Workers();
    if (all.empty()) return;
    SimWorker* worker = all[random_() % all.size()];
    ++result_.stops;
    disturbed_ = Now();
    Tell("stopped: ", worker->process(), NameOf(*worker));
    worker->Freeze(true);
    const std::string process = worker->process();
    loop().CallAfter(Between(milliseconds(10), Uniform() < 0.7 ? seconds(1) : seconds(4)),
                     [this, process] {
                       disturbed_ = Now();
                       for (SimWorker* one : Workers())
                         if (one->process() == process) one->Freeze(false);
                     });
  } else if (dice < 0.52) {
    DisturbNode();
  } else if (dice < 0.67) {
    DisturbHead();
  } else if (dice < 0.74) {
    Cut();
  } else if (dice < 0.80) {
    DisturbStore();
  } else {
    Ask();
  }
}

void World::KillSomeWorker() {
  const std::vector<SimWorker*> all = Workers();
  if (all.empty()) return;
  SimWorker* worker = all[random_() % all.size()];
  // A run whose workers all die before they have started fails, as it should.
  const SimMember* member = worker->member();
  const bool new_here = member == nullptr || member->epoch() == 0;
  if (!training(kRun).trains() && new_here && worker->actor().empty()) return;
  ++result_.kills;
  Tell("killed: ", worker->process(), NameOf(*worker));
  worker->Die(SIGKILL);
}

void World::DisturbNode() {
  if (nodes_.empty()) return;
  auto it = nodes_.begin();
  std::advance(it, static_cast<int>(random_() % nodes_.size()));
  SimNode& node = *it->second;
  const size_t host = it->first;
  const double dice = Uniform();
  if (dice < 0.4) {
    ++result_.nodes_killed;
    Tell("killed: node ", node.id());
    NodeDies(node);
  } else if (dice < 0.7) {
    ++result_.stops;
    Tell("stopped: node ", node.id());
    disturbed_ = Now();
    node.port().Freeze(true);
    loop().CallAfter(Between(milliseconds(50), Uniform() < 0.7 ? seconds(2) : seconds(9)),
                     [this, host, name = node.port().self()] {
                       const auto now = nodes_.find(host);
                       if (now == nodes_.end() || now->second->port().self() != name) return;
                       disturbed_ = Now();
                       now->second->port().Freeze(false);
                     });
  } else if (!node.noticed()) {
    ++result_.drains;
    Tell("notice: node ", node.id());
    const Duration left = Between(milliseconds(500), seconds(4));
    node.Notice("spot", left);
    loop().CallAfter(left, [this, host, name = node.port().self()] {
      const auto now = nodes_.find(host);
      if (now != nodes_.end() && now->second->port().self() == name) NodeDies(*now->second);
    });
  }
}

void World::DisturbHead() {
  if (!head_ || head_->port().frozen() || StoreMayLack()) return;
  const double dice = Uniform();
  if (dice < 0.4) {
    HeadDies(false);
  } else if (dice < 0.75) {
    head_->store().DieAfter(1 + static_cast<int>(random_() % 6));
  } else {
    ++result_.stops;
    Tell("stopped: the head");
    disturbed_ = Now();
    head_->port().Freeze(true);
    loop().CallAfter(Between(milliseconds(50), Uniform() < 0.7 ? seconds(2) : seconds(9)), [this] {
      disturbed_ = Now();
      if (head_) head_->port().Freeze(false);
    });
  }
}

// What is only in the head must not be lost with it: that is a limit which is told to users.
void World::DisturbStore() {
  if (!head_ || head_->port().frozen() || StoreMayLack()) return;
  if (Uniform() < 0.5) {
    Tell("the store is emptied");
    ++result_.stores_emptied;
    head_->store().DieAfter(0);
    size_t deleted = 0;
    for (const char* prefix : kAllKeys) deleted += store_.DeletePrefix(prefix).value();
    if (deleted == 0) Fail("the store had nothing to lose");
    store_harmed_ = Now() + kStoreHarm;
  } else {
    Tell("the store is away");
    head_->store().DieAfter(0);
    store_.SetAvailable(false);
    const Duration away = Between(milliseconds(50), seconds(3));
    store_harmed_ = Now() + away + kStoreHarm;
    loop().CallAfter(away, [this] { store_.SetAvailable(true); });
  }
}

void World::Ask() {
  if (Uniform() < 0.3) return actors_->Disturb();
  if (!driver_->submitted() || driver_->asking()) return;
  RunCommand command;
  if (Uniform() < 0.5 || driver_->members().empty()) {
    ++result_.resizes;
    command.verb = RunVerb::kResize;
    command.workers =
        options_.min_workers +
        static_cast<uint32_t>(random_() % (options_.max_workers - options_.min_workers + 1));
    Tell("asked: resize to ", command.workers);
  } else {
    ++result_.drains;
    command.verb = RunVerb::kDrain;
    command.member = driver_->members()[random_() % driver_->members().size()];
    command.deadline_ms = Uniform() < 0.5 ? 0 : 1000;
    Tell("asked: drain ", command.member);
  }
  driver_->Command(command);
}

void World::Heal() {
  chaos_ = false;
  Tell("all heals");
  disturbed_ = Now();
  cut_.clear();
  for (Late& late : std::exchange(late_, {})) SendLate(std::move(late));
  store_.SetAvailable(true);
  if (head_) head_->store().DieAfter(0);
  if (head_) head_->port().Freeze(false);
  for (auto& [host, node] : nodes_) node->port().Freeze(false);
  for (SimWorker* worker : Workers()) worker->Freeze(false);
  RetrySteps();
}

bool World::Await(Duration limit, const std::function<std::string()>& what, const char* name,
                  Duration hold) {
  Time since = Time::Never();
  const Time until = Now() + limit;
  std::string why = "not looked at";
  while (result_.ok && Now() < until) {
    const Time look = std::min(until, Now() + kStepMax);
    while (result_.ok && network_.Step(look)) {
      dead_.clear();
      dead_nodes_.clear();
      dead_heads_.clear();
    }
    CheckProcesses();
    why = what();
    since = why.empty() ? std::min(since, Now()) : Time::Never();
    if (why.empty() && Now() >= since + hold) return result_.ok;
  }
  if (result_.ok) Fail(std::string(name) + ": " + why + "; the last event: " + driver_->last());
  return false;
}

ClusterResult World::Run() {
  StartHead();
  for (int host = 0; host < options_.hosts; ++host) StartNode(static_cast<size_t>(host), true);
  driver_ = std::make_unique<SimDriver>(this);
  driver_->Submit();
  actors_ = std::make_unique<SimActors>(this);
  actors_->Create();
  loop().CallAfter(Between(milliseconds(1), seconds(2)), [this] { Chaos(); });
  const Time end = Now() + options_.chaos;
  const auto over = [&] { return std::string(Now() < end ? "chaos" : ""); };
  if (!Await(options_.chaos + seconds(1), over, "chaos")) return result_;
  Heal();
  const auto answered = [this] {
    return std::string(driver_->asking() || actors_->asking() ? "no answer" : "");
  };
  if (!Await(options_.settle, answered, "asking")) return result_;
  RunCommand command;
  command.verb = RunVerb::kResize;
  command.workers = options_.workers;
  driver_->Command(command);
  actors_->Settle();
  if (!Await(
          options_.settle, [this] { return NotSettled(); }, "settling", kStays))
    return result_;
  actors_->AskOtherwise();
  if (!Await(options_.settle, answered, "asking otherwise")) return result_;
  if (Uniform() < 0.4) {
    loop().CallAfter(Between(milliseconds(1), milliseconds(800)), [this] {
      Uniform() < 0.5 || !head_ ? HeadDies(false)
                                : head_->store().DieAfter(1 + static_cast<int>(random_() % 6));
    });
  }
  Stop();
  if (!result_.ok) return result_;
  const bool owned =
      options_.ending == Ending::kDriverLeaves || options_.ending == Ending::kDriverSilent;
  if (!owned) actors_->Kill();
  const auto processes = [this] { return ProcessLeft(); };
  const auto keys = [this] { return KeyLeft(); };
  if (Await(kCleanLimit, processes, "ending processes"))
    (void)Await(kForgetLimit, keys, "cleaning up");
  result_.event_hash = network_.event_hash();
  return result_;
}

// Ends the run, and looks at what its driver is told.
void World::Stop() {
  ends_ = true;
  const auto told = [this] { return std::string(driver_->done() ? "" : "it goes on"); };
  const Ending ending = options_.ending;
  if (ending == Ending::kReturns) {
    training(kRun).FinishSoon();
    if (Await(kEndLimit, told, "ending")) CheckResults();
  } else if (ending == Ending::kRaises) {
    training(kRun).Raise();
    if (Await(kEndLimit, told, "raising") && driver_->done() != "failed")
      Fail("its function has raised, and it has " + *driver_->done());
  } else if (ending == Ending::kCancelled) {
    RunCommand cancel;
    cancel.verb = RunVerb::kCancel;
    driver_->Command(cancel);
    if (Await(kEndLimit, told, "cancelling") && driver_->done() != "cancelled")
      Fail("it was cancelled, and has " + *driver_->done());
  } else {
    driver_->Leave(ending == Ending::kDriverLeaves);
    actors_->Leave();
    (void)Await(
        kEndLimit, [this] { return ProcessLeft(); }, "ending without its driver");
  }
}

ClusterResult RunClusterSimulation(const ClusterOptions& options) {
  World world(options);
  ClusterResult result = world.Run();
  world.CountSteps(result);
  return result;
}

}  // namespace troupe::daemons::sim
