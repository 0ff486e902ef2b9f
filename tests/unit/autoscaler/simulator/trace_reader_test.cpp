#include "autoscaler/simulator/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/runtime/temp_dir.h"

namespace troupe::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::pair<int, int>> OffersOf(const OfferHistory& history) {
  std::vector<std::pair<int, int>> offers;
  for (const Offer& offer : history)
    offers.emplace_back(static_cast<int>(ToSeconds(offer.at)), offer.nodes);
  return offers;
}

std::string ErrorOf(const std::string& text, const std::string& path) {
  const Result<std::vector<Trace>> traces = ParseTrace(text, path);
  return traces.ok() ? "" : traces.error().message;
}

class ReadMarketTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(dir_.path() + "/" + name) << text;
    return dir_.path() + "/" + name;
  }
  static PoolLimits Pool(const std::string& name, const std::string& zone,
                         Market market = Market::kSpot) {
    return {name, market, zone, 1, 0, 4, 0.5};
  }

  tests::TempDir dir_;
};

TEST(ParseTraceTest, SpotTracesAreCountsPerGap) {
  const auto traces =
      ParseTrace(R"({"metadata": {"gap_seconds": 300}, "data": [2, 2, 0, 1]})", "d/zone_v100.json");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  ASSERT_EQ(traces->size(), 1U);
  EXPECT_EQ((*traces)[0].name, "zone_v100");
  EXPECT_EQ((*traces)[0].length, seconds(1200));
  EXPECT_THAT(OffersOf(Compact((*traces)[0].offers)),
              ElementsAre(std::pair(0, 2), std::pair(600, 0), std::pair(900, 1)));
}

TEST(ParseTraceTest, BambooNamesNodes) {
  const auto traces =
      ParseTrace("0,add,n1\n0,add,n2\r\n\n60000,remove,n1\n90000,add,n3\n", "p3.csv");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  EXPECT_EQ((*traces)[0].length, seconds(90));
  EXPECT_THAT(OffersOf((*traces)[0].offers),
              ElementsAre(std::pair(0, 2), std::pair(60, 1), std::pair(90, 2)));
}

TEST(ParseTraceTest, LinesHaveSeveralOfferingsAndPrices) {
  const auto traces = ParseTrace(R"({"t": 0, "offering": "b", "capacity": 3, "price": 0.4}
{"t": 0, "offering": "a", "capacity": 1}
{"t": 30, "offering": "b", "capacity": 0, "price": 0.6}
)",
                                 "m.jsonl");
  ASSERT_TRUE(traces.ok()) << traces.error().message;
  ASSERT_EQ(traces->size(), 2U);
  EXPECT_EQ((*traces)[0].name, "a");
  EXPECT_LT((*traces)[0].offers[0].price_per_hour, 0);
  EXPECT_DOUBLE_EQ((*traces)[1].offers[1].price_per_hour, 0.6);
  EXPECT_EQ((*traces)[0].length, seconds(30));
}

TEST(ParseTraceTest, WhatIsWrongIsToldWithItsPlace) {
  EXPECT_EQ(ErrorOf("{\n\n", "a.json"), "a.json:3: is not JSON");
  EXPECT_THAT(ErrorOf("[]", "a.json"), HasSubstr("a.json:1: expected an object with"));
  EXPECT_THAT(ErrorOf(R"({"metadata": {"gap_seconds": 0}, "data": [1]})", "a.json"),
              HasSubstr("\"gap_seconds\" is 0"));
  EXPECT_THAT(ErrorOf(R"({"metadata": {"gap_seconds": 9}, "data": [1, -1]})", "a.json"),
              HasSubstr("data[1]: expected a count, got -1"));
  EXPECT_THAT(ErrorOf(R"({"metadata": {"gap_seconds": 9}, "data": []})", "a.json"),
              HasSubstr("expected a list \"data\""));
  EXPECT_EQ(ErrorOf("0,add,a\nx,add,b\n", "b.csv"), "b.csv:2: expected milliseconds, got \"x\"");
  EXPECT_EQ(ErrorOf("0,add,a\n1,drop,a\n", "b.csv"),
            "b.csv:2: expected add or remove, got \"drop\"");
  EXPECT_EQ(ErrorOf("0,add,a\n0,add,a\n", "b.csv"), "b.csv:2: adds a again");
  EXPECT_EQ(ErrorOf("0,remove,a\n", "b.csv"), "b.csv:1: removes a, which is not there");
  EXPECT_EQ(ErrorOf("9,add,a\n8,add,b\n", "b.csv"), "b.csv:2: goes back in time");
  EXPECT_EQ(ErrorOf("0,add\n", "b.csv"), "b.csv:1: expected milliseconds,add|remove,node");
  EXPECT_EQ(ErrorOf("", "b.csv"), "b.csv:1: has no event");
  EXPECT_EQ(ErrorOf("{\"t\": 0}\n", "c.jsonl"), "c.jsonl:1: expected a string \"offering\"");
  EXPECT_EQ(ErrorOf("{\"t\": 0, \"offering\": \"a\", \"capacity\": 1.5}\n", "c.jsonl"),
            "c.jsonl:1: \"capacity\" is no whole number");
  EXPECT_EQ(ErrorOf("{\"t\": -1, \"offering\": \"a\", \"capacity\": 1}\n", "c.jsonl"),
            "c.jsonl:1: \"t\" is out of range: -1");
  EXPECT_EQ(ErrorOf("nothing", "c.jsonl"), "c.jsonl:1: is not a JSON object");
  EXPECT_EQ(ErrorOf("x", "c.txt"), "c.txt: expected a .json, .csv or .jsonl file");
}

TEST_F(ReadMarketTest, AFolderLiesUnderThePoolsOfItsZones) {
  File("us-east-1a_v100.json", R"({"metadata": {"gap_seconds": 60}, "data": [4, 4, 0]})");
  File("us-west-2a_v100.json", R"({"metadata": {"gap_seconds": 60}, "data": [1, 2]})");
  File("notes.txt", "not a trace");
  const auto market =
      ReadMarket({dir_.path()}, {Pool("east", "us-east-1a"), Pool("west", "us-west-2a"),
                                 Pool("base", "us-east-1a", Market::kOnDemand)});
  ASSERT_TRUE(market.ok()) << market.error().message;
  EXPECT_EQ(market->length, seconds(120));  // The shorter one.
  EXPECT_EQ(market->pools.size(), 2U);
  EXPECT_THAT(OffersOf(market->pools.at("west")), ElementsAre(std::pair(0, 1), std::pair(60, 2)));
  EXPECT_DOUBLE_EQ(market->pools.at("east")[0].price_per_hour, 0.5);  // Of the pool.
  EXPECT_THAT(market->Changes(), ElementsAre(seconds(0), seconds(60)));
}

TEST_F(ReadMarketTest, ANameCanBeGivenAndGoesBeforeAZone) {
  const std::string path = File("p3-trace.csv", "0,add,n1\n60000,add,n2\n");
  const auto market = ReadMarket({"p3=" + path}, {Pool("p3", "a"), Pool("other", "p3")});
  ASSERT_FALSE(market.ok());
  EXPECT_THAT(market.error().message, StartsWith("spot pool other has no trace"));
  EXPECT_TRUE(ReadMarket({"p3=" + path}, {Pool("p3", "a")}).ok());
  EXPECT_THAT(ReadMarket({path}, {Pool("p3", "a")}).error().message,
              HasSubstr("no pool has the name or the zone \"p3-trace\""));
}

TEST_F(ReadMarketTest, PartsOfAnOfferingCallAZone) {
  const std::string path =
      File("m.jsonl",
           "{\"t\": 0, \"offering\": \"aws/us-east-1/us-east-1a/spot\", \"capacity\": 1}\n"
           "{\"t\": 9, \"offering\": \"aws/us-east-1/us-east-1a/spot\", \"capacity\": 2}\n");
  const auto market = ReadMarket({path}, {Pool("east", "us-east-1a")});
  ASSERT_TRUE(market.ok()) << market.error().message;
  EXPECT_EQ(OfferAt(market->pools.at("east"), seconds(8)).nodes, 1);
  EXPECT_EQ(OfferAt(market->pools.at("east"), seconds(9)).nodes, 2);
}

TEST_F(ReadMarketTest, FilesThatAreMissingOrDoubledAreErrors) {
  const std::vector<PoolLimits> pools = {Pool("p3", "a")};
  EXPECT_THAT(ReadMarket({"nowhere.csv"}, pools).error().message,
              HasSubstr("there is no such file or folder"));
  EXPECT_THAT(ReadMarket({dir_.path()}, pools).error().message, HasSubstr("the folder has no"));
  const std::string path = File("p3.csv", "0,add,n1\n60000,add,n2\n");
  EXPECT_THAT(ReadMarket({path, path}, pools).error().message,
              HasSubstr("pool p3 has another trace already"));
}

}  // namespace
}  // namespace troupe::simulator
