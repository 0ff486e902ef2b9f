// FleetCensus: who is there of a cluster of a name, whichever `troupe up` has made it. What fences
// two of them from each other, and what ends whatever one has left.
//
// Thread: one; no call waits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autoscaler/machine_source.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

struct CensusNode {
  std::string id;    // As whoever supplies it knows it.
  std::string node;  // As the cluster does.
  std::string life;  // Of the `troupe up` that made it; the older one sorts first.
  bool ending = false;
  auto operator<=>(const CensusNode&) const = default;
};

class FleetCensus {
 public:
  using Answer = std::function<void(Result<std::vector<CensusNode>>)>;

  virtual ~FleetCensus() = default;
  // Of every life of the cluster.
  virtual void List(Answer done) = 0;
  // Begins the end of those nodes; a list shows when it is over. May be asked again.
  virtual void End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) = 0;
  // Where the last list could not look, for people; empty: it is whole.
  [[nodiscard]] virtual std::string Unknown() const { return ""; }
};

// Of those that are machines of a source, told by their tags. Whoever owns the source steps it.
class MachineCensus final : public FleetCensus {
 public:
  MachineCensus(MachineSource* source, std::string cluster)
      : source_(source), cluster_(std::move(cluster)) {}

  void List(Answer done) override;
  void End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) override;

 private:
  MachineSource* const source_;
  const std::string cluster_;
};

// Of those that end with their `troupe up`, whatever way it goes.
class EmptyCensus final : public FleetCensus {
 public:
  void List(Answer done) override { done(std::vector<CensusNode>{}); }
  void End(const std::vector<CensusNode>&, std::function<void(Status)> done) override {
    done(Status::Ok());
  }
};

// A name for a new life: those that begin later sort behind it, as far as clocks agree.
[[nodiscard]] std::string NewLife(double unix_s);
// When it began, in seconds since 1970; 0 if the name does not tell.
[[nodiscard]] double BeginOfLife(const std::string& life);
// "spot-1 (i-123), spot-2 (i-124) and 3 more".
[[nodiscard]] std::string NamesOf(std::vector<CensusNode> nodes);

}  // namespace troupe
