// Collective groups of actors at the head: who joins, leaves or dies, and restarts of the head.
#include "daemons/head/core/collective_groups.h"

#include "actors/core/error_chain.h"
#include "collective_groups/membership/group_keys.h"
#include "collective_groups/membership/messages.h"
#include "tests/unit/daemons/head/core/head_actors_rig.h"

namespace troupe::daemons::testing {
namespace {

using actors::CollectiveVerb;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CollectiveGroupsTest : public HeadActorsTest {
 protected:
  CollectiveGroupsTest() {
    on_sent_ = [this](const std::string& to, const std::string& frame) {
      if (*wire::PeekType(frame) != kFrameGroupCommand) return;
      const GroupFrame outer = *wire::Decode<GroupFrame>(kFrameGroupCommand, frame);
      commands_.emplace_back(to, *wire::Decode<groups::Command>(kFrameGroupCommand, outer.body));
    };
    NodeSays();
  }
  // The answer of the head.
  actors::ActorAnswer Ask(const std::string& from, actors::CollectiveRequest request) {
    if (request.request == 0) request.request = ++request_;
    Say(actors::kFrameCollectiveRequest, from, request);
    Pass(milliseconds(100));
    const std::vector<actors::ActorAnswer> answers = Answers();
    for (const actors::ActorAnswer& answer : answers)
      if (answer.request == request.request) return answer;
    ADD_FAILURE() << "no answer";
    return {};
  }
  static actors::CollectiveRequest Join(const std::string& actor, int rank, uint32_t size,
                                        uint64_t incarnation = 1) {
    actors::CollectiveRequest request;
    request.verb = CollectiveVerb::kJoin;
    request.spec.name = "g";
    request.spec.size = size;
    request.actor = actor;
    request.incarnation = incarnation;
    request.rank = rank;
    return request;
  }
  actors::ActorAnswer Do(CollectiveVerb verb, const std::string& from = "driver",
                         const std::string& actor = "") {
    actors::CollectiveRequest request;
    request.verb = verb;
    request.spec.name = "g";
    request.actor = actor;
    request.incarnation = 1;
    return Ask(from, request);
  }
  static std::string ErrorOf(const actors::ActorAnswer& answer) {
    return answer.error.empty() ? "" : actors::FromChain(answer.error).message;
  }
  void Report(const std::string& process, const std::string& actor, uint64_t number,
              groups::MemberState state = groups::MemberState::kReady) {
    groups::Report report;
    report.id = {actor, number};
    report.sequence = ++sequence_;
    report.host = "h";
    report.memory = "m";
    report.state = state;
    Say(kFrameGroupReport, process,
        GroupFrame{"actors/g", wire::Encode(kFrameGroupReport, report)});
  }
  // The last command of this kind that the process was sent.
  const groups::Command* Last(const std::string& process, groups::CommandKind kind) const {
    const groups::Command* last = nullptr;
    for (const auto& [to, command] : commands_)
      if (to == process && command.kind == kind) last = &command;
    return last;
  }

  std::vector<std::pair<std::string, groups::Command>> commands_;
  uint64_t request_ = 100;
  uint64_t sequence_ = 0;
};

TEST_F(CollectiveGroupsTest, MembersTakeTheirRanksInAnyOrder) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b"));
  const auto second = Ask(b, Join("b", 1, 2));
  EXPECT_EQ(ErrorOf(second), "");
  const uint64_t first = second.collective.number;
  EXPECT_EQ(Ask(a, Join("a", 0, 2)).collective.number, first + 1);
  Report(b, "b", first);
  EXPECT_EQ(Last(b, groups::CommandKind::kPrepare), nullptr) << "not without the other";
  Report(a, "a", first + 1);
  Pass(milliseconds(200));
  const groups::Command* prepare = Last(b, groups::CommandKind::kPrepare);
  ASSERT_NE(prepare, nullptr);
  ASSERT_THAT(prepare->view.members, SizeIs(2));
  EXPECT_EQ(prepare->view.members[0].id.actor, "a") << "by rank, not by age";
  EXPECT_EQ(prepare->view.members[1].id.actor, "b");
}

TEST_F(CollectiveGroupsTest, ARepeatedRequestHasItsEffectOnce) {
  const std::string a = Alive(Spec("a"));
  actors::CollectiveRequest request = Join("a", 0, 2);
  request.request = 7;
  const uint64_t first = Ask(a, request).collective.number;
  EXPECT_EQ(Ask(a, request).collective.number, first);
  Restart();
  NodeSays();
  EXPECT_EQ(Ask(a, request).collective.number, first) << "also at the next head";
  EXPECT_EQ(Ask(a, Join("a", 0, 2)).collective.number, first + 1) << "this is another one";
}

TEST_F(CollectiveGroupsTest, WhatContradictsIsRefused) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b"));
  EXPECT_THAT(ErrorOf(Ask(a, Join("a", 0, 0))), HasSubstr("no collective group \"g\""));
  EXPECT_EQ(ErrorOf(Ask(a, Join("a", 0, 2))), "");
  EXPECT_THAT(ErrorOf(Ask(b, Join("b", 0, 2))), HasSubstr("that of actor a"));
  EXPECT_THAT(ErrorOf(Ask(b, Join("b", 2, 2))), HasSubstr("not in 0..1"));
  EXPECT_THAT(ErrorOf(Ask(b, Join("b", 1, 3))), HasSubstr("of 2 members, not a fixed one of 3"));
  EXPECT_THAT(ErrorOf(Ask(b, Join("b", -1, 2))), HasSubstr("none of those"));
  EXPECT_THAT(ErrorOf(Ask(b, Join("b", 1, 2, 5))), HasSubstr("is over"));
  EXPECT_THAT(ErrorOf(Ask(b, Join("nobody", 1, 2))), HasSubstr("is over"));
  EXPECT_THAT(ErrorOf(Ask(a, Join("a", 1, 2))), HasSubstr("is rank 0"));
}

TEST_F(CollectiveGroupsTest, AFixedGroupWaitsForOneThatComesBackAndEndsWithOneThatDoesNot) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b", 1));
  Ask(a, Join("a", 0, 2));
  const uint64_t before = Ask(b, Join("b", 1, 2)).collective.number;
  Exit(b);
  Pass(milliseconds(300));
  EXPECT_EQ(Do(CollectiveVerb::kStatus).collective.seats.at(1).number, 0U);
  EXPECT_EQ(Last(a, groups::CommandKind::kExpel), nullptr);
  const std::string again = started_.back();
  ASSERT_NE(again, b);
  Start(again);
  EXPECT_EQ(Ask(again, Join("b", 1, 2, 2)).collective.number, before + 1);
  Exit(again);
  Pass(milliseconds(300));
  const groups::Command* expel = Last(a, groups::CommandKind::kExpel);
  ASSERT_NE(expel, nullptr);
  EXPECT_EQ(expel->expel, groups::ExpelKind::kEnded);
  EXPECT_THAT(expel->reason, HasSubstr("rank 1 (T b) is dead"));
  EXPECT_THAT(ErrorOf(Do(CollectiveVerb::kStatus)), HasSubstr("rank 1 (T b) is dead"));
}

TEST_F(CollectiveGroupsTest, AMembershipThatIsOverIsToldSoAndAnotherHeadKnowsThemAll) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b"));
  const uint64_t first = Ask(a, Join("a", 0, 2)).collective.number;
  Ask(b, Join("b", 1, 2));
  Restart();
  NodeSays();
  commands_.clear();
  Report(a, "a", first);
  EXPECT_EQ(Last(a, groups::CommandKind::kExpel), nullptr);
  Report(b, "b", first);  // The number is that of a.
  const groups::Command* expel = Last(b, groups::CommandKind::kExpel);
  ASSERT_NE(expel, nullptr);
  EXPECT_EQ(expel->expel, groups::ExpelKind::kFenced);
  Report(b, "b", first + 1);
  Pass(milliseconds(300));
  EXPECT_NE(Last(a, groups::CommandKind::kPrepare), nullptr) << "the group goes on";
}

TEST_F(CollectiveGroupsTest, AGroupOfHandlesEndsWithItsOwner) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b"));
  actors::CollectiveRequest create;
  create.verb = CollectiveVerb::kCreate;
  create.spec = {"g", "driver/d", 2, false, 1, {"b", "a"}};
  EXPECT_EQ(ErrorOf(Ask("driver", create)), "");
  create.request = 0;
  EXPECT_EQ(ErrorOf(Ask("driver", create)), "") << "the same once more";
  create.spec.actors = {"a", "b"};
  EXPECT_THAT(ErrorOf(Ask("driver", create)), HasSubstr("already"));
  create.spec.name = "h";
  create.spec.actors = {"a", "nobody"};
  EXPECT_THAT(ErrorOf(Ask("driver", create)), HasSubstr("no actor nobody"));
  create.spec.actors = {"a", "a"};
  EXPECT_THAT(ErrorOf(Ask("driver", create)), HasSubstr("twice"));
  const uint64_t number = Ask(a, Join("a", -1, 0)).collective.number;
  EXPECT_EQ(Do(CollectiveVerb::kStatus).collective.seats.at(1).actor, "a");
  EXPECT_EQ(Do(CollectiveVerb::kStatus).collective.seats.at(1).number, number);
  Say(actors::kFrameActorRequest, "driver",
      actors::ActorRequest{999, actors::ActorVerb::kOwnerGone, "driver/d", 0, "over"});
  Pass(milliseconds(300));
  EXPECT_THAT(ErrorOf(Do(CollectiveVerb::kStatus)), HasSubstr("has ended"));
  EXPECT_THAT(store_.List("collective/").value(), IsEmpty());
}

TEST_F(CollectiveGroupsTest, AMemberOfAnEarlierGroupOfTheSameNameIsNoMember) {
  const std::string a = Alive(Spec("a"));
  const uint64_t earlier = Ask(a, Join("a", 0, 1)).collective.number;
  EXPECT_EQ(ErrorOf(Do(CollectiveVerb::kDestroy)), "");
  EXPECT_NE(Ask(a, Join("a", 0, 1)).collective.number, earlier);
  commands_.clear();
  Report(a, "a", earlier, groups::MemberState::kActive);
  ASSERT_NE(Last(a, groups::CommandKind::kExpel), nullptr);
}

TEST_F(CollectiveGroupsTest, WhatHasEndedWhileThereWasNoHeadEndsItAtTheNext) {
  const std::string a = Alive(Spec("a"));
  Ask(a, Join("a", 0, 2));
  ASSERT_TRUE(store_.DeletePrefix("actor/a/").ok());  // Its death was noted, and no more.
  Restart();
  NodeSays();
  EXPECT_THAT(ErrorOf(Do(CollectiveVerb::kStatus)), HasSubstr("is dead"));
  EXPECT_THAT(store_.List("collective/").value(), IsEmpty());
}

// If the epochs were removed first, the successor of a head that died then would start them over.
TEST_F(CollectiveGroupsTest, EpochsOfALifeGoBehindItsRecordAndNothingOfThemStays) {
  const auto epochs = [this] {
    std::set<std::string> groups;
    const auto listed = store_.List("group/");
    EXPECT_TRUE(listed.ok());
    for (const auto& [key, value] : *listed) groups.insert(groups::GroupOfKey(key));
    return groups;
  };
  const std::string a = Alive(Spec("a"));
  const uint64_t life = Ask(a, Join("a", 0, 1)).collective.life;
  Pass(milliseconds(300));
  const std::string keys = "actors/g#" + std::to_string(life);
  EXPECT_THAT(epochs(), ElementsAre(keys));
  EXPECT_EQ(ErrorOf(Do(CollectiveVerb::kDestroy)), "");
  EXPECT_THAT(epochs(), IsEmpty());
  // Of a life, and of a run, that ended as the head before died.
  const uint64_t next = Ask(a, Join("a", 0, 1)).collective.life;
  EXPECT_NE(next, life);
  Pass(milliseconds(300));
  ASSERT_TRUE(store_.Put("group/" + keys + "/record", "old", seconds(600)).ok());
  ASSERT_TRUE(store_.Put("group/run/epoch/7", "old", seconds(600)).ok());
  Restart();
  NodeSays();
  Pass(milliseconds(300));
  EXPECT_THAT(epochs(), ElementsAre("actors/g#" + std::to_string(next)));
}

// An epoch that has been must not be another one, of other members.
TEST_F(CollectiveGroupsTest, EpochsThatTheStoreHasLostAreThoseOfAnotherLife) {
  const std::string a = Alive(Spec("a"));
  const uint64_t life = Ask(a, Join("a", 0, 1)).collective.life;
  Pass(milliseconds(300));
  for (const char* lost : {"group/", "head/"}) ASSERT_TRUE(store_.DeletePrefix(lost).ok());
  Restart();
  NodeSays();
  Pass(milliseconds(300));
  EXPECT_NE(Do(CollectiveVerb::kStatus).collective.life, life);
}

TEST_F(CollectiveGroupsTest, ItEndsWithItsLastMember) {
  const std::string a = Alive(Spec("a"));
  const std::string b = Alive(Spec("b"));
  Ask(a, Join("a", 0, 2));
  Ask(b, Join("b", 1, 2));
  EXPECT_EQ(ErrorOf(Do(CollectiveVerb::kLeave, a, "a")), "");
  EXPECT_EQ(Do(CollectiveVerb::kStatus).collective.seats.at(0).actor, "") << "its rank is free";
  EXPECT_EQ(ErrorOf(Do(CollectiveVerb::kLeave, b, "b")), "");
  EXPECT_THAT(ErrorOf(Do(CollectiveVerb::kStatus)), HasSubstr("all of its members have left"));
}

}  // namespace
}  // namespace troupe::daemons::testing
