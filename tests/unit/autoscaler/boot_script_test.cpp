// The script that makes a machine a node, run for real with a node that only tells how it was
// started.
#include "autoscaler/boot_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "autoscaler/exec_command.h"

namespace troupe {
namespace {

using ::testing::HasSubstr;

class BootScriptTest : public ::testing::Test {
 protected:
  BootScriptTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "boot-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    plan_.here = folder_;
    plan_.arguments = {"--name", "it's $HOME"};
    const std::string node = folder_ + "/troupe-node";
    std::ofstream(node) << "#!/bin/sh\necho \"node $# $2 $MODE $TROUPE_JOIN_TOKEN\"\n";
    ::chmod(node.c_str(), 0755);
  }
  ~BootScriptTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] Result<ExecReply> Run() const {
    ExecCommand command;
    command.argv = {"env", "-i", "PATH=/usr/bin:/bin", "sh"};
    return RunExecCommand(command, BootScript(plan_));
  }

  std::string folder_;
  BootPlan plan_;
};

TEST_F(BootScriptTest, ItBecomesTheNode) {
  plan_.env["MODE"] = "a b";
  plan_.join_token = "t-1";
  plan_.setup = {"echo one", "echo two"};
  const Result<ExecReply> reply = Run();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->out, "one\ntwo\nnode 2 it's $HOME a b t-1\n") << reply->log;
}

TEST_F(BootScriptTest, ASetupThatFailsEndsIt) {
  plan_.setup = {"echo no disk >&2; false", "echo two"};
  const Result<ExecReply> reply = Run();
  ASSERT_TRUE(reply.ok());
  EXPECT_NE(reply->code, 0);
  EXPECT_EQ(reply->out, "");
  EXPECT_THAT(reply->log, HasSubstr("no disk"));
}

TEST_F(BootScriptTest, AMachineWithoutTroupeIsTold) {
  plan_.here = "/no/such/folder";
  const Result<ExecReply> reply = Run();
  ASSERT_TRUE(reply.ok());
  EXPECT_NE(reply->code, 0);
  EXPECT_THAT(reply->log, HasSubstr("there is no troupe-node on "));
}

TEST_F(BootScriptTest, TheFileMayNameItsProgram) {
  plan_.here = "/no/such/folder";
  plan_.program = folder_ + "/troupe-node";
  const Result<ExecReply> reply = Run();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->code, 0) << reply->log;
}

}  // namespace
}  // namespace troupe
