// Questions for the ends of logs: lost frames, nodes that are gone or silent, too many at once.
#include "daemons/head/core/log_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LogRequestsTest : public ::testing::Test {
 protected:
  struct Reply {
    std::string driver;
    DriverReply said;
  };
  LogRequestsTest() { Join("n"); }

  void Join(const std::string& node) {
    NodeRecord record;
    record.id = node;
    record.incarnation = 1;
    record.host = "h";
    (void)nodes_.Step(queue_.now(), NodeJoined{record});
  }
  void Query(const std::string& driver, uint64_t request, const std::string& node = "n") {
    requests_.OnQuery(driver, request, node, "worker-a", 100);
    Sort();
  }
  void Tail(const LogTail& tail) {
    requests_.OnTail(tail);
    Sort();
  }
  void Pass(Duration d) {
    for (const Time end = queue_.now() + d; queue_.now() < end;) {
      queue_.SetNow(queue_.now() + milliseconds(100));
      requests_.OnTick();
      Sort();
    }
  }
  void Sort() {
    while (const std::optional<HeadStep> next = queue_.Take(queue_.now())) {
      if (const auto* task = std::get_if<HeadTask>(&*next)) {
        const auto& ask = std::get<step::SendToNode>(*task);
        asked_.emplace_back(ask.node, *wire::Decode<ReadLog>(kFrameReadLog, ask.frame));
      } else {
        const auto& answer = std::get<step::Send>(std::get<HeadEffect>(*next));
        replies_.push_back(
            {answer.to, *wire::Decode<DriverReply>(kFrameDriverReply, answer.frame)});
      }
    }
  }

  HeadQueue queue_;
  NodeTable nodes_{NodeTableOptions{}};
  std::vector<std::pair<std::string, ReadLog>> asked_;
  std::vector<Reply> replies_;
  LogRequests requests_{&queue_, &nodes_};
};

TEST_F(LogRequestsTest, AnAnswerGoesToWhoHasAsked) {
  Query("d", 7);
  Query("e", 7);
  Query("e", 7, "m");  // A repeat.
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[0].first, "n");
  EXPECT_EQ(asked_[0].second.log, "worker-a");
  EXPECT_EQ(asked_[0].second.lines, 100U);
  Tail({asked_[1].second.number, 0, "", "/logs/x", "a\n\xff\n"});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].driver, "e");
  EXPECT_EQ(replies_[0].said.request, 7U);
  const auto json = nlohmann::json::parse(replies_[0].said.json);
  EXPECT_EQ(json.at("node"), "n");
  EXPECT_EQ(json.at("file"), "/logs/x");
  EXPECT_EQ(json.at("text"), "a\n\xef\xbf\xbd\n");
  Tail({asked_[1].second.number, 0, "", "/logs/x", "again"});
  EXPECT_THAT(replies_, SizeIs(1));
  Query("e", 7);  // The reply was lost.
  EXPECT_THAT(asked_, SizeIs(3));
}

TEST_F(LogRequestsTest, AFrameThatIsLostIsSentAgain) {
  Query("d", 1);
  Pass(kLogAskAgain);
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[0].second.number, asked_[1].second.number);
  Tail({asked_[0].second.number, 0, "", "f", "text"});
  Tail({asked_[0].second.number, 0, "", "f", "text"});
  Pass(2 * kLogLimit);
  EXPECT_THAT(asked_, SizeIs(2));
  EXPECT_THAT(replies_, SizeIs(1));
}

TEST_F(LogRequestsTest, SilenceIsAnErrorInTime) {
  Query("d", 1);
  Pass(kLogLimit - milliseconds(100));
  EXPECT_THAT(replies_, IsEmpty());
  Pass(milliseconds(200));
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(static_cast<ErrorCode>(replies_[0].said.code), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(replies_[0].said.message, HasSubstr("node n did not answer"));
  Tail({asked_[0].second.number, 0, "", "f", "late"});
  EXPECT_THAT(replies_, SizeIs(1));
}

TEST_F(LogRequestsTest, ANodeThatIsGoneIsToldAtOnce) {
  Query("d", 1);
  (void)nodes_.Step(queue_.now(), NodeLost{"n", 1, "its host was ended"});
  Pass(milliseconds(100));
  Query("d", 2);
  ASSERT_THAT(replies_, SizeIs(2));
  for (const Reply& reply : replies_) {
    EXPECT_EQ(static_cast<ErrorCode>(reply.said.code), ErrorCode::kUnavailable);
    EXPECT_THAT(reply.said.message, HasSubstr("node n is dead: its host was ended"));
  }
  EXPECT_THAT(asked_, SizeIs(1));
}

TEST_F(LogRequestsTest, WhatTheNodeRefusesIsToldWithItsName) {
  Query("d", 1);
  const auto not_found = static_cast<uint8_t>(ErrorCode::kNotFound);
  Tail({asked_[0].second.number, not_found, "this node keeps no logs", "", ""});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(static_cast<ErrorCode>(replies_[0].said.code), ErrorCode::kNotFound);
  EXPECT_EQ(replies_[0].said.message, "node n: this node keeps no logs");
}

TEST_F(LogRequestsTest, OpenQuestionsAreBounded) {
  for (uint64_t i = 0; i < kLogRequestsMax; ++i) Query("d", i);
  EXPECT_THAT(replies_, IsEmpty());
  Query("d", kLogRequestsMax);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(static_cast<ErrorCode>(replies_[0].said.code), ErrorCode::kBackpressure);
}

}  // namespace
}  // namespace troupe::daemons
