// Nodes on hosts that are there already, reached over SSH as the user does it by hand: with the
// ssh of this host, its configuration, keys and known hosts.
//
//   asked for --started--> listed --Terminate--> ending --> gone
//       +---refused by its host: the next free one is tried
//
// A node is started apart from its SSH session, so that a broken connection ends nothing. What it
// is and what it prints lies in ~/.troupe/fleets there; a process that has taken its number is not
// taken for it. It ends itself when its cluster is gone (its lease), so that a host that cannot be
// reached keeps none for ever. A host is never switched off.
// Invariants: SP-1 no host has more nodes than slots. SP-2 a host that refuses is left alone for a
// while, twice as long each time. SP-3 a host that is no longer told has its nodes noticed, and
// gets no new ones.
// Thread: one; ssh is not waited for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/host_source.h"
#include "autoscaler/node_provider.h"
#include "runtime/clock.h"

namespace troupe {

struct SshProviderOptions {
  ExecCommand ssh;  // Its arguments up to the host's name.
  HostSourceOptions hosts;
  Duration interval = seconds(5);  // Between two looks at a host.
  Duration cooldown = seconds(30);
  Duration cooldown_max = seconds(600);
  Duration drain = seconds(30);   // For nodes of a host that is no longer told.
  Duration lease = seconds(300);  // Of a node.
  std::string fleet;              // Of this life of this cluster: a folder on each host.
  // A shell script that makes `host` the node `id` of `pool`.
  std::function<Result<std::string>(const std::string& id, const std::string& pool,
                                    const std::string& host)>
      boot;
  // Instead of running it; `done` may be called at once.
  HostSource::Run run;
};

class SshProvider final : public NodeProvider, public NoticeSource {
 public:
  SshProvider(const Clock* clock, SshProviderOptions options);

  Result<std::string> Launch(const std::string& token, const std::string& pool) override;
  Status Terminate(const std::string& id) override;
  Result<std::vector<ProviderNode>> List() override;
  std::vector<ProviderFailure> TakeFailures() override { return std::exchange(failures_, {}); }
  bool TakeNewRoom() override { return std::exchange(new_room_, false); }
  bool Step(Time now) override;
  std::vector<Notice> Poll(Time now) override;

 private:
  struct Host {
    HostSlots told;
    bool removed = false;
    Time look_at{};
    bool looking = false;
    bool cooling = false;
    Time cool_until{};
    Duration cooldown{};
    std::string trouble;  // Why it was left alone last.
    std::optional<Time> silent_since;
  };
  struct Node {
    std::string token;
    std::string pool;
    std::string host;  // Empty: it waits for one.
    bool started = false;
    Time started_at{};
    bool terminating = false;
    Time ask_again{};
    int asked = 0;  // How often to end.
    bool noticed = false;
  };

  void Ask(const std::string& host, const std::string& script, ExecDone done);
  void TakeHosts(const std::vector<HostSlots>& told);
  [[nodiscard]] int Taken(const std::string& host) const;
  [[nodiscard]] std::string ChooseHost(Time now, const std::string& pool) const;
  [[nodiscard]] std::string Obstacles(Time now, const std::string& pool) const;
  bool StartWaiting();
  [[nodiscard]] Status Start(const std::string& id, Node& node);
  void Started(const std::string& id, const std::string& host, const Result<ExecReply>& reply);
  void CoolDown(Host& host, const std::string& why);
  void Look(const std::string& name, Host& host);
  void Looked(const std::string& name, Time asked, const Result<ExecReply>& reply);
  void Ended(const std::string& id, const std::string& words);
  void AskToEnd(const std::string& id, Node& node);

  const Clock* const clock_;
  const SshProviderOptions options_;
  CommandPool pool_;
  HostSource source_;
  std::map<std::string, Host> hosts_;
  std::vector<std::string> order_;  // Of hosts, as told.
  std::map<std::string, Node> nodes_;
  std::map<std::string, std::string> launched_;  // Token -> id.
  std::map<std::string, int> last_number_;       // By pool.
  std::vector<ProviderFailure> failures_;
  bool new_room_ = false;
};

}  // namespace troupe
