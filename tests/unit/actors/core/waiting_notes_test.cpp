#include "actors/core/waiting_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WaitingNotesTest : public ::testing::Test {
 protected:
  using Waiting = std::map<std::string, std::string>;
  std::vector<std::string> At(int second, const Waiting& waiting) {
    return notes_.Update(Time{} + seconds(second), waiting);
  }

  WaitingNotes notes_;
};

TEST_F(WaitingNotesTest, WhoWaitsForLongIsToldOnce) {
  const Waiting one{{"Till 5f", "no node has GPU 1"}};
  EXPECT_THAT(At(0, one), IsEmpty());
  EXPECT_THAT(At(9, one), IsEmpty()) << "WN-1";
  EXPECT_THAT(At(11, one), ElementsAre("Till 5f has waited for room for 11 s: no node has GPU 1"));
  EXPECT_THAT(At(60, one), IsEmpty()) << "WN-2";
}

TEST_F(WaitingNotesTest, AWaitThatIsInterruptedBeginsAnew) {
  const Waiting one{{"Till 5f", "no node has GPU 1"}};
  EXPECT_THAT(At(0, one), IsEmpty());
  EXPECT_THAT(At(6, {}), IsEmpty());
  EXPECT_THAT(At(8, one), IsEmpty());
  EXPECT_THAT(At(15, one), IsEmpty());
  EXPECT_THAT(At(18, one), ElementsAre("Till 5f has waited for room for 10 s: no node has GPU 1"));
}

TEST_F(WaitingNotesTest, OneReasonIsOneLineWhateverItsNumbers) {
  Waiting many{{"Till 1", "n1 lacks CPU 1.5 (0.5 of 4 free)"},
               {"Till 2", "n1 lacks CPU 2 (0 of 4 free)"}};
  EXPECT_THAT(At(0, many), IsEmpty());
  EXPECT_THAT(At(10, many), ElementsAre("Till 1 and another one have waited for room for 10 s: "
                                        "n1 lacks CPU 1.5 (0.5 of 4 free)"));
  many["Till 3"] = "n1 lacks CPU 3 (0 of 4 free)";
  many["Till 4"] = "n1 has no GPU";
  EXPECT_THAT(At(12, many), IsEmpty());
  many["Till 1"] = "n1 has no GPU";
  EXPECT_THAT(At(22, many),
              ElementsAre("Till 1 and another one have waited for room for 22 s: n1 has no GPU"));
}

TEST_F(WaitingNotesTest, WhoStandsBeforeItMakesNoOtherReason) {
  EXPECT_THAT(At(0, {{"Till 1", "waits behind actor/58286a9f#1; n1 lacks CPU 1"}}), IsEmpty());
  EXPECT_EQ(At(10, {{"Till 1", "waits behind actor/58286a9f#1; n1 lacks CPU 1"}}).size(), 1U);
  EXPECT_THAT(At(12, {{"Till 1", "waits behind actor/959d1d48#2; n1 lacks CPU 2"}}), IsEmpty());
  EXPECT_EQ(At(14, {{"Till 1", "waits behind actor/959d1d48#2; n1 lacks GPU 2"}}).size(), 1U);
}

TEST_F(WaitingNotesTest, AReasonIsToldAgainWhenNobodyHasWaitedForIt) {
  const Waiting first{{"Till 1", "n1 has no GPU"}};
  const Waiting second{{"Till 2", "n1 has no GPU"}};
  EXPECT_THAT(At(0, first), IsEmpty());
  EXPECT_THAT(At(10, first), ElementsAre("Till 1 has waited for room for 10 s: n1 has no GPU"));
  EXPECT_THAT(At(11, {}), IsEmpty());
  EXPECT_THAT(At(20, second), IsEmpty());
  EXPECT_THAT(At(30, second), ElementsAre("Till 2 has waited for room for 10 s: n1 has no GPU"));
}

TEST_F(WaitingNotesTest, HoldsNoMoreThanItsLimit) {
  Waiting many;
  for (size_t i = 0; i < kNotesMax + 5; ++i) many[std::to_string(i)] = "full";
  EXPECT_THAT(At(0, many), IsEmpty());
  EXPECT_THAT(
      At(10, many),
      ElementsAre(::testing::HasSubstr("and 9999 others have waited for room for 10 s: full")));
}

}  // namespace
}  // namespace troupe::actors
