// What the head says about a cluster, and what an autoscaler takes from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemons/protocol/cluster_state.h"
#include "daemons/protocol/run_events.h"

namespace troupe::daemons {
namespace {

using ::testing::HasSubstr;

NodeStatus Node(const std::string& id, bool alive, double cpus_used) {
  NodeStatus node;
  node.id = id;
  node.alive = alive;
  node.total = ResourceSet::FromMap({{"CPU", 4}}).value();
  if (cpus_used > 0) node.used = ResourceSet::FromMap({{"CPU", cpus_used}}).value();
  return node;
}
RunStatus RunIn(const std::string& state, uint32_t target, uint32_t members = 0) {
  RunStatus run;
  run.id = "run-" + state;
  run.state = state;
  run.target = target;
  for (uint32_t rank = 0; rank < members; ++rank) {
    run.workers.emplace_back();
    run.workers.back().rank = static_cast<int>(rank);
  }
  run.workers.emplace_back();  // One that is not a member.
  return run;
}

TEST(ClusterStateTest, SurvivesTheWayThroughJson) {
  const std::string json =
      ClusterJson({Node("busy", true, 0.5), Node("idle", true, 0), Node("dead", false, 0)},
                  {RunIn("running", 3, 3), RunIn("pending", 2), RunIn("succeeded", 10),
                   RunIn("failed", 20), RunIn("cancelled", 40)});
  const Result<ClusterState> state = ParseClusterState(json);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ(state->wanted_workers, 5);
  EXPECT_TRUE(state->running);
  ASSERT_EQ(state->nodes.size(), 3U);
  EXPECT_EQ(state->nodes[0].id, "busy");
  EXPECT_TRUE(state->nodes[0].alive);
  EXPECT_FALSE(state->nodes[0].idle);
  EXPECT_TRUE(state->nodes[1].idle);
  EXPECT_FALSE(state->nodes[2].alive);
}

TEST(ClusterStateTest, WhatANodeWasToldSurvivesToo) {
  NodeStatus noticed = Node("noticed", true, 0);
  noticed.draining = true;
  noticed.reason = "preempt (aws: terminate)";
  noticed.drain_left = milliseconds(29'500);
  noticed.notice = {"preempt", "aws", "terminate", 30'000};
  NodeStatus warned = Node("warned", true, 0);
  warned.warning = {"rebalance", "aws", "recommended", NodeNotice::kNoDeadline};
  const Result<ClusterState> state = ParseClusterState(ClusterJson({noticed, warned}, {}));
  ASSERT_TRUE(state.ok()) << state.error().message;
  const ClusterState::Node& first = state->nodes[0];
  EXPECT_TRUE(first.draining);
  EXPECT_EQ(first.reason, "preempt (aws: terminate)");
  EXPECT_EQ(first.drain_left, milliseconds(29'500));
  EXPECT_EQ(first.source + "," + first.kind, "aws,preempt");
  EXPECT_EQ(first.warning_kind, "");
  const ClusterState::Node& second = state->nodes[1];
  EXPECT_FALSE(second.draining);
  EXPECT_EQ(second.drain_left, Duration::max());
  EXPECT_EQ(second.warning_source + "," + second.warning_kind, "aws,rebalance");
  EXPECT_EQ(second.warning, "recommended");
}

TEST(ClusterStateTest, SamplesOfARunSurviveToo) {
  RunStatus run = RunIn("running", 1, 1);
  run.samples = 640;
  run.samples_per_epoch = 1000;
  const Result<ClusterState> state = ParseClusterState(ClusterJson({}, {run}));
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ(state->runs[0].samples, 640U);
  EXPECT_EQ(state->runs[0].samples_per_epoch, 1000U);
}

TEST(ClusterStateTest, AnEmptyClusterWantsNothing) {
  const Result<ClusterState> state = ParseClusterState(ClusterJson({}, {}));
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE(state->nodes.empty());
  EXPECT_EQ(state->wanted_workers, 0);
  EXPECT_FALSE(state->running);
}

TEST(ClusterStateTest, RunsOnceItHasAllTheMembersItWants) {
  EXPECT_FALSE(ParseClusterState(ClusterJson({}, {RunIn("pending", 2)}))->running);
  EXPECT_FALSE(ParseClusterState(ClusterJson({}, {RunIn("running", 2, 1)}))->running);
  EXPECT_TRUE(ParseClusterState(ClusterJson({}, {RunIn("running", 2, 2)}))->running);
}

TEST(ClusterStateTest, WhatIsNoClusterIsAnError) {
  for (const char* json :
       {"", "null", "[]", "{}", "{\"nodes\":[]}", "{\"nodes\":[1],\"runs\":[]}",
        "{\"nodes\":[{\"id\":1,\"alive\":true,\"used\":{}}],\"runs\":[]}",
        "{\"nodes\":[{\"id\":\"n\",\"alive\":true,\"used\":{\"CPU\":\"x\"}}],\"runs\":[]}",
        "{\"nodes\":[],\"runs\":[{\"state\":\"running\"}]}", "{\"nodes\":[],\"runs\":[]"}) {
    const Result<ClusterState> state = ParseClusterState(json);
    ASSERT_FALSE(state.ok()) << json;
    EXPECT_EQ(state.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(state.error().message, HasSubstr("not a description of a cluster"));
  }
}

TEST(RunEventsTest, ARecoveryIsANoteOfCounts) {
  WorkerNote note;
  note.kind = NoteKind::kRecovered;
  note.payload = R"({"steps_replayed": 2, "samples_returned": 64, "message": "step 7 \u2713"})";
  const std::optional<Recovered> recovered = ReadRecovered(note);
  ASSERT_TRUE(recovered.has_value());
  EXPECT_EQ(recovered->steps_replayed, 2U);
  EXPECT_EQ(recovered->steps_recomputed, 0U);
  EXPECT_EQ(recovered->samples_returned, 64U);
  const RunEvent event = NoteEvent("run", Time{}, WorkerStatus{}, note);
  EXPECT_EQ(event.kind, "recovered");
  EXPECT_THAT(event.json, HasSubstr(R"("samples_returned":64)"));
  EXPECT_THAT(event.json, HasSubstr(R"("steps_recomputed":0)"));
}

TEST(RunEventsTest, ProgressIsANoteOfWholeFigures) {
  WorkerNote note;
  note.kind = NoteKind::kProgress;
  note.payload = R"({"samples": 640, "samples_per_epoch": 1000})";
  const std::optional<Progress> progress = ReadProgress(note);
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->samples, 640U);
  EXPECT_EQ(progress->samples_per_epoch, 1000U);
  for (const char* payload : {"", "{", "[1]", "7"}) {
    note.payload = payload;
    EXPECT_FALSE(ReadProgress(note).has_value()) << payload;
  }
  note.payload = R"({"samples": -1, "samples_per_epoch": "many"})";
  ASSERT_TRUE(ReadProgress(note).has_value());
  EXPECT_EQ(ReadProgress(note)->samples, 0U);
  note.kind = NoteKind::kReport;
  EXPECT_FALSE(ReadProgress(note).has_value());
}

TEST(RunEventsTest, AMalformedRecoveryIsAReportLikeAnyOther) {
  WorkerNote note;
  note.kind = NoteKind::kRecovered;
  for (const char* payload : {"", "{", "[1]", "7"}) {
    note.payload = payload;
    EXPECT_FALSE(ReadRecovered(note).has_value()) << payload;
  }
  note.payload = R"({"steps_replayed": -1, "samples_returned": "many"})";
  ASSERT_TRUE(ReadRecovered(note).has_value());
  EXPECT_EQ(ReadRecovered(note)->steps_replayed, 0U);
  note.kind = NoteKind::kWarning;
  EXPECT_FALSE(ReadRecovered(note).has_value());
}

}  // namespace
}  // namespace troupe::daemons
