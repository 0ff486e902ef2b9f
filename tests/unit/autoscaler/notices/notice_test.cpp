#include "autoscaler/notices/notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/autoscaler/notices/watch_rig.h"

namespace troupe::notices {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kYear2026;

TEST(NoticeTimeTest, TimesAreReadAsTheCloudsWriteThem) {
  EXPECT_EQ(ParseIsoTime("2017-09-18T08:22:00Z"), 1505722920);
  EXPECT_EQ(ParseIsoTime("2026-01-01T00:00:00.123Z"), kYear2026);
  EXPECT_EQ(ParseIsoTime("2024-02-29T00:00:00Z"), 1709164800);
  EXPECT_EQ(ParseHttpTime("Mon, 11 Apr 2022 22:26:58 GMT"), 1649716018);
  EXPECT_EQ(ParseHttpTime("21 Jan 2019 09:00:43 GMT"), 1548061243);
  EXPECT_EQ(ParseHttpTime("1 Jan 2026 00:00:00 GMT"), kYear2026);
}

TEST(NoticeTimeTest, WhatIsNoTimeIsNone) {
  for (const char* text :
       {"", "Z", "2017-09-18", "2017-09-18T08:22:00", "2017-13-18T08:22:00Z",
        "2017-02-30T08:22:00Z", "2017-09-18T24:22:00Z", "2017-09-18T08:60:00Z",
        "-017-09-18T08:22:00Z", "2017-09-18T08:22:00.Z", "2017-09-18T08:22:00.1.2Z",
        "0001-01-01T00:00:00Z", "2017-09-18T08:22:00+01Z", "99999999999999999999999Z"})
    EXPECT_FALSE(ParseIsoTime(text)) << text;
  for (const char* text : {"", ", ", "GMT", "Mon, 11 Apr 2022 22:26:58", "11 Foo 2022 22:26:58 GMT",
                           "Mon, 32 Apr 2022 22:26:58 GMT", "Mon, 11 Apr 2022 22:26 GMT",
                           "0 Apr 2022 22:26:58 GMT", "Mon, 11 Apr 99999 22:26:58 GMT"})
    EXPECT_FALSE(ParseHttpTime(text)) << text;
}

TEST(NoticeTimeTest, RandomBytesDoNoHarm) {
  std::mt19937_64 random(3);
  const std::string from = "0123456789-:TZ., GMTJanApr";
  for (int i = 0; i < 200'000; ++i) {
    std::string text = i % 2 == 0 ? "2017-09-18T08:22:00Z" : "Mon, 11 Apr 2022 22:26:58 GMT";
    for (size_t changes = random() % 3 + 1; changes > 0; --changes)
      text[random() % text.size()] = from[random() % from.size()];
    if (random() % 8 == 0) text.resize(random() % text.size());
    const std::optional<int64_t> at = i % 2 == 0 ? ParseIsoTime(text) : ParseHttpTime(text);
    EXPECT_GE(at.value_or(0), 0) << text;
  }
}

TEST(NoticeTimeTest, WhatIsLeftCountsByTheClockOfTheService) {
  const Instant now{Time{}, kYear2026};
  HttpReply reply;
  EXPECT_EQ(LeftUntil(kYear2026 + 90, reply, now, seconds(120)), seconds(90));
  reply.headers["date"] = "Thu, 01 Jan 2026 01:00:00 GMT";  // This machine is an hour behind.
  EXPECT_EQ(LeftUntil(kYear2026 + 3690, reply, now, seconds(120)), seconds(90));
  EXPECT_EQ(LeftUntil(kYear2026 + 90, reply, now, seconds(120)), Duration::zero());
  EXPECT_EQ(LeftUntil(kYear2026 + 9'000'000'000, reply, now, seconds(120)), seconds(120));
  EXPECT_EQ(LeftUntil(std::nullopt, reply, now, seconds(120)), Duration::zero());
  reply.headers["date"] = "yesterday";
  EXPECT_EQ(LeftUntil(kYear2026 + 90, reply, now, seconds(120)), seconds(90));
}

TEST(NoticeTimeTest, ANodeIsDrainedBeforeItsMachineIsGone) {
  EXPECT_EQ(DrainLimit(seconds(120)), seconds(115));
  EXPECT_EQ(DrainLimit(seconds(8)), seconds(6));
  EXPECT_EQ(DrainLimit(Duration::zero()), seconds(2));  // There is nothing to lose in trying.
}

TEST(NoticeTimeTest, AJobOfSlurmEndsWhenItsVariableSays) {
  EXPECT_EQ(SlurmLeft("1767225700", kYear2026), seconds(100));
  EXPECT_EQ(SlurmLeft("0", kYear2026), Duration::zero());
  for (const char* text : {"", "soon", "-1", "1e9", "99999999999999999999", "17672257000"})
    EXPECT_FALSE(SlurmLeft(text, kYear2026)) << text;
}

TEST(NoticeTextTest, WhatAServiceSaysIsPlainAndShort) {
  EXPECT_EQ(PlainText("a\nb\x1b[31mc\xc3\xa4"), "a?b?[31mc??");
  EXPECT_EQ(PlainText(std::string(5000, 'x')).size(), kNoticeTextMax);
}

TEST(NoticeSourcesTest, AMachineTellsWhoseItIs) {
  EXPECT_THAT(DetectSources({}), IsEmpty());
  EXPECT_THAT(DetectSources({"Amazon EC2", "m5.large", "", "", false}), ElementsAre("aws"));
  EXPECT_THAT(DetectSources({"Xen", "HVM domU", "Amazon EC2", "", false}), ElementsAre("aws"));
  EXPECT_THAT(DetectSources({"Google", "Google Compute Engine", "Google", "", false}),
              ElementsAre("gcp"));
  EXPECT_THAT(DetectSources({"Microsoft Corporation", "Virtual Machine", "",
                             "7783-7084-3265-9085-8269-3286-77", true}),
              ElementsAre("azure", "slurm"));
  EXPECT_THAT(DetectSources({"Microsoft Corporation", "Virtual Machine", "", "", false}),
              IsEmpty());  // Hyper-V at home.
}

}  // namespace
}  // namespace troupe::notices
