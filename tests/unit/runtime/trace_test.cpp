// Each case starts tracing in a child process of its own, since a process has one trace.
#include "runtime/trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace troupe::trace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "trace-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  // Runs `body` in a child with tracing to `to`; the file's text. The child ends without any
  // destructor or flush, as a killed one does.
  template <class F>
  std::string TextOf(const std::string& to, F body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("TROUPE_TRACE_DIR", to.c_str(), 1);
      Start("test");
      body();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::ifstream file(to + "/test-" + std::to_string(pid) + ".trace.json");
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // The events by name, without metadata; the closing bracket is what a reader supplies.
  template <class F>
  std::vector<Json> Events(F body) {
    std::vector<Json> events;
    for (const Json& event : Json::parse(TextOf(dir_ + "/made", body) + "]")) {
      if (event["ph"] != "M") events.push_back(event);
    }
    return events;
  }

  std::string dir_;
};

TEST_F(TraceTest, AnUnclosedProcessLeavesWhatHappened) {
  const auto events = Events([] {
    { const Span span("scope"); }
    Instant("notice", {{"member", "w0#1"}, {"left", int64_t{3}}});
  });
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["name"], "scope");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_GE(events[0]["dur"].get<double>(), 0);
  EXPECT_EQ(events[1]["args"]["member"], "w0#1");
  EXPECT_EQ(events[1]["args"]["left"], 3);
  EXPECT_EQ(events[0]["tid"], events[1]["tid"]);
}

TEST_F(TraceTest, ATrackShowsOneThingAtATime) {
  const auto events = Events([] {
    Enter("group a", "active");
    Enter("group a", "preparing", {{"why", "death"}});
    Enter("group b", "forming");
    Enter("group a", "");
  });
  std::string order;
  for (const Json& event : events) {
    order += event["ph"].get<std::string>() + (event["tid"] == events[0]["tid"] ? "a" : "b") + " ";
  }
  EXPECT_EQ(order, "Ba Ea Ba Bb Ea ");
}

TEST_F(TraceTest, ThreadsHaveTheirOwnRowsAndCallsTheirEnds) {
  const auto events = Events([] {
    AsyncBegin("call", 7, {{"method", "Add"}});
    std::thread([] { AsyncEnd("call", 7); }).join();
  });
  ASSERT_EQ(events.size(), 2U);
  EXPECT_NE(events[0]["tid"], events[1]["tid"]);
  EXPECT_EQ(events[0]["id2"], events[1]["id2"]);
}

TEST_F(TraceTest, BytesThatAreNotTextDoNotSpoilTheFile) {
  const auto events = Events([] { Instant("\xff\"\n", {{"key", "\xfe"}}); });
  ASSERT_EQ(events.size(), 1U);
}

TEST_F(TraceTest, TheFileHasALimit) {
  const std::string text = TextOf(dir_, [] {
    const std::string big(1 << 20, 'x');
    for (int i = 0; i < 100; ++i) Instant(big);
    if (On()) ::_exit(1);
  });
  EXPECT_LE(text.size(), kTraceBytesMax);
  EXPECT_GE(text.size(), kTraceBytesMax - (2 << 20));
  EXPECT_TRUE(Json::accept(text + "]"));
}

TEST_F(TraceTest, OffWithoutAFolderOrWithoutAPlaceForIt) {
  EXPECT_EQ(TextOf("",
                   [] {
                     if (On()) ::_exit(1);
                     Instant("nothing");
                   }),
            "");
  std::ofstream(dir_ + "/file") << "in the way";
  EXPECT_EQ(TextOf(dir_ + "/file",
                   [] {
                     if (On()) ::_exit(1);
                     Instant("nothing");
                   }),
            "");
}

}  // namespace
}  // namespace troupe::trace
