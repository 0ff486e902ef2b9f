// What must hold in the cluster simulation.
#include "tests/sim/cluster/sim_actors.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_driver.h"
#include "tests/sim/cluster/sim_node.h"
#include "tests/sim/cluster/sim_training.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kCrowded =
    milliseconds(500);  // From a hello to the end of who is taken for dead.

}  // namespace

void World::CheckProcesses() {
  std::set<std::string> lives;  // Of actors, the run's among them.
  for (const auto& [host, node] : nodes_) {
    double used = 0;
    std::string ids;
    for (const SimWorker* worker : node->workers()) {
      if (!worker->assigned()) continue;
      // A stopped one cannot say to another head whose it is.
      used += worker->port().frozen() ? 0 : 1;
      ids += " " + worker->lease();
      if (!lives.insert(worker->lease()).second) Fail("two processes host " + worker->lease());
    }
    // Who was taken for dead is on its way out when its node comes back.
    Time& since = crowded_.try_emplace(host, Time::Never()).first->second;
    since = used > node->cpus() ? std::min(since, Now()) : Time::Never();
    if (since != Time::Never() && Now() > since + kCrowded)
      Fail("node " + node->id() + " has room for " + std::to_string(node->cpus()) +
           " workers and runs" + ids);
  }
}

std::string World::NotSettled() {
  if (driver_->asking()) return "the driver has no answer";
  if (nodes_.size() < static_cast<size_t>(options_.hosts)) return "a node is not there";
  for (const auto& [host, node] : nodes_)
    if (node->noticed()) return "node " + node->id() + " is on its way out";
  if (std::string why = training(kRun).NotSettled(driver_->target()); !why.empty()) return why;
  if (std::string why = actors_->NotSettled(); !why.empty()) return why;
  if (driver_->epoch() != training(kRun).newest())
    return "the driver was told of epoch " + std::to_string(driver_->epoch()) + ", not of " +
           std::to_string(training(kRun).newest());
  return "";
}

void World::CheckResults() {
  if (driver_->done() != "succeeded")
    Fail("its workers have returned, and it has " + *driver_->done());
  std::set<std::string> values;
  for (const auto& [worker, value] : driver_->results()) values.insert(value);
  if (values.size() != 1) Fail(std::to_string(values.size()) + " different results");
  if (driver_->results().size() != options_.workers)
    Fail(std::to_string(driver_->results().size()) + " results of " +
         std::to_string(options_.workers) + " workers");
}

std::string World::ProcessLeft() {
  for (const SimWorker* worker : Workers()) return "process " + worker->process() + " is left";
  return "";
}

std::string World::KeyLeft() {
  for (const char* prefix :
       {"job/", "group/", "actor/", "actor_group/", "collective/", "placement_group/"}) {
    const auto keys = store_.List(prefix);
    if (!keys.ok()) continue;
    for (const auto& [key, value] : *keys) {
      if (!options_.detached || !key.ends_with("/ended")) return "key " + key + " is left";
    }
  }
  return "";
}

}  // namespace troupe::daemons::sim
