// Members of one group as threads of a test: real agents and communicators over links in memory.
// The test is their coordinator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective_groups/membership/group_agent.h"
#include "tests/unit/torch/one_member.h"
#include "tests/unit/torch/watched_communicator.h"

namespace troupe::elastic {

class ThreadMembers {
 public:
  struct Peer {
    Peer(ThreadMembers& all, uint32_t slot_, std::string host_)
        : slot(slot_),
          host(std::move(host_)),
          communicator(
              new WatchedCommunicator(MakeCommunicator(MakeLocalLinks(all.exchange_), "").value())),
          agent({IdOf(*this), host, ""}, &loop, std::unique_ptr<Communicator>(communicator),
                [this, &all](const Report& r) {
                  std::lock_guard lock(all.mu_);
                  newest = r;
                  all.changed_.notify_all();
                }) {}
    const uint32_t slot;
    const std::string host;
    Report newest;  // Guarded by mu_.
    StillLoop loop;
    WatchedCommunicator* const communicator;  // Owned by the agent.
    GroupAgent agent;
    std::thread thread;
  };

  ~ThreadMembers() { Join(); }

  static MemberId IdOf(const Peer& peer) { return {"w" + std::to_string(peer.slot), 1}; }

  Peer& Add(const std::string& host = "h") {
    const auto slot = static_cast<uint32_t>(peers_.size());
    return *peers_.emplace_back(std::make_unique<Peer>(*this, slot, host));
  }
  // These enter the next epoch, from wherever they are. All must be ready, or become it.
  void NextEpoch(const std::vector<Peer*>& who) {
    View view{"g", epoch() + 1, {}, ""};
    for (const Peer* peer : who)
      view.members.push_back({IdOf(*peer), peer->slot + 1, peer->slot, peer->host, "", 0, false});
    Tell(CommandKind::kPrepare, view, who);
    {  // Who has waited for this can only come out now: a step more would put it ahead of others.
      std::lock_guard lock(mu_);
      epoch_ = view.epoch;
      changed_.notify_all();
    }
    ASSERT_TRUE(Reached(MemberState::kPrepared, view.epoch, who));
    for (size_t i = 0; i < who.size(); ++i) {
      std::lock_guard lock(mu_);
      view.members[i].version = who[i]->newest.version;
      view.members[i].has_state = who[i]->newest.has_state;
    }
    for (const Peer* a : who) {
      for (const Peer* b : who) {
        if (a == b) continue;
        (void)a->communicator->Offer(a->slot, b->slot, "");
        ASSERT_TRUE(a->communicator->Link(b->slot, "rlocal").ok());
      }
    }
    Tell(CommandKind::kInstall, view, who);
    ASSERT_TRUE(Reached(MemberState::kLinked, view.epoch, who));
    Tell(CommandKind::kActivate, view, who);
  }
  // Waits until the test has begun to bring members into this epoch.
  bool WaitEpoch(Epoch epoch) {
    return Wait([&] { return epoch_ >= epoch; });
  }
  [[nodiscard]] Epoch epoch() {
    std::lock_guard lock(mu_);
    return epoch_;
  }
  // Events of the test's own.
  void Note(const std::string& event) {
    std::lock_guard lock(mu_);
    events_.push_back(event);
    changed_.notify_all();
  }
  bool WaitFor(const std::string& event, int64_t times = 1) {
    return Wait([&] { return std::count(events_.begin(), events_.end(), event) >= times; });
  }
  void Join() {
    for (auto& peer : peers_) {
      if (peer->thread.joinable()) peer->thread.join();
    }
  }

 private:
  template <class Condition>
  bool Wait(Condition condition) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, seconds(20), condition);
  }
  static void Tell(CommandKind kind, const View& view, const std::vector<Peer*>& who) {
    Command command;
    command.kind = kind;
    command.epoch = view.epoch;
    command.view = view;
    for (Peer* peer : who) peer->agent.OnCommand(command);
  }
  bool Reached(MemberState state, Epoch epoch, const std::vector<Peer*>& who) {
    return Wait([&] {
      return std::all_of(who.begin(), who.end(), [&](const Peer* peer) {
        return peer->newest.state == state && peer->newest.epoch == epoch;
      });
    });
  }

  const std::shared_ptr<LocalExchange> exchange_ = MakeLocalExchange();
  std::mutex mu_;
  std::condition_variable changed_;
  Epoch epoch_ = 0;
  std::vector<std::string> events_;
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace troupe::elastic
