// HeadCore as a machine: what goes in, what comes out, and in which order. What it decides is
// tested with the shell around it.
#include "daemons/head/core/head_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/wire.h"
#include "tests/support/memory_spool.h"

namespace troupe::daemons {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr Time kNow{1'000'000'000};

struct NoCoordinators final : groups::Coordinators {
  [[nodiscard]] const groups::Coordinator* Find(const std::string& /*group*/) const override {
    return nullptr;
  }
};

class HeadCoreTest : public ::testing::Test {
 protected:
  HeadCoreTest() {
    core_.Restore(kNow, {});
    (void)Effects();
  }
  // As the shell is to do them; those that wait for the store wait until `kept`.
  std::vector<HeadEffect> Effects(Time now = kNow) {
    std::vector<HeadEffect> all;
    while (std::optional<HeadEffect> effect = core_.Next(now)) {
      if (const auto* wait = std::get_if<step::AwaitKept>(&*effect)) waits_.push_back(*wait);
      all.push_back(std::move(*effect));
    }
    return all;
  }
  std::vector<HeadEffect> Kept() {
    for (const step::AwaitKept& wait : std::exchange(waits_, {})) core_.Put(*wait.step);
    return Effects();
  }
  template <class T>
  std::vector<HeadEffect> Hear(const std::string& from, uint8_t type, const T& message) {
    core_.Put(step::Frame{from, wire::Encode(type, message)});
    return Effects();
  }
  std::vector<HeadEffect> Join() {
    NodeHello hello;
    hello.node = "n";
    hello.incarnation = 1;
    hello.host = "h";
    hello.resources = {{"CPU", 4}};
    return Hear("node-n", kFrameNodeHello, hello);
  }
  std::vector<HeadEffect> CreateActor() {
    actors::CreateActor create;
    create.request = 7;
    create.spec.actor = "a";
    create.spec.type = "T";
    create.spec.owner = "driver/d";
    create.spec.wish.resources = {{"CPU", 1}};
    return Hear("d", actors::kFrameCreateActor, create);
  }
  // The keys that are written, and the types of the frames that are sent with their receivers.
  static std::vector<std::string> Described(const std::vector<HeadEffect>& effects) {
    std::vector<std::string> all;
    for (const HeadEffect& effect : effects) {
      if (const auto* keep = std::get_if<step::Keep>(&effect)) all.push_back("keep " + keep->key);
      if (std::holds_alternative<step::AwaitKept>(effect)) all.emplace_back("await");
      if (const auto* send = std::get_if<step::Send>(&effect)) {
        all.push_back(std::to_string(*wire::PeekType(send->frame)) + " to " + send->to);
      }
    }
    return all;
  }

  NoCoordinators coordinators_;
  MemorySpool spool_;
  HeadCore core_{HeadOptions{}, "id", &coordinators_, &spool_};
  std::vector<step::AwaitKept> waits_;
};

const std::string kStartFrame = std::to_string(kFrameStartWorker) + " to node-n";
const std::string kAnswer = std::to_string(actors::kFrameActorAnswer) + " to d";

TEST_F(HeadCoreTest, PromisesAndOrdersWaitUntilAllThatTheyRestOnIsKept) {
  Join();
  // The place is noted as well: were the order given before, a next head could give it again.
  EXPECT_THAT(Described(CreateActor()), ElementsAre("keep actor/a/spec", "keep actor/a/life",
                                                    "keep actor/a/life", "await", "await"));
  EXPECT_THAT(Described(Kept()), ElementsAre(kAnswer, kStartFrame));
}

TEST_F(HeadCoreTest, WhatIsDueComesByItself) {
  Join();
  const Time tick = core_.WakeAt();
  ASSERT_NE(tick, Time::Never());
  EXPECT_THAT(Effects(tick - nanoseconds(1)), IsEmpty());
  (void)Effects(tick);
  EXPECT_GT(core_.WakeAt(), tick);
}

TEST_F(HeadCoreTest, FramesThatCannotBeReadAreToldInTheLog) {
  core_.Put(step::Frame{"d", "no frame"});
  std::vector<std::string> words;
  for (const HeadEffect& effect : Effects())
    if (const auto* log = std::get_if<step::Log>(&effect)) words.push_back(log->text);
  EXPECT_THAT(words, Contains(StartsWith("dropped a frame")));
}

}  // namespace
}  // namespace troupe::daemons
