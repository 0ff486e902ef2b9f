// GroupService over stores that forget, garble, or do not answer at first.
#include "collective_groups/membership/group_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collective_groups/membership/group_keys.h"
#include "runtime/store.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::groups {
namespace {

using ::testing::HasSubstr;

constexpr uint8_t kRecord = 60;

class GroupServiceTest : public ::testing::Test {
 protected:
  void Open() {
    CoordinatorOptions options;
    options.group = "g";
    options.start_members = 1;
    options.park_timeout = seconds(5);
    service_.Open(options);
    Settle();
  }
  // Time passes; the store answers, and what follows from that happens.
  void Settle(Duration passes = milliseconds(20)) {
    const Time until = clock_.Now() + passes;
    ASSERT_TRUE(daemons::testing::SettleLane(lane_, transport_));
    while (transport_.RunTimer(until)) ASSERT_TRUE(daemons::testing::SettleLane(lane_, transport_));
  }
  void Ready() {
    Report report;
    report.id = {"w0", 1};
    report.sequence = ++sequence_;
    report.state = MemberState::kReady;
    service_.Feed("g", ReportReceived{report});
    Settle();
  }
  void Put(const std::string& leaf, const std::string& value) {
    ASSERT_TRUE(store_.Put("group/g/" + leaf, value, Store::kNoExpiry).ok());
  }
  std::optional<EpochRecord> Stored() {
    const auto bytes = store_.Get("group/g/record");
    if (!bytes.ok() || !*bytes) return std::nullopt;
    const auto record = wire::DecodeRecord<EpochRecord>(kRecord, **bytes);
    if (!record.ok()) return std::nullopt;
    return *record;
  }

  FakeClock clock_{Time{1'000'000'000}};
  MemoryStore store_{&clock_};
  daemons::testing::ScriptedTransport transport_{&clock_};
  BlockingLane lane_{"store"};
  std::vector<Command> sent_;
  std::string failed_;
  uint64_t sequence_ = 0;
  GroupService service_{&transport_.loop(), &lane_, &store_, "me",
                        [this](const std::string&, const GroupNotice& notice) {
                          if (const auto* send = std::get_if<SendCommand>(&notice))
                            sent_.push_back(send->command);
                          if (const auto* failed = std::get_if<GroupFailed>(&notice))
                            failed_ = failed->reason;
                        }};
};

EpochRecord RecordOf(uint64_t term) {
  return {"old", term, View{"g", 7, {{{"w0", 1}, 1, 0, "h", "", 0, false}}, "before"}, 2, false};
}

TEST_F(GroupServiceTest, ARecordThatCannotBeReadIsKeptAsideAndReplaced) {
  Put("record", "\x93\x01\x3cgarbage");
  Open();
  ASSERT_NE(service_.Find("g"), nullptr);
  Ready();
  ASSERT_TRUE(Stored().has_value());
  EXPECT_EQ(Stored()->owner, "me");
  const auto aside = store_.Get("group/g/unreadable");
  ASSERT_TRUE(aside.ok() && aside->has_value());
  EXPECT_THAT(**aside, HasSubstr("garbage"));
}

TEST_F(GroupServiceTest, ARecordThatIsGarbledBehindItsBackIsReplaced) {
  Open();
  Ready();
  ASSERT_TRUE(Stored().has_value());
  Put("record", "flipped");
  service_.Feed("g", MemberDied{{"w0", 1}, "killed"});
  Report report;
  report.id = {"w1", 1};
  report.sequence = 1;
  report.state = MemberState::kReady;
  service_.Feed("g", ReportReceived{report});
  Settle(milliseconds(200));
  ASSERT_TRUE(Stored().has_value());
  ASSERT_EQ(Stored()->view.members.size(), 1U);
  EXPECT_EQ(Stored()->view.members[0].id.actor, "w1");
}

TEST_F(GroupServiceTest, ATermIsAboveThatOfTheRecordAlsoIfTheCountIsLost) {
  Put("record", wire::Encode(kRecord, RecordOf(9)));
  Open();
  Report report;
  report.id = {"w0", 1};
  report.sequence = 1;
  report.state = MemberState::kReady;
  service_.Feed("g", ReportReceived{report});
  Settle(milliseconds(200));
  ASSERT_TRUE(Stored().has_value());
  EXPECT_EQ(Stored()->term, 10U);
}

TEST_F(GroupServiceTest, ARefreshPutsTheRecordAndTheTermBack) {
  Open();
  Ready();
  const auto before = Stored();
  ASSERT_TRUE(before.has_value());
  ASSERT_TRUE(store_.DeletePrefix("group/").ok());
  service_.Refresh();
  Settle();
  ASSERT_TRUE(Stored().has_value());
  EXPECT_EQ(Stored()->view, before->view);
  const auto term = store_.Increment("group/g/term", 1);
  ASSERT_TRUE(term.ok());
  EXPECT_GT(static_cast<uint64_t>(*term), before->term);
}

TEST_F(GroupServiceTest, ARecordOfALaterTermThatComesBackIsGoneOnFrom) {
  Open();  // The store is empty, and goes back to what it held before.
  service_.Feed("g", OrderChanged{{"w0"}});
  Put("record", wire::Encode(kRecord, RecordOf(9)));
  Ready();
  EXPECT_EQ(Stored()->term, 9U) << "it may be that of another head";
  Settle(kReopenDelay);
  ASSERT_NE(service_.Find("g"), nullptr);
  EXPECT_EQ(service_.Find("g")->options().order, std::vector<std::string>{"w0"});
  Ready();
  Settle(seconds(1));
  EXPECT_EQ(Stored()->term, 10U);
  EXPECT_GT(Stored()->view.epoch, 7U);
  EXPECT_EQ(failed_, "");
}

TEST_F(GroupServiceTest, KeysAreNamedAsItsOwnerSaysAndAreItsOwnersToRemove) {
  CoordinatorOptions options;
  options.group = "g";
  options.keys = "g#7";
  service_.Open(options);
  Settle();
  Ready();
  service_.Close("g");
  Settle();
  const auto left = store_.List("group/");
  ASSERT_TRUE(left.ok());
  EXPECT_TRUE(left->contains("group/g#7/record"));
  for (const auto& [key, value] : *left) EXPECT_EQ(GroupOfKey(key), "g#7") << key;
}

TEST(GroupKeys, ANameMayHoldWhatKeysAreMadeOf) {
  for (const std::string name : {"g", "a/epoch/b", "a/record", "/", "x#1"}) {
    for (const char* leaf : {"record", "term", "unreadable", "epoch/12"})
      EXPECT_EQ(GroupOfKey(KeysOfGroup(name) + leaf), name);
  }
  for (const char* other : {"group/x", "group/x/other", "job/x/record", "group", ""})
    EXPECT_EQ(GroupOfKey(other), "") << other;
}

TEST_F(GroupServiceTest, AStoreThatDoesNotAnswerIsAskedAgainWithoutHoldingTheLane) {
  store_.SetAvailable(false);
  Open();
  Settle(seconds(1));
  EXPECT_EQ(service_.Find("g"), nullptr);
  store_.SetAvailable(true);
  Settle(seconds(1));
  EXPECT_NE(service_.Find("g"), nullptr);
  EXPECT_EQ(failed_, "");
}

TEST_F(GroupServiceTest, AStoreThatNeverAnswersFailsTheGroupInTheEnd) {
  store_.SetAvailable(false);
  Open();
  for (int i = 0; i < 400 && failed_.empty(); ++i) Settle(milliseconds(100));
  EXPECT_THAT(failed_, HasSubstr("did not answer for 5 s"));
}

}  // namespace
}  // namespace troupe::groups
