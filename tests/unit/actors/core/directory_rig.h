// A directory without a head around it: what it wants done is told as texts.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/core/directory.h"

namespace troupe::actors::testing {

inline constexpr Time kNow{1'000'000'000};
inline const Error kCrash{ErrorCode::kPeerGone, "killed by signal 9"};

inline std::string Text(const DirectoryAction& action) {
  if (const auto* want = std::get_if<WantPlace>(&action))
    return "want " + want->actor + "#" + std::to_string(want->incarnation);
  if (const auto* drop = std::get_if<DropPlace>(&action))
    return "drop " + drop->actor + "#" + std::to_string(drop->incarnation);
  if (const auto* end = std::get_if<EndProcess>(&action)) return "end " + end->process;
  if (const auto* keep = std::get_if<KeepActor>(&action))
    return (keep->spec ? "keep all of " : "keep ") + keep->actor;
  if (const auto* forget = std::get_if<ForgetActor>(&action)) return "forget " + forget->actor;
  if (const auto* ask = std::get_if<AskToLeave>(&action)) return "ask " + ask->actor;
  return "tell " + std::get<TellActor>(action).actor;
}

class DirectoryTest : public ::testing::Test {
 protected:
  static ActorSpec Spec(const std::string& id, int32_t max_restarts = 0,
                        const std::string& owner = "driver/d") {
    ActorSpec spec;
    spec.actor = id;
    spec.type = "T";
    spec.owner = owner;
    spec.max_restarts = max_restarts;
    spec.blueprint = "blueprint";
    spec.program.argv = {"/bin/p"};
    return spec;
  }
  static ActorSpec Tasks(const std::string& id, const std::string& owner) {
    ActorSpec spec = Spec(id, 0, owner);
    spec.runs_tasks = true;
    return spec;
  }
  // What the last step wanted done.
  std::vector<std::string> Done() {
    std::vector<std::string> texts;
    for (const DirectoryAction& action : std::exchange(actions_, {})) texts.push_back(Text(action));
    return texts;
  }
  Result<ActorAddress> Create(const ActorSpec& spec) {
    return directory_.Create(now_, spec, actions_);
  }
  void Place(const std::string& id, uint64_t incarnation = 1, const std::string& node = "n") {
    directory_.Placed(now_, id, incarnation, node, "p" + id + std::to_string(incarnation),
                      actions_);
  }
  void Ready(const std::string& id, uint64_t incarnation = 1) {
    directory_.Ready(now_, id, incarnation, {"peer-" + id, "ipc://x", ""}, actions_);
  }
  void Die(const std::string& id, uint64_t incarnation = 1, bool constructor = false) {
    directory_.Died(now_, id, incarnation, kCrash, constructor, actions_);
  }
  void Tick(Duration later = {}) {
    now_ = now_ + later;
    directory_.Tick(now_, actions_);
  }
  // An actor that can be called.
  void Alive(const ActorSpec& spec) {
    ASSERT_TRUE(Create(spec).ok());
    Place(spec.actor);
    Ready(spec.actor);
    (void)Done();
  }
  [[nodiscard]] ActorState State(const std::string& id) const { return directory_.Where(id).state; }
  [[nodiscard]] std::string Reason(const std::string& id) const {
    const ErrorChain reason = directory_.Where(id).reason;
    return reason.empty() ? "" : reason[0].message;
  }

  Time now_ = kNow;
  Directory directory_;
  DirectoryActions actions_;
};

}  // namespace troupe::actors::testing
