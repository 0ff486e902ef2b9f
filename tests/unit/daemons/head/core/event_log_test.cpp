// A driver gets every event that matters, in order, and the head holds a bounded number of bytes.
#include "daemons/head/core/event_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::daemons {
namespace {

RunEvent Output(size_t bytes) { return {"log", std::string(bytes, 'l'), "", 0}; }

// Takes events as DriverClient does.
struct Driver {
  uint64_t next = 0;
  std::string part;
  std::vector<RunEvent> events;

  size_t Drain(EventLog& log) {
    size_t bytes = 0;
    while (const auto batch = log.Next()) {
      EXPECT_EQ(batch->first, next);
      EXPECT_EQ(batch->offset, part.size());
      for (const RunEvent& event : batch->events) {
        bytes += event.json.size() + event.payload.size();
        part += event.payload;
        if (event.rest > 0) continue;
        events.push_back({event.kind, event.json, std::exchange(part, ""), 0});
        ++next;
      }
    }
    return bytes;
  }
  [[nodiscard]] Subscribe Says(uint64_t room = 1 << 20) const {
    return {"d", "j", "log", next, part.size(), room, false};
  }
};

TEST(EventLogTest, NoMoreThanTheWindowIsSentBeforeTheDriverHasSeenIt) {
  EventLog log;
  for (int i = 0; i < 5000; ++i) (void)log.AddOutput(Output(1000), 1);
  Driver driver;
  EXPECT_LE(driver.Drain(log), kEventWindowBytes + kEventPartBytes + 1000);
  EXPECT_EQ(driver.Drain(log), 0U);
  log.Seen(Time{1}, driver.Says(), false);
  EXPECT_GT(driver.Drain(log), 0U);
}

TEST(EventLogTest, ADriverWithoutRoomGetsNothingUntilItHasSome) {
  EventLog log;
  log.Seen(Time{1}, Driver{}.Says(0), false);
  log.Add({"epoch", "{}", "", 0});
  Driver driver;
  EXPECT_EQ(driver.Drain(log), 0U);
  log.Seen(Time{2}, driver.Says(1), false);
  EXPECT_GT(driver.Drain(log), 0U);
}

TEST(EventLogTest, WhoLooksOnGetsAllThatIsKeptAndHoldsNothingUp) {
  EventLog log;
  Driver driver;
  Driver watcher;
  const auto says = [&](uint64_t room) {
    Subscribe subscribe = watcher.Says(room);
    subscribe.driver = "w";
    return subscribe;
  };
  log.Add({"epoch", "{}", "", 0});
  log.Watch(Time{1}, says(0), true);
  EXPECT_EQ(driver.Drain(log), 2U);
  log.Seen(Time{2}, driver.Says(), false);
  EXPECT_TRUE(log.all_seen());
  EXPECT_EQ(log.unseen_bytes(), 0U);
  EXPECT_FALSE(log.NextOf("w").has_value());
  log.Watch(Time{3}, says(1 << 20), false);
  ASSERT_TRUE(log.NextOf("w").has_value());
  EXPECT_EQ(log.Watchers(Time{4}), std::vector<std::string>{"w"});
  EXPECT_TRUE(log.Watchers(Time{4} + kWatcherLease).empty());
}

TEST(EventLogTest, WithoutAReaderTheNewestIsKeptAndAllResultsAre) {
  EventLog log;
  log.SetUnattended(true);
  for (int i = 0; i < 50'000; ++i) EXPECT_TRUE(log.AddOutput(Output(1000), 1));
  EXPECT_LE(log.bytes(), kRunEventsBytesMax);
  for (int i = 0; i < 100; ++i) log.Add({"result", "{}", std::string(256 << 10, 'r'), 0});
  log.Add({"done", "{}", "", 0});
  EXPECT_EQ(log.unseen_bytes(), 0U);
  log.SetUnattended(false);
  Subscribe late{"e", "j", "log", 0, 0, 1 << 20, false};
  log.Watch(Time{1}, late, true);
  log.Promote("e");
  size_t results = 0;
  std::string last;
  uint64_t next = log.first();
  for (int64_t beat = 2; last != "done" && beat < 10'000; ++beat) {
    while (const auto batch = log.Next()) {
      next = batch->first + batch->events.size();
      for (const RunEvent& event : batch->events) {
        results += event.kind == "result" && event.rest == 0 ? 1 : 0;
        last = event.kind;
        late.offset = event.rest == 0 ? 0 : batch->offset + event.payload.size();
        if (event.rest > 0) --next;
      }
      late.next = next;
    }
    log.Seen(Time{beat}, late, false);
  }
  EXPECT_EQ(results, 100U);
  EXPECT_EQ(last, "done");
}

TEST(EventLogTest, OutputThatNobodyTakesIsCountedAndOtherEventsAreKept) {
  EventLog log;
  uint64_t added = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (log.AddOutput(Output(10'000), 3)) ++added;
    if (i % 1000 == 0) log.Add({"epoch", std::to_string(i), "", 0});
  }
  EXPECT_LE(log.bytes(), kRunOutputBytesMax + kRunEventsBytesMax);
  EXPECT_EQ(log.TakeDropped(), 0U) << "there is no room for it yet";
  Driver driver;
  for (int i = 0; i < 100; ++i) {
    driver.Drain(log);
    log.Seen(Time{i + 1}, driver.Says(), false);
  }
  EXPECT_EQ(log.TakeDropped(), 3 * (10'000 - added));
  std::vector<std::string> epochs;
  for (const RunEvent& event : driver.events)
    if (event.kind == "epoch") epochs.push_back(event.json);
  ASSERT_EQ(epochs.size(), 10U);
  EXPECT_EQ(epochs.back(), "9000");
}

TEST(EventLogTest, ALargePayloadTravelsInParts) {
  EventLog log;
  std::string payload(size_t{5} << 20, '\0');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 31 >> 8);
  log.Add({"worker", "before", "", 0});
  log.Add({"result", "json", payload, 0});
  log.Add({"done", "after", "", 0});
  Driver driver;
  for (int i = 0; i < 100 && driver.events.size() < 3; ++i) {
    EXPECT_LE(driver.Drain(log), kEventWindowBytes + 2 * kEventPartBytes);
    log.Seen(Time{i + 1}, driver.Says(), false);
  }
  ASSERT_EQ(driver.events.size(), 3U);
  EXPECT_EQ(driver.events[1].payload, payload);
  EXPECT_EQ(driver.events[2].json, "after");
}

TEST(EventLogTest, WhatWasLostIsSentAgainOnlyThen) {
  EventLog log;
  log.Add({"worker", "one", "", 0});
  ASSERT_TRUE(log.Next().has_value());
  const Subscribe nothing{"d", "j", "log", 0, 0, 1 << 20, false};
  log.Seen(Time{1}, nothing, false);
  EXPECT_FALSE(log.Next().has_value()) << "it may be on its way";
  Subscribe lost = nothing;
  lost.lost = true;
  log.Seen(Time{2}, lost, false);
  EXPECT_TRUE(log.Next().has_value());
  log.Seen(Time{3} + kEventsRepeat, nothing, false);
  EXPECT_TRUE(log.Next().has_value()) << "nothing was seen for so long";
  EXPECT_FALSE(log.Next().has_value());
}

TEST(EventLogTest, EventsThatWereSeenMakeRoom) {
  EventLog log;
  Driver driver;
  for (int i = 0; i < 1000; ++i) {
    log.Add({"report", "{}", std::string(100'000, 'r'), 0});
    driver.Drain(log);
    log.Seen(Time{i + 1}, driver.Says(), false);
  }
  EXPECT_EQ(driver.events.size(), 1000U);
  EXPECT_LE(log.bytes(), kRunEventsBytesMax + 200'000);
  EXPECT_GT(log.first(), 900U);
  const auto late = [&] {
    log.Seen(Time{2000}, Subscribe{"d", "j", "log", 0, 0, 1 << 20, false}, true);
    return log.Next();
  }();
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->first, log.first());
  EXPECT_EQ(late->oldest, log.first());
}

TEST(EventLogTest, ADriversNumbersAreNotTrusted) {
  EventLog log;
  log.Add({"report", "{}", "payload", 0});
  log.Seen(Time{1}, Subscribe{"d", "j", "log", 0, 1'000'000, 1 << 20, true}, false);
  (void)log.Next();
  log.Seen(Time{2}, Subscribe{"d", "j", "log", ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, true},
           false);
  EXPECT_FALSE(log.Next().has_value());
  log.Seen(Time{3}, Subscribe{"d", "j", "log", 0, 0, 1 << 20, true}, false);
  const auto batch = log.Next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->events[0].payload, "payload");
}

}  // namespace
}  // namespace troupe::daemons
