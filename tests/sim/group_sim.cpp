#include "tests/sim/group_sim.h"

#include <algorithm>
#include <functional>
#include <random>

#include "runtime/wire.h"

namespace troupe::groups::sim {
namespace {

constexpr uint8_t kReportFrame = 1;
constexpr uint8_t kCommandFrame = 2;
constexpr const char* kHead = "head";

uint64_t Mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ULL + 0x9e3779b97f4a7c15ULL;
}

class World;

// The store: one record that survives the coordinator, answered late, sometimes not at all.
struct SimStore {
  std::optional<EpochRecord> record;
  std::vector<EpochRecord> history;
  Epoch newest = 0;  // Ever stored.
  bool available = true;
};

// Collectives of one epoch: a step completes for a member once everybody of the view has entered
// it.
struct SimCollectives {
  std::map<Epoch, std::map<MemberId, uint64_t>> entered;  // Steps entered so far in that epoch.
};

class SimMember {
 public:
  SimMember(World* world, const MemberId& id);

  void Kill() { alive_ = false; }
  void Pause(bool paused);
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool paused() const { return paused_; }
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] bool expelled() const { return expelled_; }
  [[nodiscard]] const Member& core() const { return core_; }
  [[nodiscard]] const MemberId& id() const { return id_; }
  [[nodiscard]] uint64_t version() const { return version_; }
  [[nodiscard]] uint64_t state_hash() const { return hash_; }
  [[nodiscard]] bool has_state() const { return has_state_; }
  void CompleteStep(Epoch epoch, uint64_t step);
  void Receive(std::string frame);

 private:
  friend class World;
  void Feed(const MemberEvent& event);
  void Handle(const MemberAction& action);
  void Later(Duration delay, std::function<void()> fn);
  void ArmTimer();
  void StartEpoch(const View& view);
  void NextStep();
  void Unwind();

  World* const world_;
  const MemberId id_;
  std::unique_ptr<Transport> transport_;
  Member core_;
  TimerId timer_ = kNoTimer;
  bool alive_ = true;
  bool paused_ = false;
  bool finished_ = false;
  bool expelled_ = false;
  std::deque<std::function<void()>> held_;  // Work that arrived while stopped.
  // The training loop.
  bool in_epoch_ = false;  // The user's thread is inside an epoch.
  Epoch epoch_ = 0;
  View view_;
  uint64_t step_ = 0;  // Collectives entered in this epoch.
  uint64_t version_ = 0;
  uint64_t hash_ = 0;
  bool has_state_ = false;
  bool synced_ = false;
  Epoch last_activated_ = 0;
  uint64_t generation_ = 0;  // Invalidates late completions after an unwind.
};

class Head {
 public:
  Head(World* world, std::string owner, std::optional<EpochRecord> record);
  void Receive(const Report& report);
  void Feed(const CoordinatorEvent& event);
  void Stop() { running_ = false; }
  [[nodiscard]] bool running() const { return running_; }
  [[nodiscard]] const Coordinator& core() const { return core_; }

 private:
  void Handle(const CoordinatorAction& action);
  void Persist(const PersistRecord& request);
  void Answer(const PersistRecord& request, bool lie);
  void SendTo(const MemberId& to, Command command);
  void ArmTimer();

  World* const world_;
  const std::string owner_;
  Coordinator core_;
  TimerId timer_ = kNoTimer;
  bool running_ = true;
};

class World {
 public:
  explicit World(SimOptions options)
      : options_(options),
        network_(options.seed),
        loop_(network_.MakeTransport("clock")),
        random_(options.seed * 77 + 1) {}

  SimResult Run();

  // ---- used by the parts ----
  [[nodiscard]] Time Now() const { return network_.Now(); }
  double Uniform() { return std::uniform_real_distribution<>(0, 1)(random_); }
  Duration Between(Duration a, Duration b) {
    return a + Duration(static_cast<int64_t>(Uniform() * static_cast<double>((b - a).count())));
  }
  EventLoop& loop() { return loop_->loop(); }
  void Fail(const std::string& what) {
    if (result_.ok) result_.violation = what;
    result_.ok = false;
  }
  void ToHead(const std::string& from, const std::string& frame);
  void Fence(const MemberId& id);
  void EnterStep(SimMember& member, Epoch epoch, const View& view, uint64_t step);
  // Who has aborted an epoch completes nothing in it any more, and nobody with it.
  void LeaveSteps(const SimMember& member, Epoch epoch) {
    collectives_.entered[epoch].erase(member.id());
  }
  void Sync(SimMember& member, const View& view);
  [[nodiscard]] SimMember* Find(const MemberId& id) {
    const auto it = members_.find(id);
    return it == members_.end() ? nullptr : it->second.get();
  }

  // ---- checkers ----
  void CheckMemberList(Epoch epoch, const View& view, const char* where) {
    std::vector<MemberId> ids;
    for (const ViewMember& m : view.members) ids.push_back(m.id);
    const auto [it, is_new] = lists_.try_emplace(epoch, ids);
    if (!is_new && it->second != ids)
      Fail(std::string("GM-2: two member lists of one epoch, seen at ") + where);
  }
  void CheckActivated(const SimMember& member, const View& view) {
    CheckMemberList(view.epoch, view, "activate");
    if (view.epoch <= member.last_activated_)
      Fail("GM-1: a member entered an epoch that is not newer");
    for (const ViewMember& m : view.members) {
      if (!prepared_.contains({m.id, view.epoch}))
        Fail("GM-3: active before " + m.id.ToString() + " was prepared");
    }
    if (static_cast<int>(view.members.size()) < options_.min_members && !any_finished_) {
      Fail("GM-6: active below the minimum");
    }
  }
  void CheckSent(const Command& command) {
    const bool epoch_message =
        command.kind == CommandKind::kPrepare || command.kind == CommandKind::kInstall;
    if (!epoch_message) return;
    CheckMemberList(command.epoch, command.view, "send");
    const bool stored =
        std::any_of(store_.history.begin(), store_.history.end(), [&](const EpochRecord& r) {
          return r.view.epoch == command.epoch &&
                 r.view.members.size() == command.view.members.size();
        });
    if (!stored) Fail("GM-7: a message of an epoch left before the epoch was stored");
  }

  const SimOptions options_;
  LoopbackNetwork network_;
  std::unique_ptr<Transport> loop_;
  std::mt19937_64 random_;
  SimStore store_;
  std::map<MemberId, std::unique_ptr<SimMember>> members_;
  std::vector<std::unique_ptr<Head>> heads_;  // The last one is current; older ones may still run.
  std::unique_ptr<Transport> head_transport_;
  SimCollectives collectives_;
  std::map<Epoch, std::vector<MemberId>> lists_;
  std::set<std::pair<MemberId, Epoch>> prepared_;
  SimResult result_;
  bool chaos_ = true;
  bool any_finished_ = false;

 private:
  void Chaos();
  void AddMember();
  void KillOne();
  void RestartHead();
  void Heal();
  void Replenish();
  [[nodiscard]] bool Converged();
  uint64_t next_incarnation_ = 1;
  int next_head_ = 1;

 public:
  std::map<std::pair<Epoch, uint64_t>, uint64_t> sync_hash_;
  int next_term_ = 1;
};

// ---- SimMember ----

SimMember::SimMember(World* world, const MemberId& id)
    : world_(world),
      id_(id),
      transport_(world->network_.MakeTransport(id.ToString())),
      core_(MemberOptions{id, "host" + std::to_string(id.incarnation % 2)}, world->Now()) {
  transport_->SetHandler(
      [this](const std::string&, std::string frame) { Receive(std::move(frame)); });
  Feed(MemberTick{});
  Later(world_->Between(microseconds(100), milliseconds(30)), [this] {
    Feed(UserReady{version_, has_state_, world_->Uniform() < 0.5});
  });
}

void SimMember::Later(Duration delay, std::function<void()> fn) {
  transport_->loop().CallAfter(delay, [this, fn = std::move(fn)] {
    if (!alive_) return;
    if (paused_) {
      held_.push_back(fn);
    } else {
      fn();
    }
  });
}

void SimMember::Pause(bool paused) {
  paused_ = paused;
  if (paused) return;
  std::deque<std::function<void()>> held;
  held.swap(held_);
  for (auto& fn : held) {
    if (alive_) fn();
  }
}

void SimMember::Receive(std::string frame) {
  if (!alive_) return;
  if (paused_) {
    held_.push_back([this, frame = std::move(frame)] { Receive(frame); });
    return;
  }
  const Result<Command> command = wire::Decode<Command>(kCommandFrame, frame);
  if (!command.ok()) return world_->Fail("wire: " + command.error().message);
  Feed(CommandReceived{*command});
}

void SimMember::Feed(const MemberEvent& event) {
  if (!alive_ || expelled_) return;
  const auto actions = core_.Step(world_->Now(), event);
  if (core_.state() == MemberState::kPrepared) world_->prepared_.insert({id_, core_.epoch()});
  for (const MemberAction& action : actions) Handle(action);
  ArmTimer();
}

void SimMember::ArmTimer() {
  transport_->loop().Cancel(timer_);
  timer_ = transport_->loop().CallAt(core_.NextDeadline(), [this] {
    if (!alive_) return;
    if (paused_) {
      held_.push_back([this] { Feed(MemberTick{}); });
    } else {
      Feed(MemberTick{});
    }
  });
}

void SimMember::Handle(const MemberAction& action) {
  if (const auto* a = std::get_if<SendReport>(&action)) {
    (void)transport_->Send(kHead, wire::Encode(kReportFrame, a->report));
  } else if (const auto* a = std::get_if<AbortEpoch>(&action)) {
    // The blocked collective unwinds a little later on the user's thread.
    if (in_epoch_)
      Later(world_->Between(microseconds(20), microseconds(400)), [this, g = generation_] {
        if (in_epoch_ && g == generation_) Unwind();
      });
    (void)a;
  } else if (const auto* a = std::get_if<MakeOffers>(&action)) {
    OffersMade made{a->epoch, {}, ""};
    for (const uint32_t slot : a->slots) made.offers.push_back({slot, 0, "at " + id_.ToString()});
    Later(world_->Between(microseconds(50), microseconds(500)), [this, made] { Feed(made); });
  } else if (const auto* a = std::get_if<LinkEpoch>(&action)) {
    Later(world_->Between(microseconds(100), milliseconds(1)), [this, epoch = a->view.epoch] {
      Feed(EpochLinked{epoch, ""});
    });
  } else if (const auto* a = std::get_if<MakePrelink>(&action)) {
    Later(microseconds(200), [this, a = *a] { Feed(PrelinkOffered{a.slot, a.attempt, "ahead"}); });
  } else if (const auto* a = std::get_if<LinkAhead>(&action)) {
    Later(microseconds(300), [this, a = *a] { Feed(PrelinkDone{a.slot, a.attempt, true}); });
  } else if (const auto* a = std::get_if<Activated>(&action)) {
    world_->CheckActivated(*this, a->view);
    last_activated_ = a->view.epoch;
    StartEpoch(a->view);
  } else if (std::holds_alternative<TooLateToFound>(action)) {
    Later(world_->Between(milliseconds(1), milliseconds(100)), [this] {
      Feed(UserReady{version_, has_state_, false});
    });
  } else if (const auto* a = std::get_if<BoundaryAnswer>(&action)) {
    Later(microseconds(10), [this, stop = a->stop, g = generation_] {
      if (!in_epoch_ || g != generation_) return;
      stop ? Unwind() : NextStep();
    });
  } else if (const auto* a = std::get_if<Expelled>(&action)) {
    (void)a;
    expelled_ = true;
    in_epoch_ = false;
    world_->LeaveSteps(*this, epoch_);
  }
}

void SimMember::StartEpoch(const View& view) {
  in_epoch_ = true;
  synced_ = false;
  ++generation_;
  epoch_ = view.epoch;
  view_ = view;
  step_ = 0;
  world_->result_.epochs = std::max(world_->result_.epochs, view.epoch);
  world_->Sync(*this, view);
}

void SimMember::NextStep() {
  if (!in_epoch_) return;
  Later(world_->Between(microseconds(200), milliseconds(2)), [this, g = generation_] {
    if (!in_epoch_ || g != generation_) return;
    world_->EnterStep(*this, epoch_, view_, ++step_);
  });
}

void SimMember::CompleteStep(Epoch epoch, uint64_t step) {
  if (!in_epoch_) return;
  if (epoch != epoch_ || step != step_)
    return world_->Fail("GM-4: a collective completed across epochs");
  if (version_ >=
      static_cast<uint64_t>(world_->options_.steps)) {  // That was the barrier after the last step.
    finished_ = true;
    in_epoch_ = false;
    world_->any_finished_ = true;
    Feed(UserFinished{});
    return;
  }
  hash_ = Mix(Mix(hash_, epoch), version_);
  ++version_;
  has_state_ = true;
  world_->result_.steps = std::max(world_->result_.steps, version_);
  Feed(UserVersion{version_});
  Feed(UserBoundary{});
}

void SimMember::Unwind() {
  in_epoch_ = false;
  world_->LeaveSteps(*this, epoch_);
  ++generation_;
  Later(world_->Between(microseconds(10), microseconds(300)), [this] {
    if (!finished_) Feed(UserReady{version_, has_state_});
  });
}

// ---- World: collectives and state ----

void World::EnterStep(SimMember& member, Epoch epoch, const View& view, uint64_t step) {
  const Epoch key = options_.sabotage == Sabotage::kMixEpochs ? 0 : epoch;
  collectives_.entered[key][member.id()] = step;
  const bool all = std::all_of(view.members.begin(), view.members.end(), [&](const ViewMember& m) {
    const auto& entered = collectives_.entered[key];
    const auto it = entered.find(m.id);
    return it != entered.end() && it->second >= step;
  });
  if (!all) return;
  for (const ViewMember& m : view.members) {
    SimMember* other = Find(m.id);
    if (other == nullptr) continue;
    // Completion reaches the members at different moments; an abort in between leaves some without
    // it.
    other->Later(Between(microseconds(20), microseconds(600)),
                 [this, other, epoch, step, g = other->generation_] {
                   const bool mixed = options_.sabotage == Sabotage::kMixEpochs;
                   if (mixed || other->generation_ == g) other->CompleteStep(epoch, step);
                 });
  }
}

// State goes from the oldest member with the newest to whoever lacks it; then everybody must be
// identical (GM-8).
void World::Sync(SimMember& member, const View& view) {
  const int source = SourceRank(view);
  const std::vector<int> lacking = RanksWithoutState(view);
  const int rank = RankOf(view, member.id());
  const bool lacks = std::find(lacking.begin(), lacking.end(), rank) != lacking.end();
  SimMember* from = Find(view.members[source].id);
  const Duration delay = Between(microseconds(50), milliseconds(2));
  member.Later(delay, [this, &member, from, lacks, source, view, g = member.generation_] {
    if (!member.in_epoch_ || member.generation_ != g) return;
    if (lacks && options_.sabotage != Sabotage::kNoStateTransfer) {
      // The source must be in the same epoch, or already past it with the same bytes; else the
      // transfer breaks.
      const bool gone = from == nullptr || !from->alive() || from->epoch_ > view.epoch ||
                        (from->epoch_ == view.epoch && !from->in_epoch_);
      if (!gone && (from->epoch_ < view.epoch || !from->synced_))
        return Sync(member, view);  // It will send soon.
      if (gone) {
        member.Feed(CommunicatorBroke{view.epoch, "state transfer broke"});
        return;
      }
      member.version_ = view.members[source].version;
      member.hash_ = sync_hash_[{view.epoch, view.members[source].version}];
    }
    if (!lacks) sync_hash_[{view.epoch, view.members[source].version}] = member.hash_;
    member.has_state_ = true;
    member.synced_ = true;
    for (const ViewMember& m : view.members) {
      SimMember* other = Find(m.id);
      const bool comparable = other != nullptr && other->in_epoch_ && other->epoch_ == view.epoch &&
                              other->synced_ && other->step_ == 0 && member.step_ == 0;
      if (comparable && (other->version_ != member.version_ || other->hash_ != member.hash_)) {
        Fail("GM-8: members of an active view hold different state");
      }
    }
    member.Feed(UserVersion{member.version_});
    member.NextStep();
  });
}

// ---- Head ----

Head::Head(World* world, std::string owner, std::optional<EpochRecord> record)
    : world_(world),
      owner_(owner),
      core_(
          [&] {
            CoordinatorOptions o;
            o.group = "g";
            o.owner = owner;
            o.term = static_cast<uint64_t>(world->next_term_++);
            o.min_members = world->options_.sabotage == Sabotage::kIgnoreMinimum
                                ? 1
                                : static_cast<uint32_t>(world->options_.min_members);
            o.start_members = static_cast<uint32_t>(world->options_.members);
            o.form_timeout = milliseconds(200);
            o.lease = milliseconds(600);
            o.prepare_timeout = seconds(3);
            o.link_timeout = seconds(1);
            o.recover_grace = milliseconds(500);
            return o;
          }(),
          std::move(record), world->Now()) {
  ArmTimer();
}

void Head::Receive(const Report& report) {
  Feed(ReportReceived{report});
  if (world_->options_.sabotage == Sabotage::kActivateEarly &&
      report.state == MemberState::kPrepared) {
    for (Report other : core_.members()) {
      if (other.id == report.id) continue;
      other.state = report.state;
      other.epoch = report.epoch;
      ++other.sequence;
      Feed(ReportReceived{other});
      ++other.sequence;
      other.state = MemberState::kLinked;
      Feed(ReportReceived{other});
    }
  }
}

void Head::Feed(const CoordinatorEvent& event) {
  if (!running_) return;
  const CoordinatorDecision decision = core_.Step(world_->Now(), event);
  for (const CoordinatorAction& action : decision.actions) Handle(action);
  ArmTimer();
}

void Head::ArmTimer() {
  world_->loop().Cancel(timer_);
  const Time next = core_.NextDeadline();
  if (next == Time::Never() || world_->options_.sabotage == Sabotage::kNoRepeats) return;
  timer_ = world_->loop().CallAt(std::max(next, world_->Now() + microseconds(10)),
                                 [this] { Feed(Tick{}); });
}

void Head::Handle(const CoordinatorAction& action) {
  if (const auto* a = std::get_if<SendCommand>(&action)) {
    SendTo(a->to, a->command);
  } else if (const auto* a = std::get_if<PersistRecord>(&action)) {
    Persist(*a);
  } else if (const auto* a = std::get_if<FenceMember>(&action)) {
    world_->Fence(a->id);
  } else if (std::holds_alternative<Deposed>(action)) {
    running_ = false;
  }
}

void Head::SendTo(const MemberId& to, Command command) {
  world_->CheckSent(command);
  if (world_->options_.sabotage == Sabotage::kDifferentMembers &&
      command.kind == CommandKind::kInstall && command.view.members.size() > 2 &&
      command.view.members.back().id != to) {
    command.view.members.pop_back();
  }
  (void)world_->head_transport_->Send(to.ToString(), wire::Encode(kCommandFrame, command));
}

void Head::Persist(const PersistRecord& request) {
  const bool lie = world_->options_.sabotage == Sabotage::kSendBeforeStore;
  if (lie) {
    world_->loop().CallAfter(microseconds(1), [this, id = request.request] {
      Feed(StoreAnswered{id, ErrorCode::kOk, {}});
    });
  }
  world_->loop().CallAfter(world_->Between(microseconds(60), milliseconds(1)),
                           [this, request, lie] { Answer(request, lie); });
}

void Head::Answer(const PersistRecord& request, bool lie) {
  SimStore& store = world_->store_;
  StoreAnswered answer{request.request, ErrorCode::kOk, {}};
  const auto epoch_of = [](const std::optional<EpochRecord>& r) { return r ? r->view.epoch : 0; };
  const auto owner_of = [](const std::optional<EpochRecord>& r) {
    return r ? r->owner : std::string();
  };
  if (!store.available) {
    answer.code = ErrorCode::kUnavailable;
    if (world_->Uniform() < 0.7)
      return Feed(answer);  // The rest: it happens, but the answer is lost.
  }
  const bool matches = epoch_of(store.record) == epoch_of(request.expected) &&
                       owner_of(store.record) == owner_of(request.expected);
  const bool repeated = store.record && store.record->view == request.record.view &&
                        store.record->owner == owner_ &&
                        store.record->ended == request.record.ended;
  if (!matches && !repeated) {
    if (answer.code == ErrorCode::kOk)
      answer = {request.request, ErrorCode::kConflict, store.record};
  } else {
    if (!repeated && !request.record.ended && request.record.view.epoch <= store.newest) {
      world_->Fail("GM-1: a stored epoch did not grow");
    }
    world_->CheckMemberList(request.record.view.epoch, request.record.view, "store");
    store.record = request.record;
    store.newest = std::max(store.newest, request.record.view.epoch);
    store.history.push_back(request.record);
  }
  if (!lie) Feed(answer);
}

// ---- World: faults ----

void World::ToHead(const std::string&, const std::string& frame) {
  const Result<Report> report = wire::Decode<Report>(kReportFrame, frame);
  if (!report.ok()) return Fail("wire: " + report.error().message);
  if (!heads_.empty() && heads_.back()->running()) heads_.back()->Receive(*report);
}

void World::Fence(const MemberId& id) {
  SimMember* member = Find(id);
  if (member == nullptr || Uniform() < 0.3)
    return;  // Sometimes the node is out of reach and the member lives on.
  member->Kill();
}

void World::AddMember() {
  const MemberId id{"w", next_incarnation_++};
  members_.emplace(id, std::make_unique<SimMember>(this, id));
}

void World::KillOne() {
  std::vector<SimMember*> alive;
  for (auto& [id, member] : members_) {
    if (member->alive() && !member->finished()) alive.push_back(member.get());
  }
  if (static_cast<int>(alive.size()) <= 1) return;
  SimMember* victim = alive[static_cast<size_t>(Uniform() * static_cast<double>(alive.size()))];
  victim->Kill();
  ++result_.kills;
  // Peers see broken links, the node reports the death; either may be late or lost.
  for (auto& [id, member] : members_) {
    if (member.get() == victim || !member->alive() || Uniform() < 0.5) continue;
    member->Later(Between(microseconds(50), milliseconds(2)), [m = member.get()] {
      m->Feed(CommunicatorBroke{m->epoch_, "peer closed"});
    });
  }
  if (Uniform() < 0.9) {
    loop().CallAfter(Between(microseconds(40), milliseconds(3)), [this, id = victim->id()] {
      if (heads_.back()->running()) heads_.back()->Feed(MemberDied{id, "killed"});
    });
  }
  if (Uniform() < 0.8)
    loop().CallAfter(Between(milliseconds(1), milliseconds(50)), [this] { AddMember(); });
}

void World::RestartHead() {
  const bool zombie = Uniform() < 0.4;  // The old one still runs and does not know.
  if (!zombie && !heads_.empty()) heads_.back()->Stop();
  std::optional<EpochRecord> record = store_.record;
  if (options_.sabotage == Sabotage::kForgetRecord && store_.history.size() > 2)
    record = store_.history.front();
  if (options_.sabotage == Sabotage::kForgetRecord) store_.record = record;
  heads_.push_back(std::make_unique<Head>(this, "head-" + std::to_string(next_head_++), record));
}

void World::Chaos() {
  if (!chaos_) return;
  const double dice = Uniform();
  if (dice < 0.25) {
    KillOne();
    if (Uniform() < 0.3) KillOne();
  } else if (dice < 0.35) {
    AddMember();
  } else if (dice < 0.45) {
    const auto reports = heads_.back()->core().members();
    if (!reports.empty()) {
      heads_.back()->Feed(DrainRequested{
          reports[static_cast<size_t>(Uniform() * static_cast<double>(reports.size()))].id,
          "drain"});
    }
  } else if (dice < 0.55) {
    RestartHead();
  } else if (dice < 0.65) {
    for (auto& [id, member] : members_) {
      if (!member->alive() || Uniform() > 0.3) continue;
      member->Pause(true);
      loop().CallAfter(Between(milliseconds(1), milliseconds(900)),
                       [m = member.get()] { m->Pause(false); });
      break;
    }
  } else if (dice < 0.75) {
    store_.available = false;
    loop().CallAfter(Between(milliseconds(1), milliseconds(200)),
                     [this] { store_.available = true; });
  } else if (dice < 0.85) {
    for (auto& [id, member] : members_) {
      if (Uniform() > 0.3) continue;
      if (Uniform() < 0.7) network_.Block(id.ToString(), kHead);
      if (Uniform() < 0.7) network_.Block(kHead, id.ToString());
    }
    loop().CallAfter(Between(milliseconds(5), milliseconds(400)), [this] { network_.Heal(); });
  }
  loop().CallAfter(Between(milliseconds(5), milliseconds(150)), [this] { Chaos(); });
}

void World::Heal() {
  chaos_ = false;
  network_.Heal();
  network_.SetFaults({});
  store_.available = true;
  for (auto& [id, member] : members_) {
    if (member->paused()) member->Pause(false);
  }
  if (!heads_.back()->running()) RestartHead();
  Replenish();
}

// What the autoscaler does: keep enough members.
void World::Replenish() {
  int usable = 0;
  for (auto& [id, member] : members_)
    usable += member->alive() && !member->expelled() && !member->finished() ? 1 : 0;
  for (; usable < options_.members && !any_finished_; ++usable) AddMember();
  loop().CallAfter(milliseconds(100), [this] { Replenish(); });
}

bool World::Converged() {
  if (heads_.back()->core().phase() == GroupPhase::kEnded) return true;
  if (any_finished_) {
    return std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
      return !entry.second->alive() || entry.second->finished() || entry.second->expelled();
    });
  }
  return false;
}

SimResult World::Run() {
  network_.SetFaults({Uniform() * 0.15, Uniform() * 0.1, microseconds(20),
                      microseconds(20 + static_cast<int>(Uniform() * 800))});
  head_transport_ = network_.MakeTransport(kHead);
  head_transport_->SetHandler(
      [this](const std::string& from, const std::string& frame) { ToHead(from, frame); });
  RestartHead();
  for (int i = 0; i < options_.members; ++i) AddMember();
  loop().CallAfter(milliseconds(20), [this] { Chaos(); });
  const Time chaos_end = Now() + options_.chaos;
  while (result_.ok && network_.Step(chaos_end)) {
  }
  Heal();
  const Time limit = Now() + options_.settle;
  while (result_.ok && !Converged()) {
    if (!network_.Step(limit)) {
      std::string who;
      for (auto& [id, m] : members_) {
        if (!m->alive()) continue;
        who += " " + id.ToString() + ":" + std::to_string(static_cast<int>(m->core().state())) +
               "/e" + std::to_string(m->core().epoch()) + "/v" + std::to_string(m->version()) +
               (m->expelled() ? "x" : "") + (m->in_epoch_ ? "i" : "");
      }
      Fail("GM-5: not converged; phase " +
           std::string(GroupPhaseName(heads_.back()->core().phase())) + " waiting for " +
           heads_.back()->core().waiting_for() + ";" + who);
    }
  }
  result_.event_hash = network_.event_hash();
  return result_;
}

}  // namespace

SimResult RunGroupSimulation(const SimOptions& options) { return World(options).Run(); }

}  // namespace troupe::groups::sim
