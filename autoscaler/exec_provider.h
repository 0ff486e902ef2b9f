// Nodes that a program of the user's supplies: anything that can be asked for machines.
//
// The program is called once per request and keeps what it must know by itself
// (autoscaler/exec_protocol.h). Nodes are told apart by tags: ours carry the cluster's name and the
// life of this autoscaler; others are left alone. A node that was made is shown at once, and for
// kExecListLag without being listed, since a supplier's list may lag behind.
// Thread: one; the program is not waited for.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/exec_protocol.h"
#include "autoscaler/node_provider.h"
#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kExecListLag = seconds(60);

struct ExecProviderOptions {
  ExecCommand command;
  Duration interval = seconds(5);  // Between two listings, unless something has changed.
  std::string cluster;
  std::string life;  // Of this autoscaler; no other one has it.
  // A shell script that makes a machine the node `id` of `pool`.
  std::function<Result<std::string>(const std::string& id, const std::string& pool)> boot;
  // Instead of running it; `done` may be called at once.
  std::function<void(const ExecCommand&, std::string input, ExecDone done)> run;
};

class ExecProvider final : public NodeProvider, public NoticeSource {
 public:
  ExecProvider(const Clock* clock, ExecProviderOptions options);

  Result<std::string> Launch(const std::string& token, const std::string& pool) override;
  Status Terminate(const std::string& id) override;
  Result<std::vector<ProviderNode>> List() override;
  std::vector<ProviderFailure> TakeFailures() override { return std::exchange(failures_, {}); }
  bool Step(Time now) override { return pool_.Step(now); }
  // Nodes that the program says will be taken back, each once.
  std::vector<Notice> Poll(Time now) override;
  // Nodes of this cluster that an autoscaler before this one has made, by the supplier's ids.
  [[nodiscard]] const std::set<std::string>& strangers() const { return strangers_; }
  [[nodiscard]] Time next_wake() const { return list_at_; }

 private:
  struct Node {
    std::string supplier_id;
    std::string token;
    std::string pool;
    std::string detail;
    Time made_at;
    bool asked_for = false;  // Nothing is known of it yet.
    bool listed = false;
    bool terminating = false;
    Time ask_again;       // To end it, if it is still listed then.
    std::string trouble;  // With its end, as it was told last.
    bool noticed = false;
    std::optional<Time> preempted_at;
  };

  using Answer = std::function<void(const Result<std::string>& reply)>;

  void Ask(std::string_view verb, const std::string& request, Answer answer);
  void Made(const std::string& id, const Result<std::string>& reply);
  void AskToEnd(Time now, const std::string& id, Node& node);
  void Ended(const std::string& id, const Status& status);
  void Refresh();
  void Listed(const Result<std::string>& reply);
  void Take(Time now, const std::vector<ExecNode>& listed);

  const Clock* const clock_;
  const ExecProviderOptions options_;
  std::map<std::string, Node> nodes_;            // By our ids.
  std::map<std::string, std::string> launched_;  // Token -> id.
  std::map<std::string, int> last_number_;       // By pool.
  std::set<std::string> strangers_;
  std::vector<ProviderFailure> failures_;
  Status listed_ = Status::Ok();  // How the last listing went.
  bool listing_ = false;          // One is under way.
  Time list_at_{};
  CommandPool pool_;
};

}  // namespace troupe
