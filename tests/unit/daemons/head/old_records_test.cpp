// Records that earlier releases have written: each release keeps a file of them, and every later
// one reads it. A record of a new field, or one that comes from a later release, is read as well.
//
// records/<release>.txt: a line per record, its name, its type and its bytes in hexadecimal digits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "actors/core/directory.h"
#include "collective_groups/membership/messages.h"
#include "daemons/head/job.h"
#include "daemons/head/placement_groups.h"
#include "daemons/head/records.h"

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Stored {
  uint8_t type = 0;
  std::string bytes;
};

std::map<std::string, Stored> Release(const std::string& name) {
  std::ifstream file(std::string(TROUPE_RECORDS_DIR) + "/" + name + ".txt");
  EXPECT_TRUE(file) << name;
  std::map<std::string, Stored> records;
  std::string key;
  unsigned type = 0;
  std::string digits;
  while (file >> key >> type >> digits) {
    Stored& record = records[key];
    record.type = static_cast<uint8_t>(type);
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
      record.bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return records;
}

template <class T>
T Read(const std::map<std::string, Stored>& release, const std::string& name) {
  const auto record = ReadRecord<T>(release.at(name).type, name, release.at(name).bytes);
  EXPECT_TRUE(record.has_value()) << name;
  return record.value_or(T{});
}

TEST(OldRecordsTest, ThoseOfRelease01AreRead) {
  const auto release = Release("0.1");
  const auto epoch = Read<groups::EpochRecord>(release, "epoch");
  EXPECT_EQ(epoch.term, 7U);
  EXPECT_EQ(epoch.view.epoch, 42U);
  ASSERT_EQ(epoch.view.members.size(), 2U);
  EXPECT_EQ(epoch.view.members[0].version, 99U);
  const auto spec = Read<JobSpec>(release, "job_spec");
  EXPECT_EQ(spec.job, "run-1");
  EXPECT_THAT(spec.worker_argv, ElementsAre("python3", "-m", "troupe.worker"));
  const auto state = Read<JobRecord>(release, "job_state");
  ASSERT_EQ(state.workers.size(), 1U);
  EXPECT_TRUE(state.workers[0].fenced);
  EXPECT_THAT(state.workers[0].devices, ElementsAre(1, 2));
  EXPECT_EQ(Read<actors::ActorSpec>(release, "actor_spec").max_restarts, 3);
  EXPECT_THAT(Read<actors::ActorLife>(release, "actor_life").links, ElementsAre("a2"));
  EXPECT_EQ(Read<GroupRecord>(release, "placement_group").next_bundle, 3U);
}

// What JobRecord may look like in the next release, and has looked like in the one before.
struct Longer {
  std::string driver = "d";
  uint32_t target = 3;
  std::map<std::string, uint64_t> incarnations;
  std::vector<JobWorker> workers;
  std::string driver_place;
  std::string new_field = "news";
  template <class A>
  void Fields(A& a) {
    a(driver, target, incarnations, workers, driver_place, new_field);
  }
};
struct Shorter {
  std::string driver = "d";
  uint32_t target = 3;
  template <class A>
  void Fields(A& a) {
    a(driver, target);
  }
};

TEST(OldRecordsTest, FieldsMayBeAddedAtTheEnd) {
  for (const std::string& bytes :
       {wire::Encode(kFrameJobCommand, Longer{}), wire::Encode(kFrameJobCommand, Shorter{})}) {
    const auto record = ReadRecord<JobRecord>(kFrameJobCommand, "job/x/state", bytes);
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->target, 3U);
    EXPECT_TRUE(record->workers.empty());
  }
  EXPECT_FALSE(wire::Decode<JobRecord>(kFrameJobCommand, wire::Encode(kFrameJobCommand, Longer{}))
                   .ok());  // A message must fit exactly.
}

TEST(OldRecordsTest, ANewerFormatIsRefusedByItsNumber) {
  std::string bytes = wire::Encode(kFrameJobCommand, JobRecord{});
  bytes[1] = static_cast<char>(wire::kRecordFormat + 1);
  const auto record = wire::DecodeRecord<JobRecord>(kFrameJobCommand, bytes);
  ASSERT_FALSE(record.ok());
  EXPECT_THAT(record.error().message, HasSubstr("newer release"));
}

// Every byte of every record, changed: it is read or refused, and nothing else happens.
TEST(OldRecordsTest, GarbledRecordsAreReadOrRefused) {
  size_t refused = 0;
  for (const auto& [name, record] : Release("0.1")) {
    for (size_t i = 0; i < record.bytes.size(); ++i) {
      for (const int flip : {1, 0x80, 0xff}) {
        std::string bytes = record.bytes;
        bytes[i] = static_cast<char>(bytes[i] ^ flip);
        refused += !wire::DecodeRecord<groups::EpochRecord>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<JobSpec>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<JobRecord>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<actors::ActorSpec>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<actors::ActorLife>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<GroupRecord>(record.type, bytes).ok();
      }
    }
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace troupe::daemons
