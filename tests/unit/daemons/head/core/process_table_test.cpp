// PT-1 to PT-3: what is missed, what is killed again, and that each is told once.
#include "daemons/head/core/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ProcessTableTest : public ::testing::Test {
 protected:
  static NodeHello Hello(const std::vector<std::string>& running,
                         const std::vector<std::string>& ended = {}) {
    NodeHello hello;
    hello.node = "n";
    hello.host = "h";
    for (const std::string& name : running) hello.workers.push_back({name, 7, "run", false, {}});
    for (const std::string& name : ended) hello.workers.push_back({name, 7, "run", true, {}});
    return hello;
  }
  void Add(const std::string& name) {
    table_.Add(now_, name, "n", {"a", 1, {}});
    table_.Ordered(name);
  }
  ProcessTable::Heard Hear(uint64_t answered, const std::vector<std::string>& running,
                           const std::vector<std::string>& ended = {}) {
    return table_.OnHello(now_, Hello(running, ended), answered);
  }

  Time now_{1'000'000'000};
  ProcessTable table_;
};

TEST_F(ProcessTableTest, IsMissedWhenAnAnswerFromAfterItsOrderHadArrived) {  // PT-1
  (void)table_.NextAnswer("n");
  Add("p");
  EXPECT_THAT(Hear(0, {}).missing, IsEmpty()) << "nothing of ours had arrived";
  EXPECT_THAT(Hear(1, {}).missing, IsEmpty()) << "the order may be on its way behind the answer";
  EXPECT_THAT(Hear(2, {}).missing, ElementsAre("p"));
}

TEST_F(ProcessTableTest, IsNotMissedBeforeItIsOrdered) {  // PT-1
  table_.Add(now_, "p", "n", {"a", 1, {}});
  EXPECT_THAT(Hear(99, {}).missing, IsEmpty());
  table_.Ordered("p");
  EXPECT_THAT(Hear(1, {}).missing, ElementsAre("p"));
}

// One from before a restart of the head was ordered by another one.
TEST_F(ProcessTableTest, OneThatWasFoundIsMissedAfterTheNextAnswer) {  // PT-1
  (void)table_.NextAnswer("n");
  table_.Adopt(now_, "p", "n", {"a", 1, {}});
  EXPECT_FALSE(table_.Find("p")->began());
  EXPECT_THAT(Hear(0, {"p"}).missing, IsEmpty());
  EXPECT_TRUE(table_.Find("p")->began());
  EXPECT_EQ(table_.Find("p")->pid, 7);
  EXPECT_EQ(table_.Find("p")->host, "h");
  EXPECT_THAT(Hear(1, {}).missing, IsEmpty()) << "a hello that was written before it began";
  EXPECT_THAT(Hear(2, {}).missing, ElementsAre("p"));
}

TEST_F(ProcessTableTest, FindingWhatIsKnownChangesNothing) {
  Add("p");
  (void)table_.NextAnswer("n");
  table_.Adopt(now_ + seconds(1), "p", "m", {});
  EXPECT_EQ(table_.Find("p")->owner.actor, "a");
  EXPECT_FALSE(table_.Find("p")->found);
  EXPECT_THAT(Hear(1, {}).missing, ElementsAre("p")) << "its order was before that answer";
}

TEST_F(ProcessTableTest, OfAnotherNodeIsNotMissed) {
  table_.Add(now_, "p", "m", {});
  table_.Ordered("p");
  EXPECT_THAT(Hear(99, {}).missing, IsEmpty());
  EXPECT_THAT(table_.On("m"), ElementsAre("p"));
  EXPECT_THAT(table_.On("n"), IsEmpty());
}

TEST_F(ProcessTableTest, OneThatShouldHaveEndedIsKilledAgain) {  // PT-2
  Add("p");
  EXPECT_THAT(Hear(0, {"p"}).overdue, IsEmpty());
  table_.EndBy("p", now_ + seconds(3));
  table_.EndBy("p", now_ + seconds(9));  // Not later for that.
  EXPECT_THAT(Hear(0, {"p"}).overdue, IsEmpty());
  now_ = now_ + seconds(3);
  EXPECT_THAT(Hear(0, {"p"}).overdue, ElementsAre("p"));
  EXPECT_THAT(Hear(0, {"p"}).overdue, IsEmpty());
  now_ = now_ + kKillAgain;
  EXPECT_THAT(Hear(0, {"p"}).overdue, ElementsAre("p"));
  now_ = now_ + kKillAgain;
  const ProcessTable::Heard heard = Hear(0, {}, {"p"});
  EXPECT_THAT(heard.overdue, IsEmpty()) << "it has ended, and is to be reaped";
  EXPECT_THAT(heard.ended, ElementsAre("p"));
  EXPECT_THAT(heard.missing, IsEmpty());
}

TEST_F(ProcessTableTest, WhatIsNotThereIsNotTold) {  // PT-3
  const ProcessTable::Heard heard = Hear(9, {"p"}, {"q"});
  EXPECT_THAT(heard.ended, IsEmpty());
  EXPECT_THAT(heard.overdue, IsEmpty());
  table_.EndBy("p", now_);
  table_.Ordered("p");
  EXPECT_EQ(table_.Find("p"), nullptr);
}

TEST_F(ProcessTableTest, AddingAgainChangesNothing) {
  Add("p");
  (void)Hear(0, {"p"});
  const HeadProcess& same = table_.Add(now_ + seconds(1), "p", "m", {});
  EXPECT_EQ(same.node, "n");
  EXPECT_EQ(same.since, now_);
  EXPECT_EQ(same.owner.actor, "a");
}

// A node that starts what arrives, a head that is restarted, and orders, answers and hellos that
// are lost or late at random.
class Walk {
 public:
  explicit Walk(uint32_t seed) : random_(seed) {}

  void Turn() {
    now_ = now_ + milliseconds(500);
    if (Chance(30)) {
      table_ = ProcessTable();
      answered_ = 0;  // By this head.
      late_.clear();
    }
    if (Chance(2)) {
      const std::string name = "p" + std::to_string(next_++);
      table_.Add(now_, name, "n", {});
      table_.Ordered(name);
      if (!Chance(4)) alive_.insert(name);
    } else if (!alive_.empty() && Chance(2)) {
      alive_.erase(std::next(alive_.begin(), static_cast<int>(random_() % alive_.size())));
    }
    if (Chance(4)) late_.push_back(Say());
    if (!Chance(4)) Hear(Say(), !Chance(4));
    if (!late_.empty() && Chance(4)) {
      Hear(late_.front(), false);
      late_.erase(late_.begin());
    }
  }
  // Nothing is lost any more.
  void Settle() {
    for (int i = 0; i < 3; ++i) Hear(Say(), true);
  }
  [[nodiscard]] std::set<std::string> known() const {
    std::set<std::string> names;
    for (const auto& [name, process] : table_.all()) names.insert(name);
    return names;
  }
  [[nodiscard]] const std::set<std::string>& alive() const { return alive_; }
  [[nodiscard]] const std::set<std::string>& wronged() const { return wronged_; }

 private:
  struct Said {
    NodeHello hello;
    uint64_t answered;
  };
  bool Chance(uint32_t of) { return random_() % of == 0; }
  Said Say() {
    NodeHello hello;
    hello.node = "n";
    for (const std::string& name : alive_) hello.workers.push_back({name, 1, "run", false, {}});
    return {hello, answered_};
  }
  void Hear(const Said& said, bool answer) {
    for (const RunningWorker& listed : said.hello.workers)
      table_.Adopt(now_, listed.process, "n", {});
    for (const std::string& name : table_.OnHello(now_, said.hello, said.answered).missing) {
      if (alive_.contains(name)) wronged_.insert(name);
      table_.Remove(name);
    }
    const uint64_t number = table_.NextAnswer("n");
    if (answer) answered_ = number;
  }

  std::mt19937 random_;
  ProcessTable table_;
  std::set<std::string> alive_;
  std::set<std::string> wronged_;  // Missed although they were alive.
  std::vector<Said> late_;
  uint64_t answered_ = 0;
  Time now_{1'000'000'000};
  int next_ = 0;
};

TEST(ProcessTableWalk, MissesExactlyWhatIsGone) {  // PT-1
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    Walk walk(seed);
    for (int turn = 0; turn < 200; ++turn) walk.Turn();
    walk.Settle();
    ASSERT_EQ(walk.wronged(), std::set<std::string>{}) << "seed " << seed;
    ASSERT_EQ(walk.known(), walk.alive()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::daemons
