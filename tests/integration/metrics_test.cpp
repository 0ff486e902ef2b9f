// A head and a node that serve metrics, a run with a death, and what they have counted then.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "runtime/process.h"
#include "runtime/store.h"
#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string BinDir() { return fs::read_symlink("/proc/self/exe").parent_path() / ".." / "bin"; }

// The rest of the first line of a child's output that begins with `start`.
std::string LineOf(const ChildProcess& child, const std::string& start) {
  const Time deadline = SteadyClock().Now() + seconds(20);
  std::string line;
  while (SteadyClock().Now() < deadline) {
    pollfd item{child.stdout_fd(), POLLIN, 0};
    if (::poll(&item, 1, 100) <= 0) continue;
    char c = 0;
    if (::read(child.stdout_fd(), &c, 1) <= 0) break;
    if (c != '\n') {
      line.push_back(c);
    } else if (line.starts_with(start)) {
      return line.substr(start.size());
    } else {
      line.clear();
    }
  }
  ADD_FAILURE() << "no line that begins with " << start;
  return "";
}

std::string Scrape(const std::string& url) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    (void)!::write(fd, request.data(), request.size());
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return answer;
}

// The value of a series, -1 if it is not there.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "met-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    redis_ = Run({"redis-server", "--port", "0", "--unixsocket", dir_ + "/redis.sock", "--save", "",
                  "--dir", dir_});
  }
  void TearDown() override {
    for (ChildProcess* child : {&node_, &head_, &redis_}) {
      if (child->pid() > 0) (void)child->Terminate(seconds(3));
    }
    fs::remove_all(dir_);
  }
  static ChildProcess Run(std::vector<std::string> argv) {
    SpawnOptions options;
    options.argv = std::move(argv);
    options.capture_output = true;
    Result<ChildProcess> child = Spawn(options);
    EXPECT_TRUE(child.ok());
    return child.ok() ? std::move(*child) : ChildProcess();
  }
  [[nodiscard]] std::vector<std::string> HeadCommand(const std::string& metrics) const {
    return {BinDir() + "/troupe-head", "--listen",          address(), "--redis-socket",
            dir_ + "/redis.sock",      "--metrics-address", metrics};
  }
  [[nodiscard]] std::string address() const { return "ipc://" + dir_ + "/head.sock"; }

  std::string dir_;
  ChildProcess redis_;
  ChildProcess head_;
  ChildProcess node_;
};

TEST_F(MetricsTest, ARunWithADeathIsCounted) {
  head_ = Run(HeadCommand("127.0.0.1:0"));
  const std::string head_url = LineOf(head_, "metrics ");
  node_ = Run({BinDir() + "/troupe-node", "--head", address(), "--run-dir", dir_, "--cpus", "2",
               "--metrics-address", "127.0.0.1:0"});
  const std::string node_url = LineOf(node_, "metrics ");
  daemons::DriverOptions options;
  options.address = address();
  Cluster cluster(options);
  Cluster::RunOptions run;
  run.faults = "1:5:before_reduce";
  run.max_workers = 4;
  run.samples = 16384;
  run.per_rank = 8;
  cluster.Start(run);
  ASSERT_TRUE(cluster.WaitDone());
  ASSERT_EQ(cluster.state(), "succeeded") << cluster.reason();

  const std::string text = Scrape(head_url);
  EXPECT_THAT(text, HasSubstr("200 OK"));
  EXPECT_EQ(ValueOf(text, "troupe_group_epochs_total{cause=\"formed\"}"), 1);
  EXPECT_EQ(ValueOf(text, "troupe_group_epochs_total{cause=\"death\"}") +
                std::max(0.0, ValueOf(text, "troupe_group_epochs_total{cause=\"lost_peer\"}")),
            1);
  EXPECT_EQ(ValueOf(text, "troupe_worker_events_total{event=\"died\"}"), 1);
  EXPECT_GE(ValueOf(text, "troupe_worker_events_total{event=\"finished\"}"), 3);
  EXPECT_GE(ValueOf(text, "troupe_group_epoch_pause_seconds_count{planned=\"no\"}"), 2);
  EXPECT_EQ(ValueOf(text, "troupe_nodes{state=\"alive\"}"), 1);
  EXPECT_EQ(ValueOf(text, "troupe_resource_capacity{resource=\"CPU\"}"), 2);
  EXPECT_EQ(ValueOf(text, "troupe_groups_parked"), 0);
  EXPECT_EQ(ValueOf(text, "troupe_runs_recovered_total"), 0);
  EXPECT_GT(ValueOf(text, "troupe_state_sent_bytes_total"), 0);
  EXPECT_GT(ValueOf(text, "troupe_store_call_seconds_count"), 5);
  EXPECT_GT(ValueOf(text, "troupe_transport_received_bytes_total"), 1000);
  EXPECT_EQ(ValueOf(text, "troupe_group_members{group=\"" + cluster.run() + "\"}"), -1);
  const std::string node = Scrape(node_url);
  EXPECT_EQ(ValueOf(node, "troupe_node_worker_exits_total{how=\"signal\"}"), 1);
  EXPECT_GE(ValueOf(node, "troupe_node_worker_exits_total{how=\"ok\"}"), 3);
}

TEST_F(MetricsTest, AHeadWhosePortIsTakenSaysSo) {
  head_ = Run(HeadCommand("127.0.0.1:0"));
  const std::string url = LineOf(head_, "metrics ");
  const std::string taken = url.substr(7, url.rfind('/') - 7);
  ChildProcess second = Run(HeadCommand(taken));
  const Result<ExitInfo> ended = second.WaitFor(seconds(20));
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->code, 1);
  char text[1024] = {};
  ASSERT_GT(::read(second.stderr_fd(), text, sizeof text - 1), 0);
  EXPECT_THAT(text, HasSubstr("troupe-head: cannot serve metrics at " + taken));
}

}  // namespace
}  // namespace troupe::testing
