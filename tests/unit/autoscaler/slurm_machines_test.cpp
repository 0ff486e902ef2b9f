// Machines that are jobs: what is said to Slurm's commands, and what is made of their words.
#include "autoscaler/slurm_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SlurmMachinesTest : public ::testing::Test {
 protected:
  SlurmMachinesTest()
      : machines_(Options(), [this](const ExecCommand& command, std::string input, ExecDone done) {
          argv_ = command.argv;
          input_ = std::move(input);
          done(reply_);
        }) {}

  static SlurmOptions Options() {
    SlurmOptions options;
    options.options = {"--account=a"};
    options.of_offer["spot"] = {"--partition=spot"};
    return options;
  }
  Result<std::vector<Machine>> Create() {
    Result<std::vector<Machine>> made = Error{ErrorCode::kInternal, "no answer"};
    machines_.Create({"t-1", "spot", 1, "#!/bin/sh\n", {{"troupe-node", "spot-1"}}},
                     [&](Result<std::vector<Machine>> m) { made = std::move(m); });
    return made;
  }
  Status End() {
    Status ended = Error{ErrorCode::kInternal, "no answer"};
    machines_.Terminate({"7"}, [&](const Status& s) { ended = s; });
    return ended;
  }

  std::vector<std::string> argv_;
  std::string input_;
  ExecReply reply_;
  SlurmMachines machines_;
};

TEST_F(SlurmMachinesTest, ANodeIsAJobWithItsTags) {
  reply_ = {0, "12;main\n", ""};
  const auto made = Create();
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->front().id, "12");
  EXPECT_EQ(argv_.front(), "sbatch");
  EXPECT_THAT(argv_, Contains("--no-requeue"));
  EXPECT_THAT(argv_, Contains("--account=a"));
  EXPECT_EQ(argv_.back(), "--partition=spot");
  EXPECT_THAT(argv_, Contains("--comment=troupe offer=spot request=t-1 troupe-node=spot-1"));
  EXPECT_EQ(input_, "#!/bin/sh\n");
}

TEST_F(SlurmMachinesTest, TheQueueSaysWhatThereIs) {
  reply_ = {0,
            "12|PENDING|4:00:00||Priority|troupe offer=spot request=t-1 troupe-node=spot-1\n"
            "13|RUNNING|1:30|n[1]|None|troupe offer=spot request=t-2 troupe-node=spot-2\n"
            "14|RUNNING|UNLIMITED|n2|None|troupe offer=spot request=t-3\n"
            "15|COMPLETING|0:00|n3|None|troupe offer=spot\n"
            "16|RUNNING|1:00|n4|None|somebody|else's\n"
            "17|RUNNING|1:00|n5|None|\n",
            ""};
  std::vector<std::string> shown;
  machines_.List([&](const Result<std::vector<Machine>>& listed) {
    ASSERT_TRUE(listed.ok()) << listed.error().message;
    for (const Machine& m : *listed) {
      shown.push_back(m.id + " " + m.state + " " + m.request_id + " " + m.detail +
                      (m.preempted_in_s ? " in " + std::to_string(*m.preempted_in_s) : ""));
    }
    EXPECT_EQ(listed->front().tags.at("troupe-node"), "spot-1");
    EXPECT_EQ(listed->front().offer, "spot");
  });
  EXPECT_THAT(shown, ElementsAre("12 pending t-1 PENDING (Priority)",
                                 "13 running t-2 RUNNING on n[1] in 90.000000",
                                 "14 running t-3 RUNNING on n2", "15 stopping  COMPLETING on n3"));
  EXPECT_THAT(argv_, Contains("--me"));
}

TEST_F(SlurmMachinesTest, WhatIsNoQueueIsAnError) {
  for (const char* text : {"what is this\n", "12|RUNNING\n", "x|RUNNING|1|n|None|troupe\n"}) {
    const auto queue = ParseSlurmQueue(text, seconds(60));
    ASSERT_FALSE(queue.ok()) << text;
    EXPECT_EQ(queue.error().code, ErrorCode::kCorrupt);
  }
  EXPECT_THAT(*ParseSlurmQueue("", seconds(60)), IsEmpty());
}

TEST_F(SlurmMachinesTest, FailuresSayWhetherToTryAgain) {
  const std::vector<std::pair<const char*, ErrorCode>> said = {
      {"sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: "
       "Invalid partition name specified\n",
       ErrorCode::kInvalidArgument},
      {"sbatch: unrecognized option '--gpu'\n", ErrorCode::kInvalidArgument},
      {"sbatch: error: Batch job submission failed: Requested node configuration is not "
       "available\n",
       ErrorCode::kInvalidArgument},
      {"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
       "Job "
       "violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
       ErrorCode::kResourceExhausted},
      {"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect "
       "failure)\n",
       ErrorCode::kUnavailable},
      {"", ErrorCode::kUnavailable}};
  for (const auto& [log, code] : said) {
    reply_ = {1, "", log};
    const auto made = Create();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, code) << log;
  }
  EXPECT_THAT(Create().error().message, HasSubstr("sbatch ended with status 1"));
  reply_ = {0, "ok\n", ""};
  EXPECT_EQ(Create().error().code, ErrorCode::kCorrupt);
}

TEST_F(SlurmMachinesTest, AJobThatHasEndedIsNoError) {
  reply_ = {0, "", ""};
  EXPECT_TRUE(End().ok());
  EXPECT_THAT(argv_, ElementsAre("scancel", "--quiet", "7"));
  reply_ = {1, "", "scancel: error: Kill job error on job id 7: Invalid job id specified\n"};
  EXPECT_TRUE(End().ok());
  reply_ = {1, "", "scancel: error: Kill job error on job id 7: Access/permission denied\n"};
  EXPECT_EQ(End().error().code, ErrorCode::kInvalidArgument);
}

TEST(SlurmTimeTest, EveryFormOfATime) {
  EXPECT_EQ(ParseSlurmTime("1:30"), 90.0);
  EXPECT_EQ(ParseSlurmTime("2:01:30"), 7290.0);
  EXPECT_EQ(ParseSlurmTime("1-02:00:05"), 93605.0);
  EXPECT_EQ(ParseSlurmTime("0:00"), 0.0);
  for (const char* text :
       {"UNLIMITED", "NOT_SET", "INVALID", "", "5", "1:", ":1", "-1:00", "1-2", "1:2:3:4", "1-1"})
    EXPECT_FALSE(ParseSlurmTime(text).has_value()) << text;
}

}  // namespace
}  // namespace troupe
