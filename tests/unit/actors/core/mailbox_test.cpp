#include "actors/core/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Time kArrived{1'000'000'000};

class MailboxTest : public ::testing::Test {
 protected:
  static Mailbox Bounded(size_t depth, uint64_t bytes = kMailboxBytesMax,
                         Overflow overflow = Overflow::kWait) {
    return Mailbox("a", {depth, bytes, overflow});
  }
  static ActorCall Call(uint64_t number, uint64_t base = 1, size_t bytes = 0,
                        uint64_t timeout_ms = 60'000) {
    return {"a",       1, number, base, "m" + std::to_string(number), std::string(bytes, 'x'),
            timeout_ms};
  }
  Mailbox::Answer Offer(uint64_t number, uint64_t base = 1, size_t bytes = 0) {
    return mailbox_->Offer(now_, "c", Call(number, base, bytes));
  }
  Mailbox::Answer Check(const std::vector<uint64_t>& numbers, uint64_t base = 1) {
    return mailbox_->OnCheck(now_, "c", ActorCheck{"a", 1, base, numbers});
  }
  // Takes what may run, without ending it.
  std::vector<std::string> Run() {
    std::vector<std::string> methods;
    std::vector<Mailbox::Work> late;
    while (auto work = mailbox_->Next(now_, late)) {
      methods.push_back(work->caller + ":" + work->method);
      running_.push_back(std::move(*work));
    }
    for (const auto& work : late) methods.push_back("late " + work.method);
    for (auto& work : late) running_.push_back(std::move(work));
    return methods;
  }
  static ActorReply Made(uint64_t number) {
    return {"a", number, {}, "r" + std::to_string(number), false};
  }
  void SettleAll(bool held_back = false) {
    for (const auto& work : running_) mailbox_->Settle(work, Made(work.number), held_back);
    running_.clear();
  }
  static std::vector<uint64_t> Numbers(const std::vector<ActorReply>& replies) {
    std::vector<uint64_t> numbers;
    for (const ActorReply& reply : replies) numbers.push_back(reply.number);
    return numbers;
  }

  Time now_ = kArrived;
  std::optional<Mailbox> mailbox_{std::in_place, "a", Mailbox::Limits{}};
  std::vector<Mailbox::Work> running_;
};

TEST_F(MailboxTest, CallsRunInTheOrderOfTheirNumbers) {
  EXPECT_TRUE(Offer(1).work);
  EXPECT_THAT(Offer(3).missing, ElementsAre(2));
  EXPECT_THAT(Offer(5).missing, ElementsAre(4)) << "2 was asked for already";
  EXPECT_THAT(Run(), ElementsAre("c:m1"));
  EXPECT_TRUE(Offer(2).work);
  EXPECT_THAT(Run(), ElementsAre("c:m2", "c:m3"));
  EXPECT_TRUE(Offer(4).work);
  EXPECT_THAT(Run(), ElementsAre("c:m4", "c:m5"));
}

TEST_F(MailboxTest, CallersDoNotWaitForEachOther) {
  (void)mailbox_->Offer(now_, "b", Call(8, 7));  // Waits for 7.
  (void)Offer(1);
  EXPECT_THAT(Run(), ElementsAre("c:m1"));
  (void)mailbox_->Offer(now_, "b", Call(7, 7));
  EXPECT_THAT(Run(), ElementsAre("b:m7", "b:m8"));
  EXPECT_EQ(mailbox_->sessions(), 2u);
}

TEST_F(MailboxTest, ACallThatComesTwiceRunsOnceAtEveryStage) {
  (void)Offer(2);
  (void)Offer(2);  // Held.
  (void)Offer(1);
  (void)Offer(1);  // Queued.
  EXPECT_THAT(Run(), ElementsAre("c:m1", "c:m2"));
  (void)Offer(1);  // Running.
  EXPECT_THAT(Run(), IsEmpty());
  SettleAll();
  for (int i = 0; i < 2; ++i) {
    const Mailbox::Answer again = Offer(1);  // Settled: the same reply.
    ASSERT_EQ(again.replies.size(), 1u);
    EXPECT_EQ(again.replies[0].value, "r1");
  }
  EXPECT_THAT(Offer(1, 3).replies, IsEmpty()) << "confirmed";
  EXPECT_THAT(Run(), IsEmpty());
}

TEST_F(MailboxTest, AQuestionIsAnsweredWithRepliesAndWithWhatNeverCame) {
  EXPECT_THAT(Check({1, 2}).missing, ElementsAre(1, 2)) << "it is not known at all";
  (void)Offer(1);
  (void)Offer(2);
  (void)Offer(4);
  (void)Run();
  SettleAll();
  const Mailbox::Answer answer = Check({1, 2, 3, 4, 5, ~uint64_t{0}});
  EXPECT_THAT(Numbers(answer.replies), ElementsAre(1, 2));
  EXPECT_THAT(answer.missing, ElementsAre(3, 5, ~uint64_t{0}));
  EXPECT_THAT(Numbers(Check({1, 2}, 2).replies), ElementsAre(2)) << "1 is confirmed";
}

TEST_F(MailboxTest, AGivenUpCallSettlesItsNumberAtOnce) {
  ActorCall nothing = Call(1);
  nothing.method.clear();
  (void)Offer(2);
  const Mailbox::Answer answer = mailbox_->Offer(now_, "c", nothing);
  EXPECT_THAT(Numbers(answer.replies), ElementsAre(1));
  EXPECT_TRUE(answer.work);
  EXPECT_THAT(Run(), ElementsAre("c:m2"));
}

TEST_F(MailboxTest, AFullMailboxTakesNothingAndSaysWhenThereIsRoom) {
  mailbox_.emplace(Bounded(2));
  (void)Offer(1);
  (void)Offer(2);
  EXPECT_EQ(Offer(3).full, 3u);
  EXPECT_EQ(Offer(4).full, 4u);
  EXPECT_EQ(mailbox_->waiting(), 2u);
  EXPECT_THAT(mailbox_->TakeRooms(), IsEmpty());
  std::vector<Mailbox::Work> late;
  (void)mailbox_->Next(now_, late);
  EXPECT_THAT(mailbox_->TakeRooms(), ElementsAre("c")) << "half of it is free";
  EXPECT_THAT(mailbox_->TakeRooms(), IsEmpty()) << "once";
  EXPECT_FALSE(Offer(3).full);
  EXPECT_THAT(Run(), ElementsAre("c:m2", "c:m3"));
}

TEST_F(MailboxTest, ARefusingMailboxFailsTheCallAndGoesOnBehindIt) {
  mailbox_.emplace(Bounded(1, kMailboxBytesMax, Overflow::kRefuse));
  (void)Offer(1);
  const Mailbox::Answer refused = Offer(2);
  ASSERT_EQ(refused.replies.size(), 1u);
  EXPECT_EQ(FromChain(refused.replies[0].error).code, ErrorCode::kBackpressure);
  EXPECT_THAT(Run(), ElementsAre("c:m1"));
  const Mailbox::Answer again = Offer(2);
  EXPECT_EQ(FromChain(again.replies.at(0).error).code, ErrorCode::kBackpressure) << "once refused";
  (void)Offer(3);
  EXPECT_THAT(Run(), ElementsAre("c:m3"));
}

TEST_F(MailboxTest, BytesAreBoundedToo) {
  mailbox_.emplace(Bounded(100, 100));
  EXPECT_FALSE(Offer(1, 1, 60).full);
  EXPECT_EQ(Offer(2, 1, 60).full, 2u);
  EXPECT_EQ(mailbox_->bytes(), 60u);
  (void)Run();
  EXPECT_EQ(mailbox_->bytes(), 0u);
  EXPECT_FALSE(Offer(2, 1, 1000).full) << "a large one comes alone";
  EXPECT_EQ(Offer(3, 1, 1).full, 3u);
}

// An actor whose queue is empty since a frame was lost must not take in everything behind it.
TEST_F(MailboxTest, WhatIsHeldAheadOfAGapIsBoundedInBytes) {
  mailbox_.emplace(Bounded(100, 100));
  std::optional<uint64_t> full;
  for (uint64_t n = 2; n < 50 && !full; ++n) full = Offer(n, 1, 30).full;
  EXPECT_EQ(full, 5u);
  EXPECT_EQ(mailbox_->bytes(), 90u);
  EXPECT_EQ(Offer(1, 1, 60).full, 2u) << "who fills the gap is always let in, the rest again";
  EXPECT_THAT(Run(), ElementsAre("c:m1"));
  std::vector<std::string> ran;
  for (uint64_t n = 2; n < 8; ++n) {
    EXPECT_FALSE(Offer(n, 1, 30).full) << n;
    for (const std::string& call : Run()) ran.push_back(call);
  }
  EXPECT_THAT(ran, ElementsAre("c:m2", "c:m3", "c:m4", "c:m5", "c:m6", "c:m7"));
  EXPECT_EQ(mailbox_->bytes(), 0u);
}

TEST_F(MailboxTest, TheSameWithCallersThatAllHaveGaps) {
  mailbox_.emplace(Bounded(1'000, 1'000));
  for (int caller = 0; caller < 50; ++caller) {
    for (uint64_t n = 2; n < 12; ++n)
      (void)mailbox_->Offer(now_, "c" + std::to_string(caller), Call(n, 1, 100));
  }
  EXPECT_LE(mailbox_->bytes(), 1'000u);
}

TEST_F(MailboxTest, TooFarAheadIsNotHeld) {
  EXPECT_EQ(Offer(1 + kHeldMax + 1).full, 2 + kHeldMax);
  EXPECT_FALSE(Offer(1 + kHeldMax).full);
  EXPECT_EQ(Offer(~uint64_t{0}).full, ~uint64_t{0});
  EXPECT_TRUE(Offer(1).work);
}

// A caller that never confirms what it has got would have its replies kept for ever.
TEST_F(MailboxTest, UnconfirmedRepliesAreBounded) {
  for (uint64_t n = 1; n <= kUnconfirmedMax; ++n) {
    ActorCall nothing = Call(n);
    nothing.method.clear();
    ASSERT_FALSE(mailbox_->Offer(now_, "c", nothing).full);
  }
  EXPECT_TRUE(Offer(kUnconfirmedMax + 1).full);
  EXPECT_FALSE(Offer(kUnconfirmedMax + 1, 2).full);
}

TEST_F(MailboxTest, HostileNumbersHarmOnlyTheirSender) {
  (void)mailbox_->Offer(now_, "evil", Call(~uint64_t{0}, ~uint64_t{0}));
  (void)mailbox_->Offer(now_, "evil", Call(0, ~uint64_t{0}));
  (void)mailbox_->Offer(now_, "evil2", Call(0, 0));
  (void)mailbox_->Offer(now_, "evil2", Call(~uint64_t{0}, 5));
  (void)mailbox_->Offer(now_, "evil3", Call(1, 1, 0, ~uint64_t{0}));
  (void)mailbox_->OnCheck(now_, "evil", ActorCheck{"a", 1, 0, {0, 1, ~uint64_t{0}}});
  EXPECT_TRUE(Offer(1).work);
  EXPECT_THAT(Run(), ::testing::Contains("c:m1"));
  SettleAll();
  EXPECT_EQ(Offer(1).replies.size(), 1u);
}

TEST_F(MailboxTest, ACallThatIsLateDoesNotBegin) {
  (void)mailbox_->Offer(now_, "c", Call(1, 1, 0, 1000));
  (void)mailbox_->Offer(now_, "c", Call(2, 1, 0, 3000));
  (void)mailbox_->Offer(now_, "c", Call(3, 1, 0, 0));
  now_ = now_ + seconds(1);
  EXPECT_THAT(Run(), ElementsAre("c:m2", "c:m3", "late m1")) << "zero: it may take for ever";
  SettleAll();
  EXPECT_THAT(Numbers(Check({1, 2, 3}).replies), ElementsAre(1, 2, 3));
}

TEST_F(MailboxTest, AWithdrawnCallDoesNotRunAndOthersDo) {
  (void)Offer(1, 1, 10);
  (void)Offer(2, 1, 10);
  std::optional<Mailbox::Work> work = mailbox_->Withdraw("c", 1);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->method, "m1");
  EXPECT_EQ(mailbox_->bytes(), 10u);
  EXPECT_FALSE(mailbox_->Withdraw("c", 1)) << "once";
  EXPECT_FALSE(mailbox_->Withdraw("nobody", 1));
  mailbox_->Settle(*work, Made(1));
  EXPECT_THAT(Run(), ElementsAre("c:m2"));
  EXPECT_FALSE(mailbox_->Withdraw("c", 2)) << "it runs";
  EXPECT_EQ(Offer(1).replies.size(), 1u);
}

TEST_F(MailboxTest, LocalCallsShareTheBounds) {
  mailbox_.emplace(Bounded(2));
  EXPECT_TRUE(mailbox_->OfferLocal({"", 1, "l1", "", Time::Never(), nullptr}).ok());
  (void)Offer(1);
  EXPECT_EQ(mailbox_->OfferLocal({"", 2, "l2", "", Time::Never(), nullptr}).error().code,
            ErrorCode::kBackpressure);
  EXPECT_TRUE(mailbox_->Withdraw("", 1));
  EXPECT_TRUE(mailbox_->OfferLocal({"", 2, "l2", "", now_, nullptr}).ok());
  EXPECT_THAT(Run(), ElementsAre("c:m1", "late l2"));
  for (const auto& work : running_) mailbox_->Settle(work, Made(work.number));
}

TEST_F(MailboxTest, AHeldBackReplyIsGivenOutWhenPublishedAndNoSooner) {
  (void)Offer(1);
  (void)Run();
  SettleAll(true);
  EXPECT_THAT(Offer(1).replies, IsEmpty());
  EXPECT_THAT(Check({1}).replies, IsEmpty());
  EXPECT_THAT(Check({1}).missing, IsEmpty());
  const auto published = mailbox_->Publish({{"c", 1}, {"c", 0}, {"nobody", 1}});
  ASSERT_EQ(published.size(), 1u);
  EXPECT_EQ(published[0].second.value, "r1");
  EXPECT_EQ(Check({1}).replies.size(), 1u);
  (void)Check({}, 2);
  EXPECT_THAT(mailbox_->Publish({{"c", 1}}), IsEmpty()) << "confirmed meanwhile";
}

TEST_F(MailboxTest, TheNextIncarnationKnowsWhatHasRun) {
  for (uint64_t n = 1; n <= 3; ++n) (void)Offer(n);
  (void)Run();
  const Mailbox::Work second = running_[1];
  mailbox_->Settle(running_[0], Made(1), true);  // Held back: its effect is in the saved state.
  mailbox_->Settle(running_[2], Made(3));
  Mailbox next("a", {});
  ASSERT_TRUE(next.Restore(now_, mailbox_->Save()).ok());
  mailbox_.emplace(std::move(next));
  running_.clear();
  EXPECT_THAT(Numbers(Offer(3).replies), ElementsAre(3));
  EXPECT_THAT(Numbers(Offer(1).replies), ElementsAre(1));
  EXPECT_TRUE(Offer(2).work) << "it had not ended";
  (void)Offer(4);
  EXPECT_THAT(Run(), ElementsAre("c:m2", "c:m4"));
}

TEST_F(MailboxTest, ASavedMailboxIsNotTrusted) {
  Mailbox next("a", {});
  EXPECT_EQ(next.Restore(now_, "junk").error().code, ErrorCode::kCorrupt);
  (void)Offer(1);
  (void)Run();
  mailbox_->Settle(running_[0], Made(~uint64_t{0}));
  EXPECT_EQ(next.Restore(now_, mailbox_->Save()).error().code, ErrorCode::kCorrupt);
}

// The caller learned from the incarnation before what this one has never heard of.
TEST_F(MailboxTest, ABaseThatJumpsOverAGapFreesWhatIsHeldBehindIt) {
  (void)Offer(3);
  (void)Offer(4);
  EXPECT_THAT(Run(), IsEmpty());
  EXPECT_TRUE(Check({3, 4}, 3).work);
  EXPECT_THAT(Run(), ElementsAre("c:m3", "c:m4"));
  (void)Offer(7, 5);
  EXPECT_TRUE(Offer(7, 7).work) << "so does a repeat";
  EXPECT_THAT(Run(), ElementsAre("c:m7"));
}

TEST_F(MailboxTest, ABaseThatJumpsOverWhatWaitsDropsIt) {
  (void)Offer(1, 1, 10);
  (void)Offer(2, 1, 10);
  (void)Offer(4, 1, 10);
  (void)Offer(100, 100, 7);
  EXPECT_THAT(Run(), ElementsAre("c:m100"));
  EXPECT_EQ(mailbox_->bytes(), 0u);
  SettleAll();
}

TEST_F(MailboxTest, WhatRunsWhenItsCallerHasGoneOnIsSettledQuietly) {
  (void)Offer(1);
  (void)Run();
  (void)Offer(2, 2);
  SettleAll();
  EXPECT_THAT(Numbers(Check({1}, 2).replies), IsEmpty());
  EXPECT_THAT(Run(), ElementsAre("c:m2"));
}

TEST_F(MailboxTest, IdleSessionsAreForgottenAndBusyOnesAreNot) {
  (void)Offer(1);
  (void)mailbox_->Offer(now_, "busy", Call(1));
  (void)mailbox_->Offer(now_, "holds", Call(2, 1, 50));
  (void)Run();
  mailbox_->Settle(running_[0], Made(1));
  now_ = now_ + kSessionIdle;
  mailbox_->Forget(now_);
  EXPECT_EQ(mailbox_->sessions(), 3u);
  mailbox_->Forget(now_ + nanoseconds(1));
  EXPECT_EQ(mailbox_->sessions(), 1u);
  EXPECT_EQ(mailbox_->bytes(), 0u);
  mailbox_->Settle(running_[1], Made(1));
  mailbox_->Forget(now_ + seconds(1));
  EXPECT_EQ(mailbox_->sessions(), 0u);
}

TEST_F(MailboxTest, ClearTakesAllThatWaits) {
  (void)Offer(1, 1, 10);
  (void)mailbox_->OfferLocal({"", 1, "l", "xx", Time{1}, nullptr});
  EXPECT_EQ(mailbox_->Clear().size(), 2u);
  EXPECT_EQ(mailbox_->waiting(), 0u);
  EXPECT_EQ(mailbox_->bytes(), 0u);
}

}  // namespace
}  // namespace troupe::actors
