// A simulated worker process: it hosts an actor, which is a worker of the run or a member of
// collective groups of actors, or does nothing.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "daemons/protocol/messages.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_member.h"

namespace troupe::daemons::sim {

class SimWorker {
 public:
  SimWorker(World* world, SimNode* node, const StartWorker& start);

  [[nodiscard]] const std::string& process() const { return process_; }
  [[nodiscard]] const std::string& lease() const { return start_.lease; }
  [[nodiscard]] int64_t pid() const { return pid_; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool assigned() const { return member_ != nullptr || !actor_.empty(); }
  // Of the run; null: it is none.
  [[nodiscard]] const SimMember* member() const { return member_.get(); }
  // That it hosts beside the run's; empty: none.
  [[nodiscard]] const std::string& actor() const { return actor_; }
  [[nodiscard]] uint64_t actor_incarnation() const { return actor_incarnation_; }
  [[nodiscard]] const std::string& host() const { return port_.host(); }
  [[nodiscard]] const std::string& node() const { return node_id_; }
  [[nodiscard]] SimPort& port() { return port_; }
  [[nodiscard]] const SimPort& port() const { return port_; }

  // By a signal, or by its own end; its node notices.
  void Die(int signal);
  void Freeze(bool frozen) { port_.Freeze(frozen); }
  void Later(Duration delay, std::function<void()> fn);

 private:
  void Hello(bool again);
  void OnFrame(const std::string& frame);
  void OnAssignment(const Assignment& assignment);
  void OnRunOver(SimMember::Over how);
  void SayResult(const std::string& payload, bool ok = true);
  // The next part that the head does not have; false: it has all.
  bool SendPart(const std::string& payload);
  // In one of the collective groups of its actor.
  struct Membership {
    SimTraining* training = nullptr;
    uint64_t joining = 0;  // The request; 0: there is none.
    uint64_t joined = 0;   // The last that was answered,
    uint64_t number = 0;   // with this.
    std::unique_ptr<SimMember> member;
  };
  // Asks to be in it, until it is answered.
  void Join(Membership& membership);
  void RepeatJoin(Membership& membership, uint64_t request);
  void OnJoined(const actors::ActorAnswer& answer);
  void Enter(Membership& membership, const actors::CollectiveStatus& joined);
  // CG-2 and CG-3, of an answer.
  void CheckRepeat(const actors::ActorAnswer& answer);
  void CheckKept(const std::string& group, const actors::CollectiveStatus& joined);
  void OnOver(Membership& membership, SimMember::Over how);

  World* const world_;
  SimNode* const node_;
  const std::string node_id_;
  const StartWorker start_;
  const std::string process_;
  const int64_t pid_;
  SimPort port_;
  bool alive_ = true;
  bool released_ = false;
  Assignment assignment_;
  std::unique_ptr<SimMember> member_;
  uint64_t kept_ = 0;  // Of a result that goes in parts, at the head.
  std::string actor_;
  uint64_t actor_incarnation_ = 0;
  uint64_t next_request_ = 1;
  std::vector<Membership> memberships_;           // Does not grow once it is used.
  std::vector<std::unique_ptr<SimMember>> past_;  // Which may be in the middle of something.
};

}  // namespace troupe::daemons::sim
