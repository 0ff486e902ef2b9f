// What a worker prints never makes more than a bounded number of bytes wait, or be on the way.
#include "daemons/node/core/output_relay.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::daemons {
namespace {

constexpr Time kBegin{1'000'000'000};

size_t BytesOf(const WorkerOutput& output) {
  size_t bytes = 0;
  for (const std::string& line : output.lines) bytes += line.size() + kOutputLineCost;
  return bytes;
}

TEST(OutputRelayTest, LinesAreCutFromPiecesAndToldInOrder) {
  OutputRelay relay;
  relay.Begin("p", "");
  for (const char* piece : {"one\ntw", "o\n", "\nthree"}) relay.Add(kBegin, "p", false, piece);
  const auto [rest, last_lines] = relay.End(kBegin, "p");
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].lines, (std::vector<std::string>{"one", "two", "", "three"}));
  EXPECT_EQ(rest[0].dropped, 0U);
  EXPECT_TRUE(last_lines.empty());
}

TEST(OutputRelayTest, ALineWithoutEndIsCut) {
  OutputRelay relay;
  relay.Begin("p", "");
  relay.Add(kBegin, "p", false, std::string(2 * kOutputLineBytesMax + 1, 'x') + "\n");
  const std::vector<WorkerOutput> rest = relay.End(kBegin, "p").first;
  std::vector<std::string> lines;
  for (const WorkerOutput& one : rest)
    lines.insert(lines.end(), one.lines.begin(), one.lines.end());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].size(), kOutputLineBytesMax);
  EXPECT_EQ(lines[2], "x");
}

TEST(OutputRelayTest, OfAProgressBarTheNewestStateIsToldOnceASecond) {
  OutputRelay relay;
  relay.Begin("p", "");
  std::vector<std::string> told;
  for (int percent = 0; percent <= 100; ++percent) {  // As tqdm does, ten a second.
    const Time now = kBegin + percent * milliseconds(100);
    relay.Add(now, "p", true, "\r" + std::to_string(percent) + "%|##");
    relay.Tell(now);
    while (const auto output = relay.Next())
      told.insert(told.end(), output->lines.begin(), output->lines.end());
  }
  ASSERT_EQ(told.size(), 11U);
  EXPECT_EQ(told[0], "0%|##");
  EXPECT_EQ(told[5], "50%|##");
  const Time end = kBegin + seconds(11);
  relay.Add(end, "p", true, "\r100%|##\nnext\r\n\r     \r");
  const auto [rest, last_lines] = relay.End(end, "p");
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].lines, (std::vector<std::string>{"100%|##", "next"}));
}

TEST(OutputRelayTest, ABarThatWritesItsReturnsLastIsTold) {
  OutputRelay relay;
  relay.Begin("p", "");
  relay.Add(kBegin, "p", false, "one\rtwo\r");
  relay.Tell(kBegin);
  const auto output = relay.Next();
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->lines, std::vector<std::string>{"two"});
}

TEST(OutputRelayTest, NoMoreThanTheWindowIsOnTheWay) {
  OutputRelay relay;
  relay.Begin("p", "");
  relay.Add(kBegin, "p", false, std::string(100, 'a') + "\n");
  const std::string flood = [] {
    std::string text;
    while (text.size() < (size_t{8} << 20)) text += "y\n";
    return text;
  }();
  relay.Add(kBegin, "p", false, flood);
  EXPECT_LE(relay.waiting_bytes(), kOutputWaitingBytesMax + kOutputLineBytesMax);
  size_t sent = 0;
  uint64_t last = 0;
  while (const auto output = relay.Next()) {
    sent += BytesOf(*output);
    EXPECT_GT(output->number, last);
    last = output->number;
  }
  EXPECT_LE(sent, kOutputWindowBytes + kOutputFrameBytes + kOutputLineBytesMax);
  EXPECT_EQ(relay.on_the_way(), last);
  relay.Taken(last);
  EXPECT_EQ(relay.on_the_way(), 0U);
  EXPECT_TRUE(relay.Next().has_value());
}

TEST(OutputRelayTest, EveryLineIsToldOrCountedAndTheCountNamesTheFile) {
  OutputRelay relay;
  relay.Begin("p", "/logs/worker-p.log");
  Time now = kBegin;
  uint64_t printed = 0;
  uint64_t told = 0;
  uint64_t gaps = 0;
  const auto take = [&](const WorkerOutput& output) {
    told += output.lines.size() + output.dropped;
    if (output.dropped > 0) ++gaps;
    EXPECT_EQ(output.file, "/logs/worker-p.log");
  };
  for (int turn = 0; turn < 100; ++turn) {
    std::string chunk;
    for (int i = 0; i < 30'000; ++i, ++printed) chunk += "y\n";
    relay.Add(now, "p", turn % 2 == 0, chunk);
    relay.Tell(now);
    while (const auto output = relay.Next()) {
      take(*output);
      relay.Taken(output->number);
    }
    now = now + milliseconds(20);
  }
  const auto [rest, last_lines] = relay.End(now, "p");
  for (const WorkerOutput& output : rest) take(output);
  EXPECT_EQ(last_lines.size(), kLastLinesKept);
  EXPECT_GT(relay.dropped(), 0U);
  EXPECT_GT(gaps, 1U);
  EXPECT_LT(gaps, 60U);
  EXPECT_EQ(told, printed);
}

TEST(OutputRelayTest, NoLineIsCountedTwiceOrNotAtAll) {
  OutputRelay relay;
  relay.Begin("p", "");
  std::string chunk;
  for (int i = 0; i < 200'000; ++i) chunk += "line\n";
  for (int i = 0; i < 5; ++i) relay.Add(kBegin, "p", true, chunk);
  relay.Add(kBegin, "p", true, "last, without an end");
  uint64_t told = 0;
  while (const auto output = relay.Next()) {
    told += output->lines.size() + output->dropped;
    relay.Taken(output->number);
  }
  const auto [rest, last_lines] = relay.End(kBegin, "p");
  for (const WorkerOutput& output : rest) told += output.lines.size() + output.dropped;
  EXPECT_EQ(told, 1'000'001U);
  ASSERT_EQ(last_lines.size(), kLastLinesKept);
  EXPECT_EQ(last_lines.back(), "last, without an end");
  EXPECT_EQ(last_lines.front(), "line");
}

TEST(OutputRelayTest, OneWorkerDoesNotUseUpTheBudgetOfAnother) {
  OutputRelay relay;
  relay.Begin("loud", "");
  relay.Begin("quiet", "");
  std::string chunk;
  for (int i = 0; i < 200'000; ++i) chunk += "line\n";
  relay.Add(kBegin, "loud", false, chunk);
  while (const auto output = relay.Next()) relay.Taken(output->number);
  relay.Add(kBegin, "quiet", false, "heard\n");
  const auto output = relay.Next();
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->process, "quiet");
  EXPECT_EQ(output->lines, std::vector<std::string>{"heard"});
}

TEST(OutputRelayTest, AHeadThatDoesNotAnswerGetsNoMoreAndNothingPilesUp) {
  OutputRelay relay;
  std::string chunk;
  for (int i = 0; i < 200'000; ++i) chunk += "line\n";
  size_t sent = 0;
  for (int worker = 0; worker < 100; ++worker) {
    const std::string name = "p" + std::to_string(worker);
    relay.Begin(name, "");
    relay.Add(kBegin, name, false, chunk);
    while (const auto output = relay.Next()) sent += BytesOf(*output);
    for (const WorkerOutput& output : relay.End(kBegin, name).first) sent += BytesOf(output);
  }
  EXPECT_LE(sent, kOutputWindowBytes + 3 * kOutputWaitingBytesMax);
  EXPECT_LE(relay.waiting_bytes(), kOutputWaitingBytesMax);
}

}  // namespace
}  // namespace troupe::daemons
