#include "capi/internal/options_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::capi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string ErrorOf(const char* json) {
  const Result<ActorOptions> options = ParseActorOptions(json);
  if (options.ok()) return "no error";
  EXPECT_EQ(options.error().code, ErrorCode::kInvalidArgument);
  return options.error().message;
}

TEST(OptionsJson, NothingIsTheDefaults) {
  for (const char* text : {static_cast<const char*>(nullptr), "", "{}"}) {
    const Result<ActorOptions> options = ParseActorOptions(text);
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->resources, ActorOptions().resources);
    EXPECT_EQ(options->timeout, ActorOptions().timeout);
    EXPECT_TRUE(ParseInitOptions(text).ok());
  }
}

TEST(OptionsJson, EveryKeyReachesItsOption) {
  const Result<ActorOptions> o = ParseActorOptions(R"({
    "name": "till", "get_if_exists": true, "detached": true, "resources": {"CPU": 2, "GPU": 0.5},
    "strategy": "spread", "labels": ["zone=a"], "prefer": ["gpu=h100"], "node": "n1",
    "node_soft": true, "placement_group": "g", "bundle": 3, "priority": -2, "max_restarts": -1,
    "backoff_s": 0.25, "backoff_most_s": 2, "timeout_s": 1.5, "env": {"A": "1"},
    "plugin": "/x.so", "program": ["/bin/x", "y"], "max_concurrency": 4, "mailbox_depth": 5,
    "mailbox_bytes": 6, "overflow": "refuse"})");
  ASSERT_TRUE(o.ok()) << o.error().message;
  EXPECT_EQ(o->name, "till");
  EXPECT_TRUE(o->get_if_exists && o->detached && o->node_soft);
  EXPECT_THAT(o->resources, ElementsAre(Pair("CPU", 2), Pair("GPU", 0.5)));
  EXPECT_EQ(o->strategy, "spread");
  EXPECT_THAT(o->labels, ElementsAre("zone=a"));
  EXPECT_THAT(o->prefer, ElementsAre("gpu=h100"));
  EXPECT_EQ(o->node, "n1");
  EXPECT_EQ(o->placement_group, "g");
  EXPECT_EQ(o->bundle, 3);
  EXPECT_EQ(o->priority, -2);
  EXPECT_EQ(o->max_restarts, -1);
  EXPECT_EQ(o->backoff, milliseconds(250));
  EXPECT_EQ(o->backoff_most, seconds(2));
  EXPECT_EQ(o->timeout, milliseconds(1500));
  EXPECT_THAT(o->env, ElementsAre(Pair("A", "1")));
  EXPECT_EQ(o->plugin, "/x.so");
  EXPECT_THAT(o->program, ElementsAre("/bin/x", "y"));
  EXPECT_EQ(o->max_concurrency, 4U);
  EXPECT_EQ(o->mailbox_depth, 5U);
  EXPECT_EQ(o->mailbox_bytes, 6U);
  EXPECT_EQ(o->overflow, actors::Overflow::kRefuse);
  const Result<InitOptions> init = ParseInitOptions(R"({
    "address": "a:1", "key_file": "k", "bin_dir": "b", "data_address": "d", "log_dir": "l",
    "resources": {"CPU": 3}, "print_output": false, "driver_silence_s": 90})");
  ASSERT_TRUE(init.ok()) << init.error().message;
  EXPECT_EQ(init->address + init->key_file + init->bin_dir + init->data_address + init->log_dir,
            "a:1kbdl");
  EXPECT_THAT(init->resources, ElementsAre(Pair("CPU", 3)));
  EXPECT_FALSE(init->print_output);
  EXPECT_EQ(init->driver_silence, seconds(90));
}

TEST(OptionsJson, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(ErrorOf("{\"nme\": 1}"), HasSubstr("unknown key \"nme\"; known are name, get_if"));
  EXPECT_THAT(ErrorOf("{\"name, get_if_exists\": 1}"), HasSubstr("unknown key"))
      << "a key is one of the list, not a part of it";
  EXPECT_THAT(ErrorOf("{\"name\": 1}"), HasSubstr("have name: 1, which must be text"));
  EXPECT_THAT(ErrorOf("{\"detached\": 1}"), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf("{\"resources\": {\"CPU\": \"2\"}}"), HasSubstr("an object of numbers"));
  EXPECT_THAT(ErrorOf("{\"labels\": \"zone=a\"}"), HasSubstr("a list of texts"));
  EXPECT_THAT(ErrorOf("{\"program\": [1]}"), HasSubstr("a list of texts"));
  EXPECT_THAT(ErrorOf("{\"overflow\": \"drop\"}"), HasSubstr("\"wait\" or \"refuse\""));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf("{\"name\": "), HasSubstr("not JSON"));
}

TEST(OptionsJson, NumbersStayWithinTheirRange) {
  for (const char* text :
       {"{\"max_restarts\": 1.0}", "{\"max_restarts\": 2147483648}", "{\"max_restarts\": true}",
        "{\"max_concurrency\": -1}", "{\"mailbox_bytes\": 18446744073709551615}",
        "{\"mailbox_depth\": 4294967296}"})
    EXPECT_THAT(ErrorOf(text), HasSubstr("a whole number within its range")) << text;
  for (const char* text :
       {"{\"timeout_s\": -1}", "{\"timeout_s\": 1e300}", "{\"timeout_s\": \"1\"}"})
    EXPECT_THAT(ErrorOf(text), HasSubstr("a number of seconds")) << text;
}

}  // namespace
}  // namespace troupe::capi
