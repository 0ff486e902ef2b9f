// A group agent that is in a view of two, in which the other member is played.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective_groups/membership/group_agent.h"
#include "tests/unit/torch/played_peer.h"

namespace troupe::elastic {

// Never turns: the tests give every command themselves.
class StillLoop final : public EventLoop {
 public:
  [[nodiscard]] Time Now() const override { return SteadyClock().Now(); }
  void Post(std::function<void()>) override {}
  TimerId CallAt(Time, std::function<void()>) override { return kNoTimer; }
  void Cancel(TimerId) override {}
  void WatchFd(int, std::function<void()>) override {}
  void UnwatchFd(int) override {}
};

// Member "w<rank>#1" of a view of two.
class OneMember {
 public:
  explicit OneMember(int rank = 0)
      : rank_(rank),
        agent_({{"w" + std::to_string(rank), 1}, "h", ""}, &loop_,
               std::unique_ptr<Communicator>(peer_), [this](const Report& r) {
                 std::lock_guard lock(mu_);
                 newest_ = r;
                 told_.notify_all();
               }) {
    peer_->rank = rank;
  }

  // Enters the epoch; `versions` are those of the two members, -1 for none.
  void Enter(Epoch epoch, std::vector<int> versions = {-1, -1}) {
    const bool has = versions[static_cast<size_t>(rank_)] >= 0;
    agent_.Ready(has ? static_cast<uint64_t>(versions[static_cast<size_t>(rank_)]) : 0, has);
    Tell(CommandKind::kPrepare, epoch, versions);
    ASSERT_TRUE(Reached(MemberState::kPrepared));
    Tell(CommandKind::kInstall, epoch, versions);
    ASSERT_TRUE(Reached(MemberState::kLinked));
    Tell(CommandKind::kActivate, epoch, versions);
    ASSERT_TRUE(agent_.WaitActive(seconds(10)).ok());
  }
  GroupAgent& agent() { return agent_; }
  PlayedPeer& peer() { return *peer_; }

 private:
  void Tell(CommandKind kind, Epoch epoch, const std::vector<int>& versions) {
    Command command;
    command.kind = kind;
    command.epoch = epoch;
    command.view = View{"g", epoch, {}, ""};
    for (uint32_t i = 0; i < 2; ++i) {
      const bool has = versions[i] >= 0;
      command.view.members.push_back({{"w" + std::to_string(i), 1},
                                      i + 1,
                                      i,
                                      "h",
                                      "",
                                      has ? static_cast<uint64_t>(versions[i]) : 0,
                                      has});
    }
    agent_.OnCommand(command);
  }
  bool Reached(MemberState state) {
    std::unique_lock lock(mu_);
    return told_.wait_for(lock, seconds(10), [&] { return newest_.state == state; });
  }

  const int rank_;
  std::mutex mu_;
  std::condition_variable told_;
  Report newest_;
  StillLoop loop_;
  PlayedPeer* const peer_ = new PlayedPeer;  // Owned by the agent.
  GroupAgent agent_;
};

}  // namespace troupe::elastic
