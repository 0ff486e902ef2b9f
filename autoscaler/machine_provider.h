// Nodes that are machines of a MachineSource.
//
// They are told apart by tags: ours carry the cluster's name and the life of this autoscaler;
// others are left alone. A node is shown from when it is asked for, and for kMachineListLag after
// it was made without being listed, since a source's list may lag behind. One whose making was not
// answered for is adopted when it is listed. One that ends by itself is told, if it is said why.
// Thread: one; the source is not waited for.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/machine_source.h"
#include "autoscaler/node_provider.h"
#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kMachineListLag = seconds(60);

struct MachineProviderOptions {
  Duration interval = seconds(5);  // Between two listings, unless something has changed.
  std::string cluster;
  std::string life;  // Of this autoscaler; no other one has it.
  // A shell script that makes a machine the node `id` of `pool`.
  std::function<Result<std::string>(const std::string& id, const std::string& pool)> boot;
};

class MachineProvider final : public NodeProvider, public NoticeSource {
 public:
  MachineProvider(const Clock* clock, MachineSource* source, MachineProviderOptions options);

  Result<std::string> Launch(const std::string& token, const std::string& pool) override;
  Status Terminate(const std::string& id) override;
  void WantWords(const std::string& id) override;
  Result<std::vector<ProviderNode>> List() override;
  std::vector<ProviderFailure> TakeFailures() override { return std::exchange(failures_, {}); }
  std::map<std::string, double> TakePrices() override { return source_->TakePrices(); }
  bool Step(Time now) override { return source_->Step(now); }
  // Nodes that the source says will be taken back, each once.
  std::vector<Notice> Poll(Time now) override;
  [[nodiscard]] Time next_wake() const { return list_at_; }

 private:
  struct Node {
    std::string machine;
    std::string token;
    std::string pool;
    std::string detail;
    Time made_at;
    bool asked_for = false;  // Nothing is known of it yet.
    bool listed = false;
    bool terminating = false;
    Time ask_again;       // To end it, if it is still listed then.
    std::string trouble;  // With its end, as it was told last.
    enum class Words { kNotWanted, kWanted, kAsked } words = Words::kNotWanted;
    bool noticed = false;
    std::optional<Time> preempted_at;
  };

  void Made(const std::string& id, Result<std::vector<Machine>> made);
  void AskToEnd(Time now, const std::string& id, Node& node);
  void Ended(const std::string& id, const Status& status);
  bool AskForWords(const std::string& id, Node& node);
  void HasPrinted(const std::string& id, const std::string& words);
  void Refresh();
  void Listed(const Result<std::vector<Machine>>& listed);
  std::vector<const Machine*> OneOfEach(const std::vector<Machine>& listed);
  void Take(Time now, const std::vector<Machine>& listed);

  const Clock* const clock_;
  MachineSource* const source_;
  const MachineProviderOptions options_;
  std::map<std::string, Node> nodes_;            // By our ids.
  std::map<std::string, std::string> launched_;  // Token -> id.
  std::map<std::string, int> last_number_;       // By pool.
  std::vector<ProviderFailure> failures_;
  Status listed_ = Status::Ok();  // How the last listing went.
  bool listing_ = false;          // One is under way.
  Time list_at_{};
};

}  // namespace troupe
