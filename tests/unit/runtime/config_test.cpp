#include "runtime/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConfigDocument Parsed(std::string_view text) {
  Result<ConfigDocument> document = ConfigDocument::Parse(text, "f.yaml");
  EXPECT_TRUE(document.ok());
  return *document;
}

std::string ProblemsOf(const ConfigDocument& document) {
  const Status status = document.Finish();
  return status.ok() ? "" : status.error().message;
}

TEST(ConfigTest, ReadsEveryType) {
  const ConfigDocument document = Parsed(
      "name: demo\nworkers: 4\nprice: 0.9\nspot: true\nidle: 90s\nheap: 4GiB\nzones: [a, b]\n"
      "env: {A: 1, B: two}\npools:\n  - {name: x}\n  - {name: y}\n");
  const ConfigMap root = document.Root();
  EXPECT_EQ(root.String("name"), "demo");
  EXPECT_EQ(root.Int("workers"), 4);
  EXPECT_DOUBLE_EQ(root.Double("price"), 0.9);
  EXPECT_TRUE(root.Bool("spot"));
  EXPECT_EQ(root.Span("idle"), seconds(90));
  EXPECT_EQ(root.Bytes("heap"), int64_t{4} << 30);
  EXPECT_THAT(root.Strings("zones"), ElementsAre("a", "b"));
  const ConfigMap env = root.Map("env");
  EXPECT_THAT(env.Keys(), ElementsAre("A", "B"));
  EXPECT_EQ(env.String("B"), "two");
  ASSERT_EQ(root.List("pools").size(), 2u);
  EXPECT_EQ(root.List("pools")[1].String("name"), "y");
  EXPECT_EQ(ProblemsOf(document), "");
}

TEST(ConfigTest, AbsentKeysGiveTheirFallback) {
  const ConfigDocument document = Parsed("");
  const ConfigMap root = document.Root();
  EXPECT_EQ(root.Int("workers", 3), 3);
  EXPECT_EQ(root.Bytes("heap", 7), 7);
  EXPECT_EQ(root.Choice("market", {"spot", "on_demand"}, "spot"), "spot");
  EXPECT_EQ(root.Map("autoscaler").Span("idle", seconds(5)), seconds(5));
  EXPECT_TRUE(root.Strings("zones").empty());
  EXPECT_EQ(ProblemsOf(document), "");
}

TEST(ConfigTest, UnknownKeyNamesPlaceAndNearestKnownKey) {
  const ConfigDocument document = Parsed("pools:\n  - name: x\n    max_wrokers: 3\n");
  const ConfigMap pool = document.Root().List("pools")[0];
  pool.String("name");
  pool.Int("max_workers", 1);
  EXPECT_EQ(ProblemsOf(document),
            "f.yaml:3:5: pools[0].max_wrokers: unknown key; did you mean max_workers?");
}

TEST(ConfigTest, UnknownKeyFarFromAllOthersHasNoSuggestion) {
  const ConfigDocument document = Parsed("zebra: 1\n");
  document.Root().Int("max_workers", 1);
  EXPECT_EQ(ProblemsOf(document), "f.yaml:1:1: zebra: unknown key");
}

TEST(ConfigTest, MissingRequiredKeyIsReportedAtItsParent) {
  const ConfigDocument document = Parsed("a: 1\nouter:\n  inner: {b: 2}\n");
  document.Root().Int("a");
  const ConfigMap inner = document.Root().Map("outer").Map("inner");
  inner.Int("b");
  inner.Int("c");
  EXPECT_EQ(ProblemsOf(document), "f.yaml:3:10: outer.inner.c: missing required key");
}

TEST(ConfigTest, RequiredKeyOfAnAbsentMappingIsMissing) {
  const ConfigDocument document = Parsed("a: 1\n");
  document.Root().Int("a");
  document.Root().Map("outer").String("name");
  EXPECT_EQ(ProblemsOf(document), "f.yaml:1:1: outer.name: missing required key");
}

TEST(ConfigTest, DuplicateKeyNamesTheFirst) {
  const ConfigDocument document = Parsed("a: 1\nb: 2\na: 3\n");
  EXPECT_EQ(document.Root().Int("a"), 1);
  document.Root().Int("b");
  EXPECT_EQ(ProblemsOf(document), "f.yaml:3:1: a: duplicate key, first given in line 1");
}

TEST(ConfigTest, AllProblemsAreReportedInTheOrderOfTheFile) {
  const ConfigDocument document = Parsed("a: x\nb: 70\nc: [1]\n");
  document.Root().Strings("c");
  document.Root().Int("b", 1, {0, 64});
  document.Root().Int("a", 1);
  document.Root().Fail("c", "one zone is too few");
  EXPECT_EQ(ProblemsOf(document),
            "f.yaml:1:4: a: expected an integer, got \"x\"\n"
            "f.yaml:2:4: b: must be at most 64, got \"70\"\n"
            "f.yaml:3:4: c: one zone is too few");
}

struct WrongType {
  const char* yaml;
  const char* expected;
};

class ConfigTypeTest : public ::testing::TestWithParam<WrongType> {};

TEST_P(ConfigTypeTest, IsReportedWithLineAndColumn) {
  const ConfigDocument document = Parsed(GetParam().yaml);
  const ConfigMap root = document.Root();
  root.Int("int", 0);
  root.Double("number", 0);
  root.Bool("bool", false);
  root.Span("span", seconds(1), {seconds(1), seconds(60)});
  root.Bytes("bytes", 0, {0, 1024});
  root.String("string", "");
  root.Strings("strings");
  root.Map("map");
  root.List("list");
  root.Choice("choice", {"spot", "on_demand"}, "spot");
  EXPECT_EQ(ProblemsOf(document), std::string("f.yaml:1:") + GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigTypeTest,
    ::testing::Values(
        WrongType{"int: 1.5", "6: int: expected an integer, got \"1.5\""},
        WrongType{"int: \"4\"", "6: int: expected an integer, got \"4\""},
        WrongType{"int: 99999999999999999999",
                  "6: int: expected an integer, got \"99999999999999999999\""},
        WrongType{"int:", "1: int: expected an integer, got nothing"},
        WrongType{"int: [1]", "6: int: expected an integer, got a list"},
        WrongType{"number: .nan", "9: number: expected a number, got \".nan\""},
        WrongType{"number: inf", "9: number: expected a number, got \"inf\""},
        WrongType{"bool: 1", "7: bool: expected true or false, got \"1\""},
        WrongType{"span: 30",
                  "7: span: expected a duration such as 500ms, 30s, 5m or 2h, got \"30\""},
        WrongType{"span: 2h", "7: span: must be at most 1m, got \"2h\""},
        WrongType{"span: 10ms", "7: span: must be at least 1s, got \"10ms\""},
        WrongType{"bytes: 4 cows",
                  "8: bytes: expected a size such as 512MiB, 4GiB or a number of bytes, got "
                  "\"4 cows\""},
        WrongType{"bytes: 1MiB", "8: bytes: must be between 0 and 1024 bytes, got \"1MiB\""},
        WrongType{"string: {a: 1}", "9: string: expected a string, got a mapping"},
        WrongType{"strings: {a: 1}", "10: strings: expected a list of strings"},
        WrongType{"strings: [[a]]", "11: strings: expected a string in this list"},
        WrongType{"map: [1]", "6: map: expected a mapping"},
        WrongType{"list: {a: 1}", "7: list: expected a list of mappings"},
        WrongType{"list: [1]", "8: list[0]: expected a mapping"},
        WrongType{"choice: sopt",
                  "9: choice: expected one of spot, on_demand, got \"sopt\"; did you mean spot?"},
        WrongType{"[1, 2]", "1: expected a mapping of keys to values"}));

TEST(ConfigTest, SyntaxErrorHasLineAndColumn) {
  const Result<ConfigDocument> document = ConfigDocument::Parse("a: 1\nb: [1, 2\nc: }", "f.yaml");
  ASSERT_FALSE(document.ok());
  EXPECT_EQ(document.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(document.error().message, HasSubstr("f.yaml:3:"));
}

TEST(ConfigTest, TextAfterTheDocumentIsRefused) {
  for (const char* text : {"a: 1\n---\nb: 2\n", ",a: 1\n", "{a: 1}\n, b"}) {
    const Result<ConfigDocument> document = ConfigDocument::Parse(text, "f.yaml");
    ASSERT_FALSE(document.ok()) << text;
    EXPECT_THAT(document.error().message, HasSubstr("unexpected text")) << text;
  }
}

TEST(ConfigTest, AliasBombIsStopped) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    const std::string name = "a" + std::to_string(i);
    text += name + ": &" + name + " [";
    for (int j = 0; j < 10; ++j) text += (j > 0 ? ", " : "") + before;
    text += "]\n";
  }
  EXPECT_THAT(ProblemsOf(Parsed(text)), HasSubstr("too many values in one file"));
}

TEST(ConfigTest, DeepNestingIsStopped) {
  const size_t depth = kConfigDepthMax + 10;
  EXPECT_THAT(ProblemsOf(Parsed("a: " + std::string(depth, '[') + std::string(depth, ']'))),
              HasSubstr("nested too deeply"));
  const std::string deeper(20'000, '[');
  EXPECT_FALSE(ConfigDocument::Parse(deeper, "f.yaml").ok());
}

TEST(ConfigTest, ManyProblemsAreCounted) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "k" + std::to_string(i) + ": 1\n";
  const ConfigDocument document = Parsed(text);
  (void)document.Root().Has("something");
  EXPECT_THAT(ProblemsOf(document), HasSubstr("\nand 10 more"));
}

TEST(ConfigTest, FilesAreReadAndMissingOnesNamed) {
  const Result<ConfigDocument> missing = ConfigDocument::ParseFile("/nonexistent/cluster.yaml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("/nonexistent/cluster.yaml"));
  EXPECT_FALSE(ConfigDocument::ParseFile(::testing::TempDir()).ok());

  const std::string path = ::testing::TempDir() + "/config_test.yaml";
  std::ofstream(path) << "a: 5\n";
  const Result<ConfigDocument> document = ConfigDocument::ParseFile(path);
  std::remove(path.c_str());
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(document->Root().Int("a"), 5);
}

TEST(ConfigTest, DurationsAndSizes) {
  EXPECT_EQ(*ParseDuration("250us"), microseconds(250));
  EXPECT_EQ(*ParseDuration("1.5s"), milliseconds(1500));
  EXPECT_EQ(*ParseDuration("5m"), seconds(300));
  EXPECT_EQ(*ParseDuration("2h"), seconds(7200));
  EXPECT_EQ(*ParseDuration("0"), Duration::zero());
  for (const char* bad : {"", "s", "-1s", "5", "5 s", "5sec", "nan s", "infs", "1e300h"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("1.5KiB"), 1536);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000);
  for (const char* bad : {"", "GiB", "-1", "1XB", "9e18GiB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(ConfigTest, NearestWordCountsASwapAsOneChange) {
  EXPECT_EQ(NearestWord("nmae", {"name", "mode"}), "name");
  EXPECT_EQ(NearestWord("x", {"name"}), std::nullopt);
}

// Broken and mutated text neither throws nor crashes, and a reader never blocks on it.
TEST(ConfigTest, MutatedTextIsAnErrorOrADocument) {
  const std::string seed =
      "name: &n demo\npools:\n  - {name: *n, max: 3, idle: 30s}\n  - name: \"b\"\n    x: |\n      "
      "t\n";
  std::mt19937 random(7);
  constexpr std::string_view kAlphabet = "{}[]:,&*!|>-?#'\"%@`\n\t ab0\\~<=\x01\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
      }
      if (text.empty()) text = "a";
    }
    const Result<ConfigDocument> document = ConfigDocument::Parse(text, "f.yaml");
    if (!document.ok()) {
      ASSERT_THAT(document.error().message, HasSubstr("f.yaml")) << text;
      continue;
    }
    document->Root().String("name");
    for (const ConfigMap& pool : document->Root().List("pools")) {
      pool.String("name", "");
      pool.Int("max", 1);
      pool.Span("idle", seconds(1));
    }
    (void)document->Finish();
  }
}

TEST(ConfigTest, WhatIsPassedOnBecomesJson) {
  const ConfigDocument document = Parsed(
      "a: {n: 1, mode: 0644, hex: 0x1F, octal: 0o17, f: -1.5e3, t: true, no: off, none: , z: ~,\n"
      "    text: \"1\", date: 2026-01-02, zeros: 08, ip: 1.2.3.4, dot: 1., list: [x, [y], {}],\n"
      "    tagged: !!str 7, quote: 'a\"b\\'}\n");
  EXPECT_EQ(document.Root().Json("a", "anything"),
            R"({"n":1,"mode":420,"hex":31,"octal":15,"f":-1.5e3,"t":true,"no":"off","none":null,)"
            R"("z":null,"text":"1","date":"2026-01-02","zeros":"08","ip":"1.2.3.4","dot":"1.",)"
            R"("list":["x",["y"],{}],"tagged":"7","quote":"a\"b\\"})");
  EXPECT_EQ(document.Root().Json("b", "anything"), "");
  EXPECT_EQ(ProblemsOf(document), "");
  EXPECT_EQ(Parsed("x: [1]").Root().Json("", "anything"), R"({"x":[1]})");
}

TEST(ConfigTest, ProblemsInsideOfItHaveTheirPlace) {
  const ConfigDocument document = Parsed("a:\n  list:\n    - {b: 1}\n    - {b:\n         2}\n");
  (void)document.Root().Json("a", "anything");
  document.Root().FailInside("a", {"list", "1", "b"}, "is two");
  document.Root().FailInside("a", {"list", "0", "c"}, "is missing");
  document.Root().FailInside("q", {"list"}, "is nowhere");
  EXPECT_EQ(ProblemsOf(document),
            "f.yaml:1:1: q.list: is nowhere\n"
            "f.yaml:3:7: a.list[0].c: is missing\n"
            "f.yaml:5:10: a.list[1].b: is two");
}

TEST(ConfigTest, WhatIsAskedForIsKnownWithWhatIsGiven) {
  const Result<ConfigDocument> document = ConfigDocument::Parse(
      "span: 90s\nwords: [a, b]\nenv:\n  HOME: \"x\\ty\"\nitems: [{n: 3}, {}]\n", "f.yaml");
  ASSERT_TRUE(document.ok());
  const ConfigMap root = document->Root();
  (void)root.Span("span", milliseconds(1500), {seconds(1), seconds(86400)});
  (void)root.Strings("words");
  const ConfigMap env = root.Map("env");
  for (const std::string& name : env.Keys()) (void)env.String(name);
  for (const ConfigMap& item : root.List("items")) (void)item.Int("n", 7, {1, 9});
  (void)root.Choice("mode", {"on", "off"}, "on");
  (void)root.Choice("mode", {"on", "off"}, "on");
  std::vector<std::string> shown;
  for (const ConfigKey& key : document->keys()) {
    shown.push_back(key.path + " " + key.pattern + " " + std::to_string(key.line) + " '" +
                    key.given + "' '" + key.fallback + "' " + key.min + ".." + key.max + " " +
                    std::to_string(key.choices.size()));
  }
  EXPECT_THAT(shown, testing::ElementsAre(
                         "span span 1 '90s' '1500ms' 1s..1d 0", "words words 2 'a, b' '' .. 0",
                         "env env 3 '' '' .. 0", "env.HOME env.* 4 'x y' '' .. 0",
                         "items items 5 '' '' .. 0", "items[0].n items[].n 5 '3' '7' 1..9 0",
                         "items[1].n items[].n 0 '' '7' 1..9 0", "mode mode 0 '' 'on' .. 2"));
}

}  // namespace
}  // namespace troupe
