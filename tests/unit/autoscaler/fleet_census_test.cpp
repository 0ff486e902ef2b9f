#include "autoscaler/fleet_census.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "autoscaler/exec_machines.h"
#include "autoscaler/exec_protocol.h"
#include "autoscaler/ssh_census.h"
#include "autoscaler/ssh_scripts.h"
#include "tests/unit/autoscaler/fake_supplier.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using CensusListed = Result<std::vector<CensusNode>>;

TEST(FleetCensusTest, LaterLivesSortBehindEarlierOnes) {
  const std::string first = NewLife(1'800'000'000);
  const std::string second = NewLife(1'800'000'000.002);
  EXPECT_LT(first, second);
  EXPECT_DOUBLE_EQ(BeginOfLife(second), 1'800'000'000.002);
  EXPECT_NE(NewLife(5), NewLife(5));
  EXPECT_EQ(BeginOfLife("demo"), 0);
  EXPECT_EQ(BeginOfLife(std::string(19, 'x')), 0);
}

TEST(FleetCensusTest, MachinesOfTheClusterCountWhicheverLifeHasMadeThem) {
  tests::FakeSupplier supplier;
  ExecMachines machines({}, [&](const ExecCommand& command, const std::string& input,
                                ExecDone done) { done(supplier(command, input)); });
  const auto make = [&](const std::string& request, std::map<std::string, std::string> tags) {
    (void)supplier({}, ExecCreateRequest({request, "spot", 1, "", std::move(tags)}));
  };
  make("x", {{"purpose", "mail"}});
  make("y", {{kClusterTag, "other"}, {kLifeTag, "1"}, {kNodeTag, "spot-1"}});
  make("z", {{kClusterTag, "demo"}, {kLifeTag, "1"}, {kNodeTag, "spot-1"}});
  make("w", {{kClusterTag, "demo"}, {kLifeTag, "2"}, {kNodeTag, "spot-7"}});
  MachineCensus census(&machines, "demo");
  std::vector<CensusNode> found;
  census.List([&](const CensusListed& listed) { found = listed.value(); });
  EXPECT_THAT(found, ElementsAre(CensusNode{"i-3", "spot-1", "1", false},
                                 CensusNode{"i-4", "spot-7", "2", false}));
  Status ended = Error{ErrorCode::kInternal, "not answered"};
  census.End(found, [&](const Status& status) { ended = status; });
  EXPECT_TRUE(ended.ok());
  EXPECT_EQ(supplier.nodes.size(), 2U);
}

TEST(FleetCensusTest, NamesAreBounded) {
  std::vector<CensusNode> nodes;
  for (int i = 0; i < 30; ++i) nodes.push_back({"i-" + std::to_string(10 + i), "", "a", false});
  EXPECT_THAT(NamesOf(nodes), HasSubstr("i-28, i-29 and 10 more"));
}

class SshCensusTest : public ::testing::Test {
 protected:
  SshCensusOptions Options() {
    SshCensusOptions options;
    options.ssh.argv = {"ssh"};
    options.hosts.lines = {"h1", "h2"};
    options.cluster = "demo";
    options.run = [this](const ExecCommand& command, const std::string& input,
                         const ExecDone& done) {
      const std::string host = command.argv.at(command.argv.size() - 2);
      asked_.emplace_back(host, input);
      done(host == "h2" ? h2_ : h1_);
    };
    return options;
  }
  std::optional<CensusListed> List() {
    std::optional<CensusListed> answer;
    census_.List([&](const CensusListed& listed) { answer = listed; });
    for (int i = 0; i < 3; ++i) (void)census_.Step(Time{} + seconds(10 + i));
    return answer;
  }

  Result<ExecReply> h1_ = ExecReply{0, "alive demo-00a spot-1\nlisted\n", ""};
  Result<ExecReply> h2_ = ExecReply{0, "listed\n", ""};
  std::vector<std::pair<std::string, std::string>> asked_;
  SshCensus census_{Options()};
};

TEST_F(SshCensusTest, NodesAreToldWithTheirLife) {
  const auto listed = List();
  ASSERT_TRUE(listed && listed->ok());
  EXPECT_THAT(listed->value(), ElementsAre(CensusNode{"h1/spot-1", "spot-1", "00a", false}));
  EXPECT_EQ(census_.Unknown(), "");
}

TEST_F(SshCensusTest, AHostThatCannotBeReachedIsNamed) {
  h2_ = ExecReply{255, "", "ssh: connect to host h2 port 22: Connection refused"};
  const auto listed = List();
  ASSERT_TRUE(listed && listed->ok());
  EXPECT_EQ(listed->value().size(), 1U);
  EXPECT_THAT(census_.Unknown(), HasSubstr("h2: ssh: connect to host h2"));
  h2_ = ExecReply{0, "alive demo-00a sp", ""};  // Cut short.
  (void)List();
  EXPECT_THAT(census_.Unknown(), HasSubstr("h2: its list of nodes is not whole"));
}

TEST_F(SshCensusTest, AnEndThatDidNotHelpIsFollowedByAKill) {
  const CensusNode node{"h1/spot-1", "spot-1", "00a", false};
  census_.End({node}, [](const Status&) {});
  census_.End({node}, [](const Status&) {});
  ASSERT_EQ(asked_.size(), 2U);
  EXPECT_THAT(asked_[0], Pair("h1", HasSubstr("demo-00a")));
  EXPECT_THAT(asked_[0].second, HasSubstr("TERM"));
  EXPECT_THAT(asked_[1].second, HasSubstr("KILL"));
}

}  // namespace
}  // namespace troupe
