#include "collective_groups/membership/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MemberId Id(int n) { return {"w" + std::to_string(n), 1}; }

// One member per host name, oldest first.
View OnHosts(const std::vector<std::string>& hosts) {
  View view{"g", 1, {}, ""};
  for (size_t i = 0; i < hosts.size(); ++i) {
    view.members.push_back(
        {Id(static_cast<int>(i)), i + 1, static_cast<uint32_t>(i), hosts[i], "", 0, false});
  }
  return view;
}

View WithStates(const std::vector<std::optional<uint64_t>>& versions) {
  View view = OnHosts(std::vector<std::string>(versions.size(), "h"));
  for (size_t i = 0; i < versions.size(); ++i) {
    view.members[i].has_state = versions[i].has_value();
    view.members[i].version = versions[i].value_or(0);
  }
  return view;
}

TEST(MemberIdTest, ParseInvertsToString) {
  for (const MemberId& id : {MemberId{"worker", 0}, MemberId{"a#b", 7}, MemberId{"x", UINT64_MAX}})
    EXPECT_EQ(MemberId::Parse(id.ToString()), id);
}

TEST(MemberIdTest, ParseRefusesWhatToStringCannotMake) {
  for (const char* text : {"", "worker", "#1", "worker#", "worker#-1", "worker#1x", "worker# 1",
                           "worker#18446744073709551616"}) {
    EXPECT_EQ(MemberId::Parse(text), std::nullopt) << text;
  }
}

TEST(ViewTest, RankIsThePositionOfTheIncarnation) {
  const View view = OnHosts({"a", "b", "c"});
  EXPECT_EQ(RankOf(view, Id(0)), 0);
  EXPECT_EQ(RankOf(view, Id(2)), 2);
  EXPECT_EQ(RankOf(view, Id(3)), -1);
  EXPECT_EQ(RankOf(view, {"w0", 2}), -1);  // A replacement is somebody else.
}

TEST(ViewTest, SourceIsTheOldestHolderOfTheNewestState) {
  EXPECT_EQ(SourceRank(WithStates({5, 9, 9})), 1);
  EXPECT_EQ(SourceRank(WithStates({9, 9, 5})), 0);
  EXPECT_EQ(SourceRank(WithStates({std::nullopt, 0, std::nullopt})), 1);
  EXPECT_EQ(SourceRank(WithStates({std::nullopt, std::nullopt})), 0);
}

TEST(ViewTest, AnUnheldVersionNeverMakesASource) {
  View view = WithStates({std::nullopt, 3});
  view.members[0].version = 100;  // A number without the state behind it.
  EXPECT_EQ(SourceRank(view), 1);
  EXPECT_THAT(RanksWithoutState(view), ElementsAre(0));
}

TEST(ViewTest, ListsWhoLacksTheNewestState) {
  EXPECT_THAT(RanksWithoutState(WithStates({5, 9, std::nullopt, 9})), ElementsAre(0, 2));
  EXPECT_THAT(RanksWithoutState(WithStates({9, 9})), IsEmpty());
  EXPECT_THAT(RanksWithoutState(WithStates({std::nullopt, std::nullopt, std::nullopt})),
              ElementsAre(1, 2));
}

void ExpectTopology(const View& view, int member, const std::vector<int>& expected) {
  const Topology t = TopologyOf(view, Id(member));
  EXPECT_THAT((std::vector{t.rank, t.size, t.local_rank, t.local_size, t.cross_rank, t.cross_size}),
              ::testing::ElementsAreArray(expected))
      << "member " << member;
}

TEST(TopologyTest, CountsMembersOfAHostAndHostsPerLocalRank) {
  const View view = OnHosts({"a", "b", "a", "c", "b", "a"});
  ExpectTopology(view, 0, {0, 6, 0, 3, 0, 3});
  ExpectTopology(view, 1, {1, 6, 0, 2, 1, 3});
  ExpectTopology(view, 2, {2, 6, 1, 3, 0, 2});
  ExpectTopology(view, 3, {3, 6, 0, 1, 2, 3});
  ExpectTopology(view, 4, {4, 6, 1, 2, 1, 2});
  ExpectTopology(view, 5, {5, 6, 2, 3, 0, 1});
}

TEST(TopologyTest, HostsAreOrderedByTheirOldestMember) {
  const View view = OnHosts({"z", "a", "a"});
  ExpectTopology(view, 0, {0, 3, 0, 1, 0, 2});
  ExpectTopology(view, 1, {1, 3, 0, 2, 1, 2});
  ExpectTopology(view, 2, {2, 3, 1, 2, 0, 1});
}

TEST(TopologyTest, AStrangerHasNoRank) {
  ExpectTopology(OnHosts({"a", "b"}), 7, {-1, 2, 0, 0, 0, 0});
}

}  // namespace
}  // namespace troupe::groups
