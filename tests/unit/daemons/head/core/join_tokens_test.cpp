// Join tokens: each gives the keys to one peer, for its time, and survives a head that has not used
// it.
#include "daemons/head/core/join_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kTokenKey(40, 'k');

class JoinTokensTest : public ::testing::Test {
 protected:
  Status Admit(const std::string& node = "", Duration valid = seconds(3600)) {
    const Status status =
        tokens_.Admit({1, kTokenKey, node, static_cast<uint64_t>(valid / milliseconds(1))});
    Sort(queue_);
    return status;
  }
  JoinReply Ask(const std::string& from, const std::string& node = "n") {
    Say(from, wire::Encode(kFrameJoinRequest, JoinRequest{node}));
    return std::exchange(reply_, std::nullopt).value_or(JoinReply{255, "no answer", ""});
  }
  void Say(const std::string& from, const std::string& frame) {
    tokens_.OnGuest(from, kTokenKey, frame);
    Sort(queue_);
  }
  void Pass(Duration d) {
    queue_.SetNow(queue_.now() + d);
    tokens_.OnTick();
    Sort(queue_);
  }
  // Another head takes the records up.
  JoinReply AskNext(const std::string& from) {
    HeadQueue queue;
    JoinTokens next(&queue, "keys");
    next.Restore(records_);
    Sort(queue);
    next.OnGuest(from, kTokenKey, wire::Encode(kFrameJoinRequest, JoinRequest{"n"}));
    Sort(queue);
    return std::exchange(reply_, std::nullopt).value_or(JoinReply{255, "no answer", ""});
  }
  void Sort(HeadQueue& queue) {
    while (std::optional<HeadStep> next = queue.Take(queue.now())) {
      auto& effect = std::get<HeadEffect>(*next);
      if (auto* guest = std::get_if<step::LetGuest>(&effect))
        guest->in ? (void)guests_.insert(guest->key) : (void)guests_.erase(guest->key);
      if (auto* keep = std::get_if<step::Keep>(&effect)) {
        keep->record.empty() ? (void)records_.erase(keep->key)
                             : (void)(records_[keep->key] = keep->record);
      }
      if (auto* send = std::get_if<step::Send>(&effect))
        reply_ = *wire::Decode<JoinReply>(kFrameJoinReply, send->frame);
    }
  }

  HeadQueue queue_;
  JoinTokens tokens_{&queue_, "keys"};
  std::set<std::string> guests_;
  std::map<std::string, std::string> records_;
  std::optional<JoinReply> reply_;
};

TEST_F(JoinTokensTest, ATokenGivesTheKeysOnce) {
  ASSERT_TRUE(Admit().ok());
  EXPECT_THAT(guests_, SizeIs(1));
  EXPECT_EQ(Ask("peer-1").keys, "keys");
  EXPECT_EQ(Ask("peer-1").keys, "keys") << "its answer may have been lost";
  const JoinReply second = Ask("peer-2");  // JT-1
  EXPECT_EQ(second.code, static_cast<uint8_t>(ErrorCode::kPermissionDenied));
  EXPECT_EQ(second.keys, "");
  EXPECT_THAT(second.message, HasSubstr("was used before"));
  Pass(kJoinRepeat);
  EXPECT_THAT(guests_, IsEmpty());
  EXPECT_EQ(Ask("peer-1").keys, "");
}

TEST_F(JoinTokensTest, ItsTimeEnds) {
  ASSERT_TRUE(Admit("", seconds(10)).ok());
  Pass(seconds(9));
  EXPECT_THAT(guests_, SizeIs(1));
  queue_.SetNow(queue_.now() + seconds(1));
  EXPECT_EQ(Ask("peer-1").keys, "") << "JT-2, also before a tick";
  Pass(seconds(1));
  EXPECT_THAT(guests_, IsEmpty());
  ASSERT_TRUE(Admit("", seconds(100 * 86400)).ok());
  Pass(kJoinTokenLimit);
  EXPECT_THAT(guests_, IsEmpty()) << "none is for ever";
}

TEST_F(JoinTokensTest, ATokenOfANodeIsForThatNode) {
  ASSERT_TRUE(Admit("spot-1").ok());
  EXPECT_THAT(Ask("peer-1", "spot-2").message, HasSubstr("is for the node spot-1"));  // JT-3
  EXPECT_EQ(Ask("peer-1", "spot-1").keys, "keys");
}

TEST_F(JoinTokensTest, TheNextHeadKnowsThoseThatNobodyHasUsed) {
  ASSERT_TRUE(Admit().ok());
  EXPECT_EQ(AskNext("peer-1").keys, "keys");
  EXPECT_EQ(Ask("peer-1").keys, "keys");
  EXPECT_THAT(records_, IsEmpty());
  EXPECT_EQ(AskNext("peer-2").keys, "");
}

TEST_F(JoinTokensTest, AStoreThatHasLostThemGetsThemAgain) {
  ASSERT_TRUE(Admit().ok());
  const auto records = std::exchange(records_, {});
  tokens_.RefreshKeys();
  Sort(queue_);
  EXPECT_EQ(records_, records);
  (void)Ask("peer-1");
  tokens_.RefreshKeys();
  Sort(queue_);
  EXPECT_THAT(records_, IsEmpty());
}

TEST_F(JoinTokensTest, AGuestMaySayNothingElse) {
  ASSERT_TRUE(Admit().ok());
  for (const std::string& frame : {std::string(), std::string("rubbish"),
                                   wire::Encode(kFrameQuery, Query{1, QueryVerb::kDown, "", "", 0}),
                                   wire::Encode(kFrameNodeHello, NodeHello{})}) {
    Say("peer-1", frame);
    EXPECT_FALSE(reply_.has_value());
  }
  EXPECT_EQ(Ask("peer-1").keys, "keys");
}

TEST_F(JoinTokensTest, ThereAreNotTooMany) {
  Status last = Status::Ok();
  for (size_t i = 0; last.ok() && i <= kJoinTokensMax; ++i) {
    std::string key = std::to_string(i);
    key.resize(40, '-');
    last = tokens_.Admit({i, key, "", 3'600'000});
    if (i % 1000 == 0) Sort(queue_);
  }
  EXPECT_EQ(last.error().code, ErrorCode::kResourceExhausted);
  EXPECT_FALSE(tokens_.Admit({1, "short", "", 1000}).ok());
}

TEST_F(JoinTokensTest, AClusterOfOneHostHasNone) {
  JoinTokens none(&queue_, "");
  EXPECT_THAT(none.Admit({1, kTokenKey, "", 1000}).error().message, HasSubstr("of one host"));
}

TEST(JoinTokenTest, ItsTextSaysAll) {
  for (int i = 0; i < 20; ++i) {
    const JoinToken token{GenerateCurveKeys().value(), GenerateCurveKeys().value().public_key};
    const std::string text = JoinTokenText(token);
    EXPECT_EQ(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos);
    const Result<JoinToken> read = ParseJoinToken(text);
    ASSERT_TRUE(read.ok()) << text;
    EXPECT_EQ(read->head_key, token.head_key);
    EXPECT_EQ(read->guest.secret_key, token.guest.secret_key);
    EXPECT_EQ(read->guest.public_key, token.guest.public_key);
  }
}

TEST(JoinTokenTest, WhatIsNoneIsRefused) {
  const std::string good =
      JoinTokenText({GenerateCurveKeys().value(), GenerateCurveKeys().value().public_key});
  for (const std::string& text :
       {std::string(), std::string("troupe-join-"), good + "0", good.substr(1),
        good.substr(0, good.size() - 1) + "g", "x" + good.substr(1)})
    EXPECT_EQ(ParseJoinToken(text).error().code, ErrorCode::kInvalidArgument) << text;
}

}  // namespace
}  // namespace troupe::daemons
