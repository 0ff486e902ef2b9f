// The end of a log, and questions for it on their way through the head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "daemons/log_requests.h"
#include "daemons/log_tail.h"

namespace troupe::daemons {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LogTailTest : public ::testing::Test {
 protected:
  LogTailTest() : path_(::testing::TempDir() + "/tail-" + std::to_string(::getpid()) + ".log") {}
  ~LogTailTest() override { std::filesystem::remove(path_); }
  std::string Tail(const std::string& text, size_t lines) {
    std::ofstream(path_, std::ios::binary) << text;
    return ReadTail(path_, lines).value();
  }
  const std::string path_;
};

TEST_F(LogTailTest, IsTheLastLines) {
  for (const char* end : {"", "\n"}) {
    const std::string text = std::string("one\ntwo\n\nfour") + end;
    EXPECT_EQ(Tail(text, 1), std::string("four") + end);
    EXPECT_EQ(Tail(text, 2), std::string("\nfour") + end);
    EXPECT_EQ(Tail(text, 3), std::string("two\n\nfour") + end);
    EXPECT_EQ(Tail(text, 4), text);
    EXPECT_EQ(Tail(text, 100), text);
    EXPECT_EQ(Tail(text, 0), "");
  }
  EXPECT_EQ(Tail("", 5), "");
  EXPECT_EQ(Tail("\n", 1), "\n");
  EXPECT_EQ(Tail("\nx", 1), "x");
  EXPECT_EQ(Tail("\nx", 2), "\nx");
}

TEST_F(LogTailTest, IsBounded) {
  const std::string text = std::string(kLogTailBytesMax, 'x') + "\nlast\n";
  const std::string tail = Tail(text, 10);
  EXPECT_EQ(tail.size(), kLogTailBytesMax);
  EXPECT_TRUE(tail.ends_with("x\nlast\n"));
}

TEST_F(LogTailTest, OfAFileThatIsNotThereIsAnError) {
  const Result<std::string> tail = ReadTail(path_ + ".other", 5);
  ASSERT_FALSE(tail.ok());
  EXPECT_EQ(tail.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(tail.error().message, HasSubstr(path_ + ".other: No such file"));
}

TEST(LogPathTest, StaysInItsDirectory) {
  EXPECT_EQ(LogPath("/logs", "worker-a1b2").value(), "/logs/worker-a1b2.log");
  for (const char* log : {"", "../key", "a/b", "..", "a.b", "a b"})
    EXPECT_EQ(LogPath("/logs", log).error().code, ErrorCode::kInvalidArgument) << log;
  EXPECT_EQ(LogPath("/logs", std::string(129, 'a')).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(LogPath("", "node").error().code, ErrorCode::kNotFound);
}

class LogRequestsTest : public ::testing::Test {
 protected:
  struct Reply {
    std::string driver;
    uint64_t request;
    Status status;
    std::string json;
  };
  void Query(const std::string& driver, uint64_t request, const std::string& node = "n") {
    requests_.OnQuery(now_, driver, request, node, "worker-a", 100);
  }
  void Pass(Duration d) {
    for (const Time end = now_ + d; now_ < end;) {
      now_ = now_ + milliseconds(100);
      requests_.OnTick(now_);
    }
  }

  Time now_{};
  Status reachable_ = Status::Ok();
  std::vector<std::pair<std::string, ReadLog>> asked_;
  std::vector<Reply> replies_;
  LogRequests requests_{
      {[this](const std::string&) { return reachable_; },
       [this](const std::string& node, const ReadLog& read) { asked_.emplace_back(node, read); },
       [this](const std::string& driver, uint64_t request, const Status& status,
              const std::string& json) {
         replies_.push_back({driver, request, status, json});
       }}};
};

TEST_F(LogRequestsTest, AnAnswerGoesToWhoHasAsked) {
  Query("d", 7);
  Query("e", 7);
  Query("e", 7, "m");  // A repeat.
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[0].first, "n");
  EXPECT_EQ(asked_[0].second.log, "worker-a");
  EXPECT_EQ(asked_[0].second.lines, 100U);
  requests_.OnTail({asked_[1].second.number, 0, "", "/logs/x", "a\n\xff\n"});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].driver, "e");
  EXPECT_EQ(replies_[0].request, 7U);
  const auto json = nlohmann::json::parse(replies_[0].json);
  EXPECT_EQ(json.at("node"), "n");
  EXPECT_EQ(json.at("file"), "/logs/x");
  EXPECT_EQ(json.at("text"), "a\n\xef\xbf\xbd\n");
  requests_.OnTail({asked_[1].second.number, 0, "", "/logs/x", "again"});
  EXPECT_THAT(replies_, SizeIs(1));
  Query("e", 7);  // The reply was lost.
  EXPECT_THAT(asked_, SizeIs(3));
}

TEST_F(LogRequestsTest, AFrameThatIsLostIsSentAgain) {
  Query("d", 1);
  Pass(kLogAskAgain);
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[0].second.number, asked_[1].second.number);
  requests_.OnTail({asked_[0].second.number, 0, "", "f", "text"});
  requests_.OnTail({asked_[0].second.number, 0, "", "f", "text"});
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
  EXPECT_EQ(replies_[0].status.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(replies_[0].status.error().message, HasSubstr("node n did not answer"));
  requests_.OnTail({asked_[0].second.number, 0, "", "f", "late"});
  EXPECT_THAT(replies_, SizeIs(1));
}

TEST_F(LogRequestsTest, ANodeThatIsGoneIsToldAtOnce) {
  Query("d", 1);
  reachable_ = Error{ErrorCode::kUnavailable, "node n is dead"};
  Pass(milliseconds(100));
  Query("d", 2);
  ASSERT_THAT(replies_, SizeIs(2));
  for (const Reply& reply : replies_) EXPECT_EQ(reply.status.error().message, "node n is dead");
  EXPECT_THAT(asked_, SizeIs(1));
}

TEST_F(LogRequestsTest, WhatTheNodeRefusesIsToldWithItsName) {
  Query("d", 1);
  const auto not_found = static_cast<uint8_t>(ErrorCode::kNotFound);
  requests_.OnTail({asked_[0].second.number, not_found, "this node keeps no logs", "", ""});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(replies_[0].status.error().message, "node n: this node keeps no logs");
}

TEST_F(LogRequestsTest, OpenQuestionsAreBounded) {
  for (uint64_t i = 0; i < kLogRequestsMax; ++i) Query("d", i);
  EXPECT_THAT(replies_, IsEmpty());
  Query("d", kLogRequestsMax);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status.error().code, ErrorCode::kBackpressure);
}

}  // namespace
}  // namespace troupe::daemons
