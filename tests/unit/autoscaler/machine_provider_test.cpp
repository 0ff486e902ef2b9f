#include "autoscaler/machine_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "autoscaler/exec_machines.h"
#include "tests/unit/autoscaler/fake_supplier.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using tests::FakeSupplier;

class MachineProviderTest : public ::testing::Test {
 protected:
  MachineProviderTest()
      : machines_(
            {},
            [this](const ExecCommand& command, const std::string& input, ExecDone done) {
              if (!slow_) return done(supplier_(command, input));
              late_.push_back([this, command, input, done] { done(supplier_(command, input)); });
            }),
        provider_(&clock_, &machines_, Options("life-1")) {}

  MachineProviderOptions Options(const std::string& life) {
    MachineProviderOptions options;
    options.cluster = "demo";
    options.life = life;
    options.boot = [](const std::string& id, const std::string& pool) -> Result<std::string> {
      return "boot " + id + " of " + pool;
    };
    return options;
  }
  // As "id token pool", with "ending" for those that end.
  static std::vector<std::string> Shown(const Result<std::vector<ProviderNode>>& listed) {
    std::vector<std::string> shown;
    if (!listed.ok()) return {listed.error().message};
    for (const ProviderNode& node : *listed)
      shown.push_back(node.id + " " + node.token + " " + node.pool +
                      (node.terminating ? " ending" : "") + (node.asked_for ? " asked" : ""));
    return shown;
  }

  // The supplier answers the oldest question that is open.
  void Answer() {
    ASSERT_FALSE(late_.empty());
    const auto answer = std::move(late_.front());
    late_.pop_front();
    answer();
  }

  FakeSupplier supplier_;
  FakeClock clock_;
  bool slow_ = false;
  std::deque<std::function<void()>> late_;
  decltype(FakeSupplier::nodes) before_;
  ExecMachines machines_;
  MachineProvider provider_;
};

TEST_F(MachineProviderTest, ALaunchAsksForANodeWithABootScriptAndTags) {
  const Result<std::string> id = provider_.Launch("t1", "spot");
  ASSERT_TRUE(id.ok()) << id.error().message;
  EXPECT_EQ(*id, "spot-1");
  EXPECT_EQ(supplier_.last_create.at("request_id"), "t1");
  EXPECT_EQ(supplier_.last_create.at("count"), 1);
  EXPECT_EQ(supplier_.last_create.at("user_data"), "boot spot-1 of spot");
  EXPECT_EQ(supplier_.last_create.at("tags").at("troupe-node"), "spot-1");
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
}

TEST_F(MachineProviderTest, PricesAreAskedForAfterTheFirstListAndThenNowAndThen) {
  ExecMachines machines(
      {},
      [this](const ExecCommand& command, const std::string& input, ExecDone done) {
        done(supplier_(command, input));
      },
      seconds(300));
  MachineProvider provider(&clock_, &machines, Options("life-1"));
  (void)provider.Step(clock_.Now());
  EXPECT_THAT(supplier_.verbs, IsEmpty());
  (void)provider.List();
  (void)provider.Step(clock_.Now());
  EXPECT_THAT(provider.TakePrices(), ElementsAre(Pair("spot", 0.3)));
  EXPECT_THAT(provider.TakePrices(), IsEmpty());
  clock_.Advance(seconds(299));
  (void)provider.Step(clock_.Now());
  EXPECT_THAT(supplier_.verbs, ElementsAre("list", "price"));
  clock_.Advance(seconds(1));
  supplier_.next_code = 1;  // Those of before stay.
  (void)provider.Step(clock_.Now());
  EXPECT_THAT(supplier_.verbs, ElementsAre("list", "price", "price"));
  EXPECT_THAT(provider.TakePrices(), IsEmpty());
}

TEST_F(MachineProviderTest, TheSameTokenMakesNothingNew) {
  (void)provider_.Launch("t1", "spot");
  EXPECT_EQ(provider_.Launch("t1", "spot").value(), "spot-1");
  EXPECT_EQ(supplier_.nodes.size(), 1U);
}

TEST_F(MachineProviderTest, ExitCodesSayWhetherToTryAgain) {
  const std::map<int, ErrorCode> codes = {{10, ErrorCode::kResourceExhausted},
                                          {11, ErrorCode::kBackpressure},
                                          {12, ErrorCode::kInvalidArgument},
                                          {1, ErrorCode::kUnavailable},
                                          {137, ErrorCode::kUnavailable}};
  for (const auto& [code, expected] : codes) {
    supplier_.next_code = code;
    const Result<std::string> id = provider_.Launch("t" + std::to_string(code), "spot");
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.error().code, expected) << code;
    EXPECT_THAT(id.error().message, HasSubstr("said why"));
    EXPECT_EQ(LaunchIsRetriable(id.error().code), code != 12);
  }
}

// Its answer was lost, say to a time-out: the node is there, and is paid for.
TEST_F(MachineProviderTest, ANodeThatWasMadeWithoutAnAnswerIsAdopted) {
  (void)supplier_(
      {},
      ExecCreateRequest(
          {"t1",
           "spot",
           1,
           "",
           {{"troupe-cluster", "demo"}, {"troupe-life", "life-1"}, {"troupe-node", "spot-1"}}}));
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
  EXPECT_EQ(provider_.Launch("t1", "spot").value(), "spot-1");
}

TEST_F(MachineProviderTest, NodesOfOthersAndOfAnEarlierLifeAreNotOurs) {
  (void)supplier_({}, ExecCreateRequest({"x", "spot", 1, "", {{"purpose", "mail"}}}));
  MachineProvider before(&clock_, &machines_, Options("life-0"));
  (void)before.Launch("t1", "spot");
  EXPECT_THAT(Shown(provider_.List()), IsEmpty());
}

TEST_F(MachineProviderTest, ANewNodeIsShownUntilALateListHasIt) {
  (void)provider_.Launch("t1", "spot");
  const auto late = std::exchange(supplier_.nodes, {});
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
  supplier_.nodes = late;
  clock_.Advance(seconds(10));
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
  supplier_.nodes.clear();  // Now that it was listed it is gone at once.
  clock_.Advance(seconds(10));
  EXPECT_THAT(Shown(provider_.List()), IsEmpty());
}

TEST_F(MachineProviderTest, ANodeThatIsNeverListedIsGivenUp) {
  (void)provider_.Launch("t1", "spot");
  supplier_.nodes.clear();
  clock_.Advance(kMachineListLag);
  EXPECT_THAT(Shown(provider_.List()), IsEmpty());
}

TEST_F(MachineProviderTest, ATerminatedNodeEndsAndAnUnknownOneIsNoError) {
  (void)provider_.Launch("t1", "spot");
  ASSERT_TRUE(provider_.Terminate("spot-1").ok());
  EXPECT_THAT(supplier_.nodes, IsEmpty());
  EXPECT_THAT(Shown(provider_.List()), IsEmpty());
  EXPECT_TRUE(provider_.Terminate("spot-1").ok());
  EXPECT_TRUE(provider_.Terminate("spot-9").ok());
}

// At the end of a cluster the nodes are ended again and again until none is listed.
TEST_F(MachineProviderTest, ANodeThatDoesNotEndIsEndedAgainOncePerInterval) {
  (void)provider_.Launch("t1", "spot");
  supplier_.fault = FakeSupplier::Fault::kNeverEnds;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(provider_.Terminate("spot-1").ok());
  EXPECT_THAT(supplier_.verbs, ElementsAre("create", "terminate"));
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot ending"));
  clock_.Advance(seconds(5));
  EXPECT_TRUE(provider_.Terminate("spot-1").ok());
  EXPECT_THAT(supplier_.verbs, ElementsAre("create", "terminate", "list", "terminate"));
}

TEST_F(MachineProviderTest, ASlowSupplierKeepsNobodyWaiting) {
  slow_ = true;
  EXPECT_EQ(provider_.Launch("t1", "spot").value(), "spot-1");
  EXPECT_EQ(provider_.Launch("t2", "spot").value(), "spot-2");
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot asked", "spot-2 t2 spot asked"));
  supplier_.room = 1;
  for (int i = 0; i < 3; ++i) Answer();
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
  const std::vector<ProviderFailure> failures = provider_.TakeFailures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].token, "t2");
  EXPECT_EQ(failures[0].node, "spot-2");
  EXPECT_EQ(failures[0].error.code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(provider_.TakeFailures(), IsEmpty());
}

TEST_F(MachineProviderTest, ANodeThatIsNotWantedAnyMoreIsEndedWhenItIsMade) {
  slow_ = true;
  (void)provider_.Launch("t1", "spot");
  EXPECT_TRUE(provider_.Terminate("spot-1").ok());
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot ending asked"));
  while (!late_.empty()) Answer();
  EXPECT_THAT(supplier_.nodes, IsEmpty());
  (void)provider_.List();
  while (!late_.empty()) Answer();
  EXPECT_THAT(Shown(provider_.List()), IsEmpty());
  EXPECT_THAT(provider_.TakeFailures(), IsEmpty());
}

TEST_F(MachineProviderTest, AListFromBeforeANodeWasMadeEndsNothing) {
  slow_ = true;
  (void)provider_.List();
  (void)provider_.Launch("t1", "spot");
  std::swap(late_.front(), late_.back());
  Answer();  // It is made,
  supplier_.nodes.swap(before_);
  Answer();  // and listed as it was before.
  supplier_.nodes.swap(before_);
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
}

TEST_F(MachineProviderTest, AnEndThatFailsIsToldOnceAndTriedAgain) {
  (void)provider_.Launch("t1", "spot");
  supplier_.next_code = 1;
  EXPECT_TRUE(provider_.Terminate("spot-1").ok());
  const std::vector<ProviderFailure> failures = provider_.TakeFailures();
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].node, "spot-1");
  EXPECT_THAT(failures[0].error.message, HasSubstr("said why"));
  clock_.Advance(seconds(5));
  (void)provider_.List();
  EXPECT_THAT(supplier_.nodes, IsEmpty());
  EXPECT_THAT(provider_.TakeFailures(), IsEmpty());
}

TEST_F(MachineProviderTest, TheListIsAskedForOncePerIntervalAndAfterAChange) {
  (void)provider_.List();
  (void)provider_.List();
  EXPECT_EQ(supplier_.verbs.size(), 1U);
  clock_.Advance(seconds(5));
  (void)provider_.List();
  EXPECT_EQ(supplier_.verbs.size(), 2U);
  (void)provider_.Launch("t1", "spot");
  (void)provider_.List();
  EXPECT_THAT(supplier_.verbs, ElementsAre("list", "list", "create", "list"));
}

TEST_F(MachineProviderTest, AListThatMakesNoSenseIsAnErrorAndForgetsNothing) {
  (void)provider_.Launch("t1", "spot");
  supplier_.fault = FakeSupplier::Fault::kRubbish;
  EXPECT_THAT(Shown(provider_.List()), ElementsAre(HasSubstr("list: its reply is not JSON")));
  supplier_.fault = FakeSupplier::Fault::kNone;
  // Until it is asked again: else the trouble would come and go, and no nodes look like their end.
  EXPECT_THAT(Shown(provider_.List()), ElementsAre(HasSubstr("list: its reply is not JSON")));
  clock_.Advance(seconds(5));
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
}

// A source that lists what a test has put there.
class ListedMachines final : public MachineSource {
 public:
  void Create(const MachineOrder& order, Answer done) override {
    Machine machine;
    machine.id = "i-1";
    machine.state = "running";
    machine.tags = order.tags;
    machines = {machine};
    done(machines);
  }
  void List(Answer done) override { done(machines); }
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override {
    ended.insert(ended.end(), ids.begin(), ids.end());
    done(Status::Ok());
  }
  void Printed(const std::string& id,
               const std::function<void(const std::string&)>& done) override {
    asked.push_back(id);
    answer = done;
  }
  std::vector<Machine> machines;
  std::vector<std::string> ended, asked;
  std::function<void(const std::string&)> answer;
};

class WordsTest : public MachineProviderTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(nodes_.Launch("t1", "spot").ok());
    ASSERT_TRUE(nodes_.List().ok());
    nodes_.WantWords("spot-1");
    ASSERT_TRUE(nodes_.Terminate("spot-1").ok());
    ASSERT_THAT(source_.asked, ElementsAre("i-1"));
    EXPECT_THAT(source_.ended, IsEmpty());
  }
  ListedMachines source_;
  MachineProvider nodes_{&clock_, &source_, Options("life-1")};
};

TEST_F(WordsTest, ANodeThatNeverCameUpIsEndedWhenItIsKnownWhatItHasPrinted) {
  source_.answer("no space left");
  EXPECT_THAT(source_.ended, ElementsAre("i-1"));
  const auto told = nodes_.TakeFailures();
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0].kind, ProviderFailure::Kind::kWords);
  EXPECT_EQ(told[0].node, "spot-1");
  EXPECT_EQ(told[0].error.message, "no space left");
  ASSERT_TRUE(nodes_.Terminate("spot-1").ok());
  EXPECT_EQ(source_.asked.size(), 1);
}

TEST_F(WordsTest, NothingIsToldOfOneThatHasPrintedNothing) {
  source_.answer("");
  EXPECT_THAT(source_.ended, ElementsAre("i-1"));
  EXPECT_THAT(nodes_.TakeFailures(), IsEmpty());
}

TEST_F(WordsTest, ItsEndDoesNotWaitForLong) {
  clock_.Advance(seconds(10));
  ASSERT_TRUE(nodes_.List().ok());
  EXPECT_THAT(source_.ended, ElementsAre("i-1"));
  source_.answer("late");  // Told all the same, and nothing is ended for it.
  EXPECT_EQ(nodes_.TakeFailures().size(), 1);
  EXPECT_EQ(source_.ended.size(), 1);
}

TEST_F(WordsTest, AnAnswerMayComeWhenTheNodeHasGone) {
  source_.machines.clear();
  clock_.Advance(seconds(10));
  ASSERT_TRUE(nodes_.List().ok());
  source_.answer("late");
  EXPECT_THAT(nodes_.TakeFailures(), IsEmpty());
  EXPECT_THAT(source_.ended, IsEmpty());
}

TEST_F(MachineProviderTest, OfANodeThatWasMadeTwiceOneIsEnded) {
  (void)provider_.Launch("t1", "spot");
  const std::map<std::string, std::string> tags = supplier_.last_create.at("tags");
  (void)supplier_({}, ExecCreateRequest({"t2", "spot", 1, "", tags}));
  ASSERT_EQ(supplier_.nodes.size(), 2U);
  clock_.Advance(seconds(10));
  EXPECT_THAT(Shown(provider_.List()), ElementsAre("spot-1 t1 spot"));
  EXPECT_EQ(supplier_.nodes.size(), 1U);
}

TEST_F(MachineProviderTest, ANodeThatEndsByItselfIsToldOnceWithItsReason) {
  ListedMachines source;
  MachineProvider provider(&clock_, &source, Options("life-1"));
  ASSERT_TRUE(provider.Launch("t1", "spot").ok());
  ASSERT_TRUE(provider.List().ok());
  EXPECT_THAT(provider.TakeFailures(), IsEmpty());
  source.machines[0].state = "stopping";
  source.machines[0].ended = "taken back";
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(seconds(10));
    ASSERT_TRUE(provider.List().ok());
  }
  const auto failures = provider.TakeFailures();
  ASSERT_EQ(failures.size(), 1);
  EXPECT_EQ(failures[0].kind, ProviderFailure::Kind::kEnded);
  EXPECT_EQ(failures[0].node, "spot-1");
  EXPECT_EQ(failures[0].error.message, "i-1: taken back");
}

TEST_F(MachineProviderTest, APreemptionIsNoticedOnce) {
  (void)provider_.Launch("t1", "spot");
  supplier_.nodes.at("i-1")["preempted_in_s"] = 120;
  (void)provider_.List();
  const std::vector<Notice> notices = provider_.Poll(clock_.Now());
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_EQ(notices[0].node, "spot-1");
  EXPECT_EQ(notices[0].deadline, clock_.Now() + seconds(120));
  clock_.Advance(seconds(5));
  (void)provider_.List();
  EXPECT_THAT(provider_.Poll(clock_.Now()), IsEmpty());
}

struct BadReply {
  const char* reply;
  const char* said;
};

TEST(ExecProtocolTest, WhatIsNoReplyIsRefusedWithItsPlace) {
  const std::vector<BadReply> replies = {
      {"", "is not JSON"},
      {"[]", "is not an object"},
      {"{}", "has no list \"nodes\""},
      {R"({"nodes": {}})", "has no list \"nodes\""},
      {R"({"nodes": [3]})", "that is no object"},
      {R"({"nodes": [{}]})", "has no nodes[0].id"},
      {R"({"nodes": [{"id": ""}]})", "has an empty nodes[0].id"},
      {R"({"nodes": [{"id": 7}]})", "nodes[0].id that is not a string"},
      {R"({"nodes": [{"id": "a"}, {"id": "b\nc"}]})", "nodes[1].id with control characters"},
      {R"({"nodes": [{"id": "a", "state": "asleep"}]})", "none of pending, running and stopping"},
      {R"({"nodes": [{"id": "a", "tags": []}]})", "nodes[0].tags that are no object"},
      {R"({"nodes": [{"id": "a", "preempted_in_s": -1}]})", "no number from 0 on"}};
  for (const BadReply& bad : replies) {
    const auto nodes = ParseExecNodes(bad.reply);
    ASSERT_FALSE(nodes.ok()) << bad.reply;
    EXPECT_THAT(nodes.error().message, HasSubstr(bad.said)) << bad.reply;
  }
  const std::string long_id = R"({"nodes": [{"id": ")" + std::string(257, 'x') + R"("}]})";
  EXPECT_THAT(ParseExecNodes(long_id).error().message, HasSubstr("over 256 bytes"));
  EXPECT_TRUE(ParseExecNodes(R"({"nodes": [{"id": "a", "new": {}}], "more": 1})").ok());
}

Result<ExecReply> Ran(const std::vector<std::string>& argv, Duration limit,
                      std::string_view input) {
  ExecCommand command;
  command.argv = argv;
  command.limit = limit;
  return RunExecCommand(command, input);
}

TEST(ExecCommandTest, ItRunsInItsFolder) {
  ExecCommand command;
  command.argv = {"pwd"};
  command.folder = "/usr";
  const Result<ExecReply> reply = RunExecCommand(command, "");
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  EXPECT_EQ(reply->out, "/usr\n");
}

TEST(ExecCommandTest, TextGoesInAndComesOut) {
  const Result<ExecReply> reply =
      Ran({"sh", "-c", "cat; echo log >&2; exit 3"}, seconds(20), "text");
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  EXPECT_EQ(reply->out, "text");
  EXPECT_EQ(reply->log, "log\n");
  EXPECT_EQ(reply->code, 3);
}

TEST(ExecCommandTest, WhatItHasStartedGoesOn) {
  // The child keeps both pipes; its parent's end is the end of the request.
  const Result<ExecReply> reply = Ran({"sh", "-c", "sleep 20 & echo $!"}, seconds(15), "");
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  const int child = std::stoi(reply->out);
  EXPECT_EQ(::kill(child, 0), 0);
  ::kill(child, SIGKILL);
}

TEST(ExecCommandTest, WhoDoesNotAnswerIsKilledWithWhatItHasStarted) {
  const Result<ExecReply> reply =
      Ran({"sh", "-c", "echo waiting >&2; sleep 30; echo late"}, milliseconds(300), "");
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(reply.error().message, HasSubstr("within 300 ms and was killed; it had said: wait"));
}

int pid_of_command = 0;

TEST(CommandPoolTest, ManyRunAtOnceAndEachIsAnsweredOnce) {
  CommandPool pool;
  std::multiset<std::string> answers;
  for (int i = 0; i < 40; ++i) {
    ExecCommand command;
    command.argv = {i == 7 ? "/no/such/program" : "cat"};
    pool.Run(command, std::to_string(i),
             [&](Result<ExecReply> reply) { answers.insert(reply.ok() ? reply->out : "none"); });
  }
  EXPECT_THAT(answers, IsEmpty()) << "nothing is waited for";
  const SteadyClock clock;
  for (const Time limit = clock.Now() + seconds(60); answers.size() < 40 && clock.Now() < limit;)
    (void)pool.Step(clock.Now());
  EXPECT_EQ(answers.size(), 40U);
  EXPECT_EQ(answers.count("none"), 1U);
  EXPECT_EQ(answers.count("39"), 1U);
}

TEST(CommandPoolTest, WhatRunsIsKilledWithIt) {
  const std::string fifo = testing::TempDir() + "/pool-fifo-" + RandomId();
  {
    CommandPool pool;
    ExecCommand command;
    command.argv = {"sh", "-c", "echo $$ > " + fifo + "; exec sleep 60"};
    pool.Run(command, "", [](const Result<ExecReply>&) { FAIL() << "it was not taken up"; });
    (void)pool.Step(SteadyClock().Now());
    int pid = 0;
    for (int i = 0; pid == 0 && i < 2000; ++i, ::usleep(10'000)) std::ifstream(fifo) >> pid;
    ASSERT_GT(pid, 0);
    pid_of_command = pid;
  }
  bool gone = false;
  for (int i = 0; !gone && i < 2000; ++i, ::usleep(10'000)) gone = ::kill(pid_of_command, 0) != 0;
  EXPECT_TRUE(gone);
  ::unlink(fifo.c_str());
}

TEST(ExecCommandTest, AFloodIsCutOff) {
  const Result<ExecReply> reply = Ran({"sh", "-c", "yes"}, seconds(20), "");
  EXPECT_EQ(reply.error().code, ErrorCode::kResourceExhausted);
  const Result<ExecReply> log =
      Ran({"sh", "-c", "yes | head -c 1000000 >&2; echo end >&2"}, seconds(20), "");
  ASSERT_TRUE(log.ok());
  EXPECT_LE(log->log.size(), kExecLogBytesMax);
  EXPECT_THAT(log->log, testing::EndsWith("end\n"));
}

TEST(ExecCommandTest, AProgramThatThereIsNotIsNamed) {
  const Result<ExecReply> reply = Ran({"/no/such/program"}, seconds(5), "");
  ASSERT_FALSE(reply.ok());
  EXPECT_THAT(reply.error().message, HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace troupe
