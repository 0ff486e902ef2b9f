#include "actors/core/call_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kFirst = 100;
constexpr Time kNow{1'000'000'000};
const Error kDied{ErrorCode::kPeerGone, "its process was killed"};

class CallWindowTest : public ::testing::Test {
 protected:
  uint64_t Add(bool retry = false, Duration timeout = seconds(60)) {
    const Result<uint64_t> number =
        window_.Add({"Work", "arguments", now_ + timeout, retry, [this](const auto&) { ++done_; }});
    EXPECT_TRUE(number.ok());
    return number.ok() ? *number : 0;
  }
  // The numbers sent now; those of which nothing but the number is sent are negative.
  std::vector<int64_t> Sent() {
    std::vector<int64_t> numbers;
    for (const ActorCall& call : window_.TakeSendable(now_)) {
      EXPECT_EQ(call.actor, "a");
      EXPECT_EQ(call.base, window_.base());
      EXPECT_EQ(call.incarnation, window_.incarnation());
      const auto number = static_cast<int64_t>(call.number);
      numbers.push_back(call.method.empty() ? -number : number);
    }
    return numbers;
  }
  std::optional<SettledCall> Reply(uint64_t number, const std::string& value = "v") {
    return window_.OnReply({"a", number, {}, value, false});
  }
  static std::vector<std::string> Messages(const std::vector<SettledCall>& calls) {
    std::vector<std::string> messages;
    for (const SettledCall& call : calls) messages.push_back(call.result.error().message);
    return messages;
  }

  Time now_ = kNow;
  int done_ = 0;
  CallWindow window_{"a", kFirst};
};

TEST_F(CallWindowTest, CallsAreNumberedFromTheFirstAndWaitUntilItIsBound) {
  EXPECT_EQ(Add(), 100u);
  EXPECT_EQ(Add(), 101u);
  EXPECT_THAT(Sent(), IsEmpty());
  window_.Bind(3);
  EXPECT_THAT(Sent(), ElementsAre(100, 101));
  EXPECT_THAT(Sent(), IsEmpty()) << "once is enough";
  EXPECT_EQ(window_.open(), 2u);
}

TEST_F(CallWindowTest, ARequestSaysWhatIsLeftOfItsTime) {
  Add(false, milliseconds(1500));
  now_ = now_ + milliseconds(500) + nanoseconds(1);
  window_.Bind(1);
  EXPECT_EQ(window_.TakeSendable(now_).at(0).timeout_ms, 1000u) << "rounded up";
  Add(false, milliseconds(1));
  now_ = now_ + milliseconds(5);
  EXPECT_EQ(window_.TakeSendable(now_).at(0).timeout_ms, 1u) << "zero would mean no limit";
}

TEST_F(CallWindowTest, EachCallIsSettledOnceWhateverTheOrderOfReplies) {
  window_.Bind(1);
  for (int i = 0; i < 3; ++i) Add();
  (void)Sent();
  EXPECT_EQ(Reply(101, "b")->result.value(), "b");
  EXPECT_EQ(window_.base(), 100u) << "the first is not settled";
  EXPECT_FALSE(Reply(101)) << "a repeat";
  EXPECT_EQ(Reply(100, "a")->result.value(), "a");
  EXPECT_EQ(window_.base(), 102u);
  EXPECT_FALSE(Reply(100));
  EXPECT_TRUE(Reply(102));
  EXPECT_EQ(window_.base(), 103u);
  EXPECT_EQ(window_.open(), 0u);
}

TEST_F(CallWindowTest, RepliesToWhatWasNeverSentAreIgnored) {
  window_.Bind(1);
  (void)Sent();
  for (const uint64_t number : {uint64_t{0}, uint64_t{99}, uint64_t{100}, ~uint64_t{0}})
    EXPECT_FALSE(Reply(number));
  Add();  // Waits.
  EXPECT_FALSE(Reply(100));
  window_.OnMissing({0, 99, 100, 101, ~uint64_t{0}});
  window_.OnFull(now_, ~uint64_t{0});
  now_ = now_ + seconds(1);
  EXPECT_THAT(Sent(), ElementsAre(100));
}

TEST_F(CallWindowTest, AnErrorKeepsItsCodeAndOrigin) {
  window_.Bind(1);
  Add();
  (void)Sent();
  ActorReply reply{
      "a", 100, {{14, "no paper", "std::runtime_error", "Printer", "n", ""}}, "", false};
  const Result<std::string> result = window_.OnReply(std::move(reply))->result;
  EXPECT_EQ(result.error().code, ErrorCode::kUserError);
  EXPECT_EQ(result.error().origin->type, "std::runtime_error");
}

TEST_F(CallWindowTest, WhatTheReceiverMissesIsSentAgainInOrder) {
  window_.Bind(1);
  for (int i = 0; i < 4; ++i) Add();
  (void)Sent();
  window_.OnMissing({102, 100});
  EXPECT_THAT(Sent(), ElementsAre(100, 102));
  EXPECT_TRUE(Reply(101));
  window_.OnMissing({101});
  EXPECT_THAT(Sent(), IsEmpty()) << "it is settled";
}

TEST_F(CallWindowTest, AFullMailboxIsTriedAgainWhenThereIsRoomOrAfterAWhile) {
  window_.Bind(1);
  for (int i = 0; i < 3; ++i) Add();
  (void)Sent();
  window_.OnFull(now_, 101);
  Add();
  EXPECT_THAT(Sent(), IsEmpty());
  window_.OnRoom();
  EXPECT_THAT(Sent(), ElementsAre(101, 102, 103));
  window_.OnFull(now_, 103);
  now_ = now_ + milliseconds(199);
  EXPECT_THAT(Sent(), IsEmpty());
  now_ = now_ + milliseconds(1);
  EXPECT_THAT(Sent(), ElementsAre(103)) << "the word of room was lost";
}

TEST_F(CallWindowTest, SilenceIsAskedAboutLessAndLessOften) {
  window_.Bind(1);
  Add();
  Add();
  (void)Sent();
  std::vector<int64_t> asked;
  for (int ms = 0; ms < 8000; ++ms) {
    if (const auto check = window_.TakeCheck(kNow + milliseconds(ms))) {
      EXPECT_THAT(check->numbers, ElementsAre(100, 101));
      asked.push_back(ms);
    }
  }
  EXPECT_THAT(asked, ElementsAre(200, 600, 1400, 3000, 5000, 7000));
  EXPECT_TRUE(Reply(100));
  EXPECT_TRUE(Reply(101));
  EXPECT_FALSE(window_.TakeCheck(kNow + seconds(100)));
}

TEST_F(CallWindowTest, AQuestionIsBoundedAndSoIsWhatIsOnItsWay) {
  window_.Bind(1);
  for (size_t i = 0; i < kInFlightMax + 10; ++i) Add();
  EXPECT_EQ(Sent().size(), kInFlightMax);
  EXPECT_EQ(window_.TakeCheck(now_ + seconds(1))->numbers.size(), kCheckNumbersMax);
  EXPECT_TRUE(Reply(100));
  EXPECT_EQ(Sent().size(), 1u);
}

TEST_F(CallWindowTest, TooManyBytesAreRefusedAndTheEndOfACallMakesRoom) {
  const std::string half(kWindowBytesMax / 2, 'x');
  window_.Bind(1);
  ASSERT_TRUE(window_.Add({"m", half, Time::Never(), false, nullptr}).ok());
  ASSERT_TRUE(window_.Add({"m", half, Time::Never(), false, nullptr}).ok());
  const Result<uint64_t> refused = window_.Add({"m", "x", Time::Never(), false, nullptr});
  EXPECT_EQ(refused.error().code, ErrorCode::kBackpressure);
  EXPECT_THAT(refused.error().message, HasSubstr("2 calls"));
  (void)window_.Cancel(100, kDied);
  EXPECT_TRUE(window_.Add({"m", "x", Time::Never(), false, nullptr}).ok());
}

TEST_F(CallWindowTest, ADeathFailsWhatWasOnItsWayAndKeepsWhatWaits) {
  window_.Bind(1);
  Add();      // 100: on its way.
  Add(true);  // 101: may run again.
  (void)Sent();
  window_.OnFull(now_, 102);
  Add();  // 102: waits.
  const auto failed = window_.Unbind(kDied, false);
  EXPECT_THAT(Messages(failed), ElementsAre(HasSubstr("killed (the call was on its way; it may")));
  EXPECT_EQ(failed[0].result.error().code, ErrorCode::kPeerGone);
  window_.Bind(2);
  EXPECT_THAT(Sent(), ElementsAre(-100, 101, 102)) << "the number of the failed one is filled";
  EXPECT_FALSE(Reply(100)) << "nobody waits for it";
  EXPECT_TRUE(Reply(101));
  EXPECT_TRUE(Reply(102));
  EXPECT_EQ(window_.base(), 103u);
}

// The receiver of before may have run what it had first refused or missed.
TEST_F(CallWindowTest, WhatWasEverSentIsNotSentToTheNextIncarnationWithoutRetry) {
  window_.Bind(1);
  Add();
  Add();
  (void)Sent();
  window_.OnFull(now_, 101);
  window_.OnMissing({100});
  EXPECT_EQ(window_.Unbind(kDied, false).size(), 2u);
  window_.Bind(2);
  EXPECT_THAT(Sent(), ElementsAre(-100, -101));
}

// A new incarnation knows nothing of replies that only the one before had given: a number between
// two that it gets would be waited for.
TEST_F(CallWindowTest, TheNextIncarnationGetsEveryNumberFromTheBaseOn) {
  window_.Bind(1);
  for (int i = 0; i < 4; ++i) Add(true);
  (void)Sent();
  EXPECT_TRUE(Reply(101));
  EXPECT_TRUE(Reply(103));
  EXPECT_THAT(window_.Unbind(kDied, false), IsEmpty());
  window_.Bind(2);
  EXPECT_THAT(Sent(), ElementsAre(100, -101, 102, -103));
  for (const uint64_t number : {101, 103}) EXPECT_FALSE(Reply(number)) << "settled once already";
  EXPECT_TRUE(Reply(100));
  EXPECT_TRUE(Reply(102));
  EXPECT_EQ(window_.base(), 104u);
}

TEST_F(CallWindowTest, AnEndForGoodFailsAllAndSaysWhichMayHaveRun) {
  window_.Bind(1);
  Add(true);
  (void)Sent();
  window_.OnFull(now_, 101);
  Add();
  const auto failed = window_.Unbind(kDied, true);
  EXPECT_THAT(Messages(failed), ElementsAre(HasSubstr("may have run"), "its process was killed"));
  EXPECT_EQ(window_.open(), 0u);
  EXPECT_EQ(window_.base(), 102u);
  EXPECT_FALSE(window_.bound());
}

TEST_F(CallWindowTest, ARepeatedEndAndAReplyOfTheOldOneDoNothing) {
  window_.Bind(1);
  Add();
  (void)Sent();
  EXPECT_EQ(window_.Unbind(kDied, false).size(), 1u);
  EXPECT_THAT(window_.Unbind(kDied, false), IsEmpty());
  EXPECT_FALSE(Reply(100));
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(CallWindowTest, ADeadlineSaysWhatWasWaitedFor) {
  Add(false, seconds(1));
  EXPECT_THAT(window_.Sweep(now_ + seconds(1) - nanoseconds(1)), IsEmpty());
  EXPECT_THAT(Messages(window_.Sweep(now_ + seconds(1), "pending: no room")),
              ElementsAre(HasSubstr("not be reached within the call's deadline: it is pending")));
  window_.Bind(1);
  (void)Sent();  // The number of the first.
  Add(false, seconds(2));
  Add(false, seconds(2));
  (void)Sent();
  window_.OnFull(now_, 102);
  EXPECT_THAT(Messages(window_.Sweep(now_ + seconds(2))),
              ElementsAre(HasSubstr("did not answer"), HasSubstr("had no room")));
  EXPECT_EQ(window_.open(), 0u);
  EXPECT_THAT(window_.Sweep(now_ + seconds(100)), IsEmpty()) << "each is settled once";
}

TEST_F(CallWindowTest, OneOfManyDeadlinesPassesAtItsTime) {
  window_.Bind(1);
  for (int i = 0; i < 10; ++i) Add(false, seconds(10 - i));
  (void)Sent();
  for (int i = 1; i <= 10; ++i) EXPECT_EQ(window_.Sweep(now_ + seconds(i)).size(), 1u) << i;
}

TEST_F(CallWindowTest, ACancelledCallIsOverAndItsNumberIsFilled) {
  window_.Bind(1);
  const uint64_t sent = Add();
  (void)Sent();
  window_.OnFull(now_, 101);
  const uint64_t waits = Add();
  const Error why{ErrorCode::kCancelled, "enough"};
  const CallWindow::GivenUp first = window_.Cancel(sent, why);
  EXPECT_TRUE(first.tell);
  EXPECT_EQ(first.settled->result.error().message, "enough");
  const CallWindow::GivenUp again = window_.Cancel(sent, why);
  EXPECT_FALSE(again.settled) << "once";
  EXPECT_TRUE(again.tell) << "it may be forced now";
  const CallWindow::GivenUp second = window_.Cancel(waits, why);
  EXPECT_FALSE(second.tell) << "it has not left";
  EXPECT_TRUE(second.settled);
  EXPECT_FALSE(window_.Cancel(999, why).settled);
  EXPECT_FALSE(Reply(sent)) << "too late";
  window_.OnRoom();
  EXPECT_THAT(Sent(), ElementsAre(-101));
  (void)Reply(101);
  EXPECT_EQ(window_.base(), 102u);
  EXPECT_EQ(window_.open(), 0u);
}

TEST_F(CallWindowTest, AWindowHoldsItsMaximumOfCalls) {
  CallWindow window("a", 1);
  for (size_t i = 0; i < kWindowCallsMax; ++i)
    ASSERT_TRUE(window.Add({"m", "", Time::Never(), false, nullptr}).ok());
  EXPECT_EQ(window.Add({"m", "", Time::Never(), false, nullptr}).error().code,
            ErrorCode::kBackpressure);
}

}  // namespace
}  // namespace troupe::actors
