// The scenario of the group simulation: collectives, faults, and when a run is over.
#include "tests/sim/group_sim.h"

#include <algorithm>

#include "runtime/wire.h"
#include "tests/sim/sim_head.h"
#include "tests/sim/sim_member.h"

namespace troupe::groups::sim {

World::World(const SimOptions& options)
    : options_(options),
      network_(options.seed),
      loop_(network_.MakeTransport("clock")),
      random_(options.seed * 77 + 1) {}

World::~World() = default;

SimMember* World::Find(const MemberId& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : it->second.get();
}

SimHead* World::OnlyHead() const {
  const auto running =
      std::count_if(heads_.begin(), heads_.end(), [](const auto& head) { return head->running(); });
  return running == 1 && heads_.back()->running() ? heads_.back().get() : nullptr;
}

// ---- collectives and state ----

void World::EnterStep(SimMember& member, Epoch epoch, const View& view, const SimEntry& entry) {
  auto& entered = entered_[Sabotaged(Sabotage::kMixEpochs) ? 0 : epoch];
  entered[member.id()] = entry;
  called_[{epoch, entry.step}].insert(entry.signature);
  bool all = true;
  std::vector<SampleLedger::Share> shares;
  for (const ViewMember& m : view.members) {
    const auto it = entered.find(m.id);
    if (it == entered.end() || it->second.step < entry.step) {
      all = false;
      continue;
    }
    shares.push_back(it->second.share);
    for (const ViewMember& other : view.members) all &= Reachable(m.id, other.id);
    if (it->second.step != entry.step || it->second.signature == entry.signature) continue;
    mismatched_.try_emplace(epoch, Now());
    all = false;
  }
  if (!all) return;
  for (const ViewMember& m : view.members) {
    SimMember* other = Find(m.id);
    if (other == nullptr) continue;
    // Completion reaches the members at different moments; an abort in between leaves some without
    // it.
    other->Later(Between(microseconds(20), microseconds(600)),
                 [this, other, epoch, step = entry.step, shares, g = other->generation()] {
                   const bool mixed = Sabotaged(Sabotage::kMixEpochs);
                   if (mixed || other->generation() == g) other->CompleteStep(epoch, step, shares);
                 });
  }
}

// State goes from the oldest member with the newest to whoever lacks it (GM-8).
void World::Sync(SimMember& member, const View& view) {
  const bool oldest = Sabotaged(Sabotage::kOldestIsSource);
  const auto source = static_cast<size_t>(oldest ? 0 : SourceRank(view));
  const std::vector<int> lacking = RanksWithoutState(view);
  const int rank = RankOf(view, member.id());
  const bool lacks =
      oldest ? view.members[static_cast<size_t>(rank)].version != view.members[source].version
             : std::find(lacking.begin(), lacking.end(), rank) != lacking.end();
  const MemberId from_id = view.members[source].id;
  const SimMember* from = Find(from_id);
  const Duration delay = Between(microseconds(50), milliseconds(2));
  member.Later(delay, [this, &member, from, from_id, lacks, view, g = member.generation()] {
    if (!member.in_epoch() || member.generation() != g) return;
    if (lacks && !Sabotaged(Sabotage::kNoStateTransfer)) {
      // The source must be in the same epoch, or already past it with the same bytes; else the
      // transfer breaks.
      const bool gone = from == nullptr || !Reachable(member.id(), from_id) || !from->alive() ||
                        from->epoch() > view.epoch ||
                        (from->epoch() == view.epoch && !from->in_epoch());
      if (!gone && (from->epoch() < view.epoch || !from->synced()))
        return Sync(member, view);  // It will send soon.
      if (gone) {
        member.Feed(CommunicatorBroke{view.epoch, "state transfer broke"});
        return;
      }
      member.TakeState(synced_[{view.epoch, from_id}]);
    }
    if (member.id() == from_id) synced_[{view.epoch, from_id}] = member.state();
    member.Synced();
  });
}

// ---- faults ----

constexpr double kCutDice = 0.82;
constexpr double kHangDice = 0.86;  // Chaos below these does something else, or lets one hang.
constexpr double kMismatchDice = 0.93;
constexpr double kBreakDice = 0.97;
constexpr double kReturnDice = 0.995;

void World::Fence(const MemberId& id) {
  fenced_ = Now();
  SimMember* member = Find(id);
  if (member == nullptr || Uniform() < 0.3)
    return;  // Sometimes the node is out of reach and the member lives on.
  // Who has returned says so until the run is over.
  if (member->returned_at() != Time::Never()) return;
  member->Kill();
}

void World::AddMember() {
  const MemberId id{"w", next_incarnation_++};
  members_.emplace(id, std::make_unique<SimMember>(this, id, Uniform() < 0.3));
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
      m->Feed(CommunicatorBroke{m->epoch(), "peer closed"});
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
  // The old one still runs and does not know. Only a store that forgets nothing tells them apart.
  const bool zombie = Uniform() < 0.4 && result_.store_losses == 0;
  if (!zombie && !heads_.empty()) heads_.back()->Stop();
  std::optional<EpochRecord> record = store_.record;
  if (Sabotaged(Sabotage::kForgetRecord) && store_.history.size() > 2)
    record = store_.history.front();
  if (Sabotaged(Sabotage::kForgetRecord)) store_.record = record;
  // As the service does: the counter may be lost, the record tells the term as well.
  if (record) next_term_ = std::max(next_term_, static_cast<int>(record->term) + 1);
  heads_.push_back(std::make_unique<SimHead>(this, "head-" + std::to_string(next_head_++), record));
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
    DrainSome();
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
  } else if (dice < 0.76) {
    HarmStore();
  } else if (dice < kCutDice) {
    CutRoute();
  } else if (dice < kHangDice) {
    for (auto& [id, member] : members_) {
      if (Uniform() > 0.3) continue;
      if (Uniform() < 0.7) network_.Block(id.ToString(), kHead);
      if (Uniform() < 0.7) network_.Block(kHead, id.ToString());
    }
    loop().CallAfter(Between(milliseconds(5), milliseconds(400)), [this] { network_.Heal(); });
  } else {
    DisturbOne(dice);
  }
  loop().CallAfter(Between(milliseconds(5), milliseconds(150)), [this] { Chaos(); });
}

// One, or all at once, as when a zone is taken back. Somebody may come in their place, soon or
// late, and at their deadline, if there is one, they are killed.
void World::DrainSome() {
  const auto reports = heads_.back()->core().members();
  if (reports.empty()) return;
  const bool all = Uniform() < 0.25;
  const auto one = static_cast<size_t>(Uniform() * static_cast<double>(reports.size()));
  const Duration limit = Between(milliseconds(20), milliseconds(800));
  const bool ends = Uniform() < 0.5;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!all && i != one) continue;
    heads_.back()->Feed(DrainRequested{reports[i].id, "drain"});
    if (Uniform() < 0.8)
      loop().CallAfter(Between(milliseconds(1), milliseconds(500)), [this] { AddMember(); });
    if (!ends) continue;
    loop().CallAfter(limit, [this, id = reports[i].id] {
      SimMember* member = Find(id);
      if (member == nullptr || !member->alive() || member->finished()) return;
      member->Kill();
      if (heads_.back()->running()) heads_.back()->Feed(MemberDied{id, "its time was over"});
    });
  }
}

bool World::Reachable(const MemberId& a, const MemberId& b) const {
  if (a == b || cut_.empty()) return true;
  const SimMember* one = Find(a);
  const SimMember* other = Find(b);
  if (one == nullptr || other == nullptr) return true;
  const bool memory = !one->memory().empty() && one->memory() == other->memory();
  return memory || (!cut_.contains({one->host(), other->host()}) &&
                    !cut_.contains({other->host(), one->host()}));
}

// Of two hosts, one way or both; both still hear the head.
void World::CutRoute() {
  ++result_.cuts;
  const bool both = Uniform() < 0.6;
  cut_is_silent_ = Uniform() < 0.4;
  const int from = static_cast<int>(Uniform() * options_.hosts);
  const int to = (from + 1 + static_cast<int>(Uniform() * (options_.hosts - 1))) % options_.hosts;
  const std::string one = "host" + std::to_string(from);
  const std::string other = "host" + std::to_string(to);
  cut_.emplace(one, other);
  if (both) cut_.emplace(other, one);
  for (auto& [id, member] : members_) {
    member->Later(kTcpSilence, [m = member.get()] { m->NoticeCut(); });
  }
  // A single host can go on by itself; where more are needed the cut must end.
  cut_for_ever_ |= options_.only_cut || (options_.min_members == 1 && Uniform() < 0.5);
  loop().CallAfter(Between(milliseconds(50), seconds(1)), [this] {
    if (!cut_for_ever_) cut_.clear();
  });
}

void World::CutOnceActive() {
  const Coordinator& core = heads_.back()->core();
  const bool all =
      core.phase() == GroupPhase::kActive && core.view().members.size() == members_.size() &&
      std::ranges::all_of(members_, [](const auto& entry) { return entry.second->synced(); });
  if (!all) return (void)loop().CallAfter(milliseconds(1), [this] { CutOnceActive(); });
  whole_ = core.view();
  CutRoute();
}

// What a store can do to those who trust it: lose a record, the count of terms, or both, or go back
// to an older state.
void World::HarmStore() {
  if (store_.record && store_.record->ended) return;  // Then the group is over for its head too.
  ++result_.store_losses;
  for (size_t i = 0; i + 1 < heads_.size(); ++i) heads_[i]->Stop();
  const double dice = Uniform();
  if (dice < 0.4) store_.record.reset();
  if (dice > 0.2 && dice < 0.7) next_term_ = 1;
  if (dice >= 0.7 && !store_.history.empty()) {
    store_.record =
        store_.history[static_cast<size_t>(Uniform() * static_cast<double>(store_.history.size()))];
  }
}

bool World::AnyHangs() const {
  return std::ranges::any_of(members_, [](const auto& entry) {
    return entry.second->usable() && entry.second->hung_since() != Time::Never();
  });
}

// A user's thread that hangs, calls something else than the others do, or returns before them; or a
// device that fails for a while.
void World::DisturbOne(double dice) {
  for (auto& [id, member] : members_) {
    if (!member->usable() || !member->in_epoch() || Uniform() > 0.4) continue;
    if (dice < kMismatchDice) {
      member->HangNext(Uniform() < 0.5);
    } else if (dice < kBreakDice) {
      member->MismatchNext();
    } else if (dice < kReturnDice) {
      const Time until = Now() + Between(milliseconds(100), seconds(2));
      calm_ = std::max(calm_, until);
      member->BreakUntil(until);
    } else {
      member->ReturnNext();
    }
    return;
  }
}

void World::Heal() {
  chaos_ = false;
  healed_ = Now();
  network_.Heal();
  network_.SetFaults({});
  if (!cut_for_ever_) cut_.clear();
  store_.available = true;
  for (auto& [id, member] : members_) {
    if (member->paused()) member->Pause(false);
  }
  if (!heads_.back()->running()) RestartHead();
  const auto reports = heads_.back()->core().members();
  if (!reports.empty() && Uniform() < 0.5)
    heads_.back()->Feed(DrainRequested{reports.back().id, "drain"});
  // With nothing else going on, what a user's thread does wrong must still be dealt with.
  if (Uniform() < 0.5) {
    loop().CallAfter(Between(milliseconds(1), milliseconds(300)), [this] {
      const double dice = Uniform();
      DisturbOne(dice < 0.35   ? kHangDice
                 : dice < 0.65 ? kMismatchDice
                 : dice < 0.8  ? kBreakDice
                               : kReturnDice);
    });
  }
  Replenish();
}

// What the autoscaler does: keep enough members.
void World::Replenish() {
  CheckNoticed();
  if (!heads_.back()->running()) RestartHead();  // It was deposed; a successor follows.
  int usable = 0;
  for (auto& [id, member] : members_) usable += member->usable() ? 1 : 0;
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
  if (!options_.only_cut) {
    network_.SetFaults({Uniform() * 0.15, Uniform() * 0.1, microseconds(20),
                        microseconds(20 + static_cast<int>(Uniform() * 800))});
  }
  head_transport_ = network_.MakeTransport(kHead);
  head_transport_->SetHandler([this](const std::string&, const std::string& frame) {
    const Result<Report> report = wire::Decode<Report>(kReportFrame, frame);
    if (!report.ok()) return Fail("wire: " + report.error().message);
    if (!heads_.empty() && heads_.back()->running()) heads_.back()->Receive(*report);
  });
  RestartHead();
  for (int i = 0; i < options_.members; ++i) AddMember();
  if (options_.only_cut) {
    loop().CallAfter(milliseconds(1), [this] { CutOnceActive(); });
  } else {
    loop().CallAfter(milliseconds(20), [this] { Chaos(); });
    const Time chaos_end = Now() + options_.chaos;
    while (result_.ok && network_.Step(chaos_end)) {
    }
    Heal();
  }
  const Time limit = Now() + options_.settle;
  while (result_.ok && !Converged()) {
    if (!network_.Step(limit)) {
      std::string who;
      for (auto& [id, m] : members_) {
        if (!m->alive()) continue;
        who += " " + id.ToString() + ":" + std::to_string(static_cast<int>(m->core().state())) +
               "/e" + std::to_string(m->core().epoch()) + "/v" +
               std::to_string(m->state().version) + (m->expelled() ? "x" : "") +
               (m->in_epoch() ? "i" : "");
      }
      Fail("GM-5: not converged; phase " +
           std::string(GroupPhaseName(heads_.back()->core().phase())) + " waiting for " +
           heads_.back()->core().waiting_for() + ";" + who);
    }
  }
  if (options_.only_cut && result_.ok) CheckSides();
  result_.event_hash = network_.event_hash();
  return result_;
}

SimResult RunGroupSimulation(const SimOptions& options) { return World(options).Run(); }

}  // namespace troupe::groups::sim
