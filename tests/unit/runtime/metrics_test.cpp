#include "runtime/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace troupe::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The body that GET gives at the URL, or its status line if that is not 200.
std::string Get(const std::string& url, const std::string& header = "") {
  const size_t colon = url.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(colon + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request =
        "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + "\r\n";
    EXPECT_EQ(::write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  if (answer.find(" 200 ") == std::string::npos) return answer.substr(0, answer.find('\r'));
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

TEST(Metrics, NothingIsKeptBeforeItIsAskedFor) {
  ASSERT_FALSE(On());  // The first test of this program.
  Add(Id::kStateTransfers);
  EXPECT_EQ(Value(Id::kStateTransfers), 0);
  Enable();
  EXPECT_EQ(Value(Id::kStateTransfers), 0);
}

TEST(Metrics, TheTextHoldsWhatWasCounted) {
  Enable();
  Add(Id::kStateBytes, 41);
  Add(Id::kStateBytes);
  Add(Id::kGroupEpochs, 1, "death");
  Set(Id::kGroupsParked, 3);
  Add(Id::kGroupsParked, -1);
  Observe(Id::kGroupPause, milliseconds(3), "yes");
  Observe(Id::kGroupPause, seconds(2), "yes");
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("# TYPE troupe_state_sent_bytes_total counter\n"
                              "troupe_state_sent_bytes_total 42\n"));
  EXPECT_THAT(text, HasSubstr("troupe_group_epochs_total{cause=\"death\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("troupe_groups_parked 2\n"));
  EXPECT_THAT(
      text, HasSubstr("troupe_group_epoch_pause_seconds_bucket{planned=\"yes\",le=\"0.005\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("troupe_group_epoch_pause_seconds_count{planned=\"yes\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("troupe_group_epoch_pause_seconds_sum{planned=\"yes\"} 2.003\n"));
}

TEST(Metrics, AValueOfTwoLabelsIsTwoValues) {
  Enable();
  Add(Id::kPreemptionNotices, 2, "aws,rebalance");
  Add(Id::kNodeWorkerExits, 1, "a,b");  // Of one label, whatever it holds is its value.
  EXPECT_THAT(Text(), HasSubstr("troupe_preemption_notices_total"
                                "{kind=\"rebalance\",source=\"aws\"} 2\n"));
  EXPECT_THAT(Text(), HasSubstr("{how=\"a,b\"} 1\n"));
  for (size_t i = 0; i <= kSeriesMax; ++i) Add(Id::kPreemptionNotices, 1, std::to_string(i) + ",x");
  EXPECT_THAT(Text(), HasSubstr("{kind=\"other\",source=\"other\"}"));
}

TEST(Metrics, ALabelHasOnlySoManyValuesAndForgetsThem) {
  Enable();
  for (size_t i = 0; i < kSeriesMax + 5; ++i) Set(Id::kGroupMembers, 1, "g" + std::to_string(i));
  EXPECT_THAT(Text(), HasSubstr("troupe_group_members{group=\"other\"} 1\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("group=\"g" + std::to_string(kSeriesMax) + "\"")));
  Remove(Id::kGroupMembers, "g0");
  EXPECT_THAT(Text(), Not(HasSubstr("group=\"g0\"")));
  Remove(Id::kGroupMembers, "never");
}

TEST(Metrics, AreServedAndAPortInUseIsAnError) {
  const Result<std::string> url = Serve({"127.0.0.1:0", ""});
  ASSERT_TRUE(url.ok()) << url.error().message;
  Set(Id::kSpares, 7);
  EXPECT_THAT(Get(*url), HasSubstr("troupe_spare_workers 7\n"));
  const std::string taken = url->substr(7, url->rfind('/') - 7);
  const Result<std::string> again = Serve({taken, ""});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(again.error().message, HasSubstr("cannot serve metrics at " + taken));
  EXPECT_THAT(again.error().message, HasSubstr("the port is in use"));
}

TEST(Metrics, ATokenIsAskedForAndNeededBeyondLoopback) {
  const Result<std::string> open = Serve({"0.0.0.0:0", ""});
  ASSERT_FALSE(open.ok());
  EXPECT_THAT(open.error().message, HasSubstr("--metrics-token-file"));
  const std::string file = (std::filesystem::temp_directory_path() / "metrics-token").string() +
                           std::to_string(::getpid());
  EXPECT_THAT(Serve({"127.0.0.1:0", file}).error().message, HasSubstr("no token in"));
  std::ofstream(file) << "secret\n";
  const Result<std::string> url = Serve({"127.0.0.1:0", file});
  std::filesystem::remove(file);
  ASSERT_TRUE(url.ok()) << url.error().message;
  EXPECT_THAT(Get(*url), HasSubstr("401"));
  // "troupe:secret" in base64.
  EXPECT_THAT(Get(*url, "Authorization: Basic dHJvdXBlOnNlY3JldA==\r\n"),
              HasSubstr("troupe_spare_workers"));
}

TEST(Metrics, WhatUsersCountIsShownBesideTheCatalogue) {
  Enable();
  Publish({{"asked", "Requests", Kind::kCounter, {}, {{{{"route", "a\"b"}}, {3}}}},
           {"took", "", Kind::kHistogram, {0.5, 1}, {{{}, {2, 0, 1, 7.5}}}}});
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("# TYPE asked counter\nasked{route=\"a\\\"b\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("took_count 3\ntook_sum 7.5\n"));
  EXPECT_THAT(text, HasSubstr("took_bucket{le=\"0.5\"} 2\ntook_bucket{le=\"1\"} 2\n"
                              "took_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("troupe_spare_workers"));
  Publish({});
  EXPECT_THAT(Text(), ::testing::Not(HasSubstr("asked")));
}

TEST(Metrics, AnAddressThatIsNoneIsRefused) {
  for (const char* bad : {"", "9400", ":9400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
                          "127.0.0.1:65536", "127.0.0.1:-1"}) {
    const Result<std::string> url = Serve({bad, ""});
    ASSERT_FALSE(url.ok()) << bad;
    EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Metrics, AreAllInTheDocumentation) {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/docs/metrics.md");
  std::vector<std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `troupe_")) continue;
    std::istringstream cells(line.substr(1));
    std::string row;
    for (std::string cell; std::getline(cells, cell, '|');) {
      const size_t begin = cell.find_first_not_of(" `");
      const size_t end = cell.find_last_not_of(" `");
      row += begin == std::string::npos ? "|" : cell.substr(begin, end - begin + 1) + "|";
    }
    documented.push_back(row);
  }
  std::vector<std::string> present;
  for (const Definition& d : Catalogue()) {
    static constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
    present.push_back(std::string(d.name) + "|" + kKinds[static_cast<size_t>(d.kind)] + "|" +
                      d.label + "|");
    if (present.size() > documented.size()) break;
    const std::string& row = documented[present.size() - 1];
    EXPECT_TRUE(row.starts_with(present.back())) << row << " is not " << present.back();
    EXPECT_TRUE(row.ends_with("|" + std::string(d.help) + "|")) << row << " says not " << d.help;
  }
  EXPECT_EQ(documented.size(), present.size());
}

}  // namespace
}  // namespace troupe::metrics
