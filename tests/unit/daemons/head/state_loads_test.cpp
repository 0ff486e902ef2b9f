// However many actors begin anew at once, a bounded number of bytes of their states is on its way.
#include "daemons/head/state_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StateLoadsTest : public ::testing::Test {
 protected:
  ~StateLoadsTest() override { lane_.Stop(); }
  void Save(const std::string& key, size_t bytes) {
    ASSERT_TRUE(store_.Put(key, std::string(bytes, 'x'), seconds(1000)).ok());
  }
  void Settle() { ASSERT_TRUE(SettleLane(lane_, transport_)); }
  void Ask(const std::string& process) {
    loads_.Ask(process, "of " + process);
    Settle();
  }
  void Pass(Duration d) {
    const Time end = clock_.Now() + d;
    while (transport_.RunTimer(end)) {
    }
    Settle();
  }

  static constexpr size_t kLarge = size_t{10} << 20;
  FakeClock clock_;
  ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
  std::vector<std::string> given_;
  StateLoads loads_{&transport_.loop(), &lane_, &store_,
                    [this](const std::string& process, const std::optional<std::string>& value) {
                      given_.push_back(process + (value ? "" : " nothing"));
                    }};
};

TEST_F(StateLoadsTest, ASmallStateIsGivenAsOftenAsItIsAskedFor) {
  Save("of a", 10);
  Ask("a");
  Ask("a");
  Ask("b");
  EXPECT_THAT(given_, ElementsAre("a", "a", "b nothing"));
  EXPECT_EQ(loads_.bytes(), 0U);
}

TEST_F(StateLoadsTest, OfLargeOnesSoManyAreOnTheirWayAsFit) {
  for (const char* process : {"a", "b", "c", "d"}) Save(std::string("of ") + process, kLarge);
  for (const char* process : {"a", "b", "c", "d"}) Ask(process);
  EXPECT_THAT(given_, ElementsAre("a", "b"));
  EXPECT_LT(loads_.bytes(), kLoadsBytesMax + actors::kActorStateBytesMax);
  for (int i = 0; i < 10; ++i) Ask("c");
  loads_.Done("a");
  Settle();
  EXPECT_THAT(given_, ElementsAre("a", "b", "c"));
  loads_.Done("b");
  loads_.Done("c");
  Settle();
  loads_.Done("d");
  EXPECT_THAT(given_, ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(loads_.bytes(), 0U);
}

TEST_F(StateLoadsTest, SmallOnesWaitForLargeOnesNoLongerThanThoseMayTake) {
  for (const char* process : {"a", "b"}) Save(std::string("of ") + process, kLarge);
  Ask("a");
  Ask("b");  // Neither takes it.
  Ask("small");
  EXPECT_THAT(given_, ElementsAre("a", "b"));
  Pass(kLoadIsTakenWithin);
  EXPECT_THAT(given_, ElementsAre("a", "b", "small nothing"));
  EXPECT_EQ(loads_.bytes(), 0U);
  loads_.Done("a");  // Late.
  EXPECT_EQ(loads_.bytes(), 0U);
}

TEST_F(StateLoadsTest, ALargeOneIsRepeatedLessAndLessOften) {
  Save("of a", kLarge);
  Ask("a");
  Ask("a");
  EXPECT_THAT(given_, SizeIs(1));
  Pass(kLoadAgain);
  Ask("a");
  EXPECT_THAT(given_, SizeIs(2));
  Pass(kLoadAgain);
  Ask("a");
  EXPECT_THAT(given_, SizeIs(2));
  EXPECT_EQ(loads_.bytes(), kLarge);
  Pass(kLoadAgain);
  Ask("a");
  EXPECT_THAT(given_, SizeIs(3));
}

TEST_F(StateLoadsTest, WhoHasEndedMeanwhileIsNotReadFor) {
  for (const char* process : {"a", "b", "c"}) Save(std::string("of ") + process, kLarge);
  for (const char* process : {"a", "b", "c"}) Ask(process);
  loads_.Done("c");
  loads_.Done("a");
  Settle();
  EXPECT_THAT(given_, ElementsAre("a", "b"));
}

TEST_F(StateLoadsTest, AStoreThatIsAwayIsAskedAgain) {
  Save("of a", 10);
  store_.SetAvailable(false);
  Ask("a");
  EXPECT_THAT(given_, IsEmpty());
  store_.SetAvailable(true);
  Ask("a");
  EXPECT_THAT(given_, ElementsAre("a"));
}

}  // namespace
}  // namespace troupe::daemons::testing
