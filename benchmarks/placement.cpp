// The cluster scheduler under load: 10,000 nodes of four kinds, 100,000 leases of 60 shapes live.
//
//   placement        one Request step that grants, while the cluster fills (p50, p99, max)
//   placement_churn  one Request step after a Release, with the cluster full of leases
//   placement_to_full, placement_full  one Request step while room runs out, and when it has
//   placement_rate   grants per second over both
//   placement_p99    their 99th percentile
//   placement_bytes  resident memory per lease
//   group            a placement group of 4 bundles created and removed; group_rate: per second
//   placement_release  one Release step then, whose room goes to those who wait
// The scheduler is the production object; nothing is sent. Prints one JSON line per figure.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace {

using namespace troupe;
using namespace troupe::sched;

constexpr int kNodes = 10'000;
constexpr int kLeases = 100'000;
constexpr int kChurn = 200'000;
constexpr int kWaiting = 20'000;
constexpr int kGroups = 20'000;
constexpr Time kNow{1'000'000'000};

double Micros(Time start) {
  return static_cast<double>((SteadyClock().Now() - start).count()) / 1e3;
}

void Print(const char* name, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"bench\": \"%s\", \"n\": %zu, \"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f, \"unit\": "
      "\"us\"}\n",
      name, us.size(), us[us.size() / 2], us[us.size() * 99 / 100], us.back());
}

void PrintRate(const char* name, size_t n, double value, const char* unit) {
  std::printf("{\"bench\": \"%s\", \"n\": %zu, \"p50\": %.1f, \"unit\": \"%s\"}\n", name, n, value,
              unit);
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  size_t resident = 0;
  statm >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void AddNodes(Scheduler& scheduler, std::mt19937_64& random) {
  const char* kZones[] = {"a", "b", "c"};
  for (int i = 0; i < kNodes; ++i) {
    std::map<std::string, double> total = {
        {"CPU", i % 4 == 0 ? 64 : 32},
        // As machines report it: no two are quite the same.
        {"memory", (i % 4 == 0 ? 256e9 : 128e9) - static_cast<double>(random() % 1000) * 4096}};
    if (i % 5 == 0) total["GPU"] = 8;
    if (i % 50 == 0) total["licence"] = 4;
    const Labels labels = {{"zone", kZones[i % 3]},
                           {"market", i % 2 == 0 ? "spot" : "on-demand"},
                           {"host", "h" + std::to_string(i)}};
    scheduler.Step(kNow,
                   NodeUp{"node-" + std::to_string(i), 1, *ResourceSet::FromMap(total), labels});
  }
}

std::vector<LeaseRequest> Shapes(std::mt19937_64& random) {
  std::vector<LeaseRequest> shapes;
  for (int i = 0; i < 60; ++i) {
    std::map<std::string, double> need = {
        {"CPU", 1 + static_cast<double>(random() % 4)},
        {"memory", 1e9 * (1 + static_cast<double>(random() % 8))}};
    if (i % 6 == 0) need["GPU"] = i % 12 == 0 ? 1 : 0.25;
    LeaseRequest shape;
    shape.resources = *ResourceSet::FromMap(need);
    if (i % 3 == 0) shape.strategy = PlacementStrategy::kSpread;
    if (i % 5 == 0) shape.labels = *LabelSelector::Parse("zone in (a, b), market!=spot");
    if (i % 7 == 0) shape.prefer = *LabelSelector::Parse("zone=c");
    shapes.push_back(shape);
  }
  return shapes;
}

void Stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

class Load {
 public:
  explicit Load(Scheduler& scheduler) : scheduler_(scheduler), shapes_(Shapes(random_)) {}

  // The time of one Request step, in microseconds; its lease is confirmed outside of that time.
  double Ask(bool must_fit) {
    LeaseRequest request = shapes_[random_() % shapes_.size()];
    request.id = "actor-" + std::to_string(++last_);
    const Request event{std::move(request)};
    const Time start = SteadyClock().Now();
    const SchedulerDecision decision = scheduler_.Step(kNow, event);
    const double us = Micros(start);
    if (decision.granted.size() != 1) {
      if (must_fit) Stop(scheduler_.FindLease(event.lease.id)->reason);
      return us;
    }
    scheduler_.Step(kNow, Confirm{event.lease.id, decision.granted[0].node});
    live_.push_back(event.lease.id);
    return us;
  }
  // The time of the step.
  double ReleaseOne() {
    std::swap(live_[random_() % live_.size()], live_.back());
    const Release event{live_.back()};
    live_.pop_back();
    const Time start = SteadyClock().Now();
    const SchedulerDecision decision = scheduler_.Step(kNow, event);
    const double us = Micros(start);
    for (const Granted& granted : decision.granted) live_.push_back(granted.lease);
    return us;
  }
  [[nodiscard]] size_t live() const { return live_.size(); }

 private:
  Scheduler& scheduler_;
  std::mt19937_64 random_{7};
  std::vector<LeaseRequest> shapes_;
  std::vector<std::string> live_;
  size_t last_ = 0;
};

void RunGroups(Scheduler& scheduler) {
  std::vector<double> us;
  const Time start = SteadyClock().Now();
  for (int i = 0; i < kGroups; ++i) {
    CreateGroup group;
    group.group = "group-" + std::to_string(i);
    group.bundles.assign(4, BundleSpec{*ResourceSet::FromMap({{"CPU", 1}, {"GPU", 1}}), {}});
    group.strategy = i % 2 == 0 ? PlacementStrategy::kPack : PlacementStrategy::kStrictSpread;
    const Time before = SteadyClock().Now();
    const SchedulerDecision decision = scheduler.Step(kNow, group);
    if (decision.groups.at(0).state != GroupState::kPlaced) Stop("a group was not placed");
    scheduler.Step(kNow, RemoveGroup{group.group});
    us.push_back(Micros(before));
  }
  const double elapsed = Micros(start);
  Print("group", us);
  PrintRate("group_rate", us.size(), kGroups / elapsed * 1e6, "create+remove/s");
}

}  // namespace

int main() {
  Scheduler scheduler{SchedulerOptions{}};
  std::mt19937_64 random(1);
  AddNodes(scheduler, random);
  Load load(scheduler);
  load.Ask(true);
  const double before = ResidentBytes();
  std::vector<double> fill;
  for (int i = 1; i < kLeases; ++i) fill.push_back(load.Ask(true));
  const double bytes = (ResidentBytes() - before) / kLeases;
  std::vector<double> churn;
  for (int i = 0; i < kChurn; ++i) {
    load.ReleaseOne();
    churn.push_back(load.Ask(true));
  }
  std::vector<double> both = fill;
  both.insert(both.end(), churn.begin(), churn.end());
  std::sort(both.begin(), both.end());
  const double sum = std::accumulate(both.begin(), both.end(), 0.0);
  PrintRate("placement_rate", both.size(), static_cast<double>(both.size()) / sum * 1e6,
            "grants/s");
  PrintRate("placement_p99", both.size(), both[both.size() * 99 / 100], "us");
  Print("placement", std::move(fill));
  Print("placement_churn", std::move(churn));
  PrintRate("placement_bytes", kLeases, bytes, "bytes/lease");
  RunGroups(scheduler);
  // Until shape after shape finds no room any more; each of these steps may be such a search.
  std::vector<double> last;
  const size_t live = load.live();
  while (load.live() < 4 * live && last.size() < 4 * live) last.push_back(load.Ask(false));
  Print("placement_to_full", std::move(last));
  std::vector<double> full;
  for (int i = 0; i < kWaiting; ++i) full.push_back(load.Ask(false));
  Print("placement_full", std::move(full));
  std::vector<double> release;
  for (int i = 0; i < kChurn; ++i) release.push_back(load.ReleaseOne());
  Print("placement_release", std::move(release));
  return 0;
}
