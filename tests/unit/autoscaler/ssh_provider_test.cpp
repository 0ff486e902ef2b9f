// Nodes over SSH, with hosts that are folders of this machine: the scripts run for real, and what
// ssh itself may do wrong is played.
#include "autoscaler/ssh_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "autoscaler/ssh_scripts.h"
#include "runtime/process.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class SshProviderTest : public ::testing::Test {
 protected:
  SshProviderTest() {
    std::string pattern = (fs::temp_directory_path() / "ssh-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    hosts_file_ = folder_ + "/hosts";
    Hosts("one\ntwo\n");
    Make();
  }
  ~SshProviderTest() override {
    for (const int pid : Pids()) ::kill(pid, SIGKILL);
    fs::remove_all(folder_);
  }

  void Make() {
    SshProviderOptions options;
    options.ssh.argv = {"ssh"};
    options.hosts.file = hosts_file_;
    options.fleet = "demo-1";
    options.boot = [this](const std::string& id, const std::string&,
                          const std::string& host) -> Result<std::string> {
      return "echo " + id + " on " + host + "\nexec " + program_;
    };
    options.run = [this](const ExecCommand& command, const std::string& input, ExecDone done) {
      const std::string host = command.argv[command.argv.size() - 2];
      asked_.push_back(host);
      const auto answer = [this, host, input, done] { done(Ssh(host, input)); };
      slow_ ? late_.push_back(answer) : answer();
    };
    provider_ = std::make_unique<SshProvider>(&clock_, std::move(options));
    (void)provider_->Step(clock_.Now());
  }
  // What ssh does with it.
  Result<ExecReply> Ssh(const std::string& host, const std::string& script) {
    if (refusing_.contains(host)) return ExecReply{255, "", "Connection refused\r\n"};
    fs::create_directories(folder_ + "/" + host);
    ExecCommand command;
    command.argv = {"sh", "-s"};
    command.env["HOME"] = folder_ + "/" + host;
    return RunExecCommand(command, script);
  }
  void Hosts(const std::string& text) const { std::ofstream(hosts_file_) << text; }
  void Pass(Duration d) {
    clock_.Advance(d);
    (void)provider_->Step(clock_.Now());
  }
  void Answer() {
    const auto answers = std::exchange(late_, {});
    for (const auto& answer : answers) answer();
  }
  std::string Launch(const std::string& token, const std::string& pool = "gpu") {
    const Result<std::string> id = provider_->Launch(token, pool);
    return id.ok() ? *id : id.error().message;
  }
  // As "id host", with "ending" for those that end.
  std::vector<std::string> Shown() {
    std::vector<std::string> shown;
    const Result<std::vector<ProviderNode>> listed = provider_->List();
    if (!listed.ok()) return {listed.error().message};
    for (const ProviderNode& node : *listed)
      shown.push_back(node.id + " " + node.detail + (node.terminating ? " ending" : ""));
    return shown;
  }
  [[nodiscard]] std::vector<int> Pids() const {
    std::vector<int> pids;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      int pid = 0;
      if (entry.path().extension() == ".pid") std::ifstream(entry.path()) >> pid;
      if (pid > 0) pids.push_back(pid);
    }
    return pids;
  }
  static bool Lives(int pid) {  // A zombie does not.
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string word;
    std::string state;
    stat >> word >> word >> state;
    return stat.good() && state != "Z";
  }
  static void AwaitEnd(int pid) {
    for (int i = 0; Lives(pid) && i < 2000; ++i) ::usleep(10'000);
    EXPECT_FALSE(Lives(pid));
  }

  std::string folder_;
  std::string hosts_file_;
  std::string program_ = "sleep 300";
  FakeClock clock_;
  std::set<std::string> refusing_;
  std::vector<std::string> asked_;
  bool slow_ = false;
  std::deque<std::function<void()>> late_;
  std::unique_ptr<SshProvider> provider_;
};

TEST_F(SshProviderTest, NodesAreStartedOnHostsInTurnAndEnded) {
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_EQ(Launch("t2"), "gpu-2");
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one", "gpu-2 two"));
  const std::vector<int> pids = Pids();
  ASSERT_EQ(pids.size(), 2U);
  Pass(seconds(5));
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one", "gpu-2 two"));
  EXPECT_TRUE(provider_->Terminate("gpu-1").ok());
  EXPECT_TRUE(provider_->Terminate("gpu-2").ok());
  for (const int pid : pids) AwaitEnd(pid);
  Pass(seconds(1));
  EXPECT_THAT(Shown(), IsEmpty());
  EXPECT_THAT(provider_->TakeFailures(), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ + "/one/.troupe/fleets/demo-1")) << "nothing is left there";
  EXPECT_TRUE(provider_->Terminate("gpu-9").ok());
}

TEST_F(SshProviderTest, NoHostHasMoreThanItsSlots) {
  Hosts("one slots=2\ntwo pool=cpu\n");
  Make();
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_EQ(Launch("t2"), "gpu-2");
  EXPECT_THAT(Launch("t3"), HasSubstr("no capacity: all 2 slots of its hosts are taken"));  // SP-1
  EXPECT_EQ(Launch("t4", "cpu"), "cpu-1");
  EXPECT_THAT(Shown(), ElementsAre("cpu-1 two", "gpu-1 one", "gpu-2 one"));
}

TEST_F(SshProviderTest, AHostThatRefusesIsLeftAloneAndTheNextOneTaken) {
  refusing_ = {"one"};
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 two"));
  EXPECT_THAT(asked_, ElementsAre("one", "two"));
  EXPECT_THAT(Launch("t2"), HasSubstr("all 1 slots of its hosts are taken; one is left alone for"));
  EXPECT_THAT(Launch("t2"), HasSubstr("Connection refused; does sshd run there"));
  EXPECT_TRUE(provider_->TakeNewRoom());
  EXPECT_FALSE(provider_->TakeNewRoom());
  Pass(seconds(30));
  EXPECT_TRUE(provider_->TakeNewRoom()) << "it may be tried again";
  EXPECT_THAT(Launch("t3"), HasSubstr("one: Connection refused"));
  Pass(seconds(30));
  EXPECT_THAT(Launch("t4"), HasSubstr("is left alone for 31 s")) << "SP-2: twice as long";
  refusing_.clear();
  Pass(seconds(31));
  EXPECT_EQ(Launch("t5"), "gpu-6");
}

TEST_F(SshProviderTest, TheLastWordsOfANodeThatEndsAreTold) {
  program_ = "sh -c 'echo no driver for the GPU; exit 3'";
  EXPECT_EQ(Launch("t1"), "gpu-1");
  for (int i = 0; !Shown().empty() && i < 200; ++i, ::usleep(10'000)) Pass(seconds(5));
  const std::vector<ProviderFailure> failures = provider_->TakeFailures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].kind, ProviderFailure::Kind::kEnded);
  EXPECT_EQ(failures[0].token, "t1");
  EXPECT_THAT(failures[0].error.message,
              HasSubstr("on one, its last words: gpu-1 on one\nno driver for the GPU"));
}

TEST_F(SshProviderTest, ANodeThatDoesNotEndIsKilled) {
  program_ = "sh -c 'trap \"\" TERM; echo deaf; while :; do sleep 0.1; done'";
  EXPECT_EQ(Launch("t1"), "gpu-1");
  const std::vector<int> pids = Pids();
  ASSERT_EQ(pids.size(), 1U);
  const std::string log = folder_ + "/one/.troupe/fleets/demo-1/" + HostName() + "/gpu-1.log";
  for (int i = 0; fs::file_size(log) < 14 && i < 2000; ++i) ::usleep(10'000);
  EXPECT_TRUE(provider_->Terminate("gpu-1").ok());
  Pass(seconds(5));
  EXPECT_TRUE(Lives(pids[0]));
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one ending"));
  Pass(seconds(5));
  AwaitEnd(pids[0]);
  Pass(seconds(5));
  EXPECT_THAT(Shown(), IsEmpty());
}

TEST_F(SshProviderTest, AProcessThatHasTakenTheNumberIsNotTakenForTheNode) {
  EXPECT_EQ(Launch("t1"), "gpu-1");
  const int pid = Pids().at(0);
  const std::string began = folder_ + "/one/.troupe/fleets/demo-1/" + HostName() + "/gpu-1.began";
  std::ofstream(began) << "12345\n";
  EXPECT_TRUE(provider_->Terminate("gpu-1").ok());
  Pass(seconds(5));
  EXPECT_THAT(Shown(), IsEmpty());
  EXPECT_TRUE(Lives(pid));
  ::kill(pid, SIGKILL);
}

TEST_F(SshProviderTest, ABrokenConnectionEndsNothing) {
  EXPECT_EQ(Launch("t1"), "gpu-1");
  refusing_ = {"one"};
  Pass(seconds(400));
  Pass(seconds(400));
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one"));
  EXPECT_TRUE(provider_->Terminate("gpu-1").ok());
  Pass(seconds(5));
  EXPECT_THAT(Shown(), IsEmpty()) << "it has ended itself long ago";
}

TEST_F(SshProviderTest, AHostThatIsNoLongerToldHasItsNodesNoticed) {
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_EQ(Launch("t2"), "gpu-2");
  Hosts("two\nthree\n");
  Pass(seconds(1));
  const std::vector<Notice> notices = provider_->Poll(clock_.Now());
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0].node, "gpu-1");  // SP-3
  EXPECT_THAT(provider_->Poll(clock_.Now()), IsEmpty());
  EXPECT_TRUE(provider_->TakeNewRoom());
  EXPECT_EQ(Launch("t3"), "gpu-3");
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one", "gpu-2 two", "gpu-3 three"));
}

TEST_F(SshProviderTest, AFileThatCannotBeReadEndsNothing) {
  EXPECT_EQ(Launch("t1"), "gpu-1");
  Hosts("one slots=0\n");
  Pass(seconds(1));
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one"));
  EXPECT_THAT(provider_->Poll(clock_.Now()), IsEmpty());
  hosts_file_ = folder_ + "/none";
  Make();
  EXPECT_THAT(Shown(), ElementsAre(HasSubstr("cannot read the hosts in")));
}

TEST_F(SshProviderTest, ALaunchWaitsUntilTheHostsAreKnown) {
  SshProviderOptions options;
  options.hosts.discovery.argv = {"discover"};
  options.boot = [](const std::string&, const std::string&, const std::string&) {
    return Result<std::string>("true");
  };
  std::deque<ExecDone> questions;
  options.run = [&](const ExecCommand&, const std::string&, const ExecDone& done) {
    questions.push_back(done);
  };
  SshProvider provider(&clock_, options);
  EXPECT_EQ(provider.Launch("t1", "gpu").value(), "gpu-1");
  EXPECT_EQ(provider.Launch("t2", "gpu").value(), "gpu-2");
  EXPECT_EQ(provider.List()->size(), 2U);
  (void)provider.Step(clock_.Now());
  ASSERT_EQ(questions.size(), 1U);
  questions[0](ExecReply{0, "one:1\n", ""});
  (void)provider.Step(clock_.Now());
  ASSERT_EQ(questions.size(), 2U) << "one is being started";
  const std::vector<ProviderFailure> failures = provider.TakeFailures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].token, "t2");
  EXPECT_THAT(failures[0].error.message, HasSubstr("all 1 slots of its hosts are taken"));
  EXPECT_EQ(provider.List()->size(), 1U);
}

TEST_F(SshProviderTest, ASlowHostKeepsNobodyWaiting) {
  slow_ = true;
  EXPECT_EQ(Launch("t1"), "gpu-1");
  EXPECT_EQ(Launch("t2"), "gpu-2");
  EXPECT_TRUE(provider_->Terminate("gpu-1").ok());
  EXPECT_THAT(Shown(), ElementsAre("gpu-1 one ending", "gpu-2 two"));
  Answer();  // They are started.
  Answer();  // One is ended.
  for (int i = 0; Shown().size() > 1 && i < 200; ++i, ::usleep(10'000)) {
    Pass(seconds(1));
    Answer();
  }
  EXPECT_THAT(Shown(), ElementsAre("gpu-2 two"));
}

TEST_F(SshProviderTest, WhenAllRefuseTheLaunchFailsWithWhatTheySay) {
  refusing_ = {"one", "two"};
  slow_ = true;
  EXPECT_EQ(Launch("t1"), "gpu-1");
  Answer();
  Answer();
  EXPECT_THAT(Shown(), IsEmpty());
  const std::vector<ProviderFailure> failures = provider_->TakeFailures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].kind, ProviderFailure::Kind::kLaunch);
  EXPECT_THAT(failures[0].error.message, HasSubstr("no host can be used; one is left alone"));
}

struct BadHosts {
  const char* text;
  const char* said;
};

TEST(HostListTest, WhatIsNoHostIsRefusedWithItsLine) {
  const std::vector<BadHosts> bad = {
      {"a\n-oProxyCommand=x", "hosts:2: \"-oProxyCommand=x\" is no host"},
      {"a;b", "is no host"},
      {"a:0", "slots are a number from 1 to 1024, got \"0\""},
      {"a:", "slots are a number"},
      {"a slots=x", "got \"x\""},
      {"a slot=2", "expected HOST, HOST:SLOTS, slots=N or pool=NAME, got \"slot=2\""},
      {"a pool=", "got \"pool=\""},
      {"a b", "got \"b\""}};
  for (const BadHosts& hosts : bad) {
    const auto read = ParseHosts(hosts.text, 1, "hosts");
    ASSERT_FALSE(read.ok()) << hosts.text;
    EXPECT_THAT(read.error().message, HasSubstr(hosts.said));
  }
}

TEST(HostListTest, EveryWayToNameAHost) {
  const auto hosts = ParseHosts(
      "# all of them\n\nplain\nhorovod:4\n u@mpi  slots=2 # two\nx slots=3 pool=p\n[fe80::1]:5\n"
      "fe80::2\nplain slots=9\n",
      7, "hosts");
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  std::vector<std::string> shown;
  for (const HostSlots& host : *hosts)
    shown.push_back(host.host + " " + std::to_string(host.slots) + " " + host.pool);
  EXPECT_THAT(shown, ElementsAre("plain 9 ", "horovod 4 ", "u@mpi 2 ", "x 3 p", "fe80::1 5 ",
                                 "fe80::2 7 "));
}

TEST(HostSourceTest, AProgramIsAskedAgainAndItsFailuresEndNothing) {
  HostSourceOptions options;
  options.discovery.argv = {"discover"};
  ExecReply next{0, "a:2\n", ""};
  int asked = 0;
  HostSource source(options, [&](const ExecCommand&, const std::string&, const ExecDone& done) {
    ++asked;
    done(next);
  });
  FakeClock clock;
  const auto look = [&] {
    clock.Advance(seconds(1));
    return source.Step(clock.Now());
  };
  EXPECT_EQ(look()->at(0).slots, 2);
  EXPECT_FALSE(look().has_value()) << "they are the same";
  next = {1, "", "no network"};
  EXPECT_FALSE(look().has_value());
  EXPECT_THAT(source.status().error().message, HasSubstr("status 1: no network"));
  next = {0, "not a host\n", ""};
  EXPECT_FALSE(look().has_value());
  EXPECT_THAT(source.status().error().message, HasSubstr("discover:1: expected HOST"));
  next = {0, "b\n", ""};
  EXPECT_EQ(look()->at(0).host, "b");
  EXPECT_EQ(asked, 5);
  EXPECT_FALSE(source.Step(clock.Now()).has_value());
  EXPECT_EQ(asked, 5) << "not without a pause";
}

TEST(SshScriptsTest, AListThatIsNotWholeIsNone) {
  EXPECT_FALSE(ParseSshListing("alive a\n").ok());
  EXPECT_FALSE(ParseSshListing("").ok());
  const Result<SshListing> whole =
      ParseSshListing("Welcome!\nalive a\nended b\n| x\n| \n| y\n\nlisted\n");
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(whole->alive.at("a"));
  EXPECT_FALSE(whole->alive.at("b"));
  EXPECT_EQ(whole->words.at("b"), "x\ny");
}

}  // namespace
}  // namespace troupe
