// Records that earlier releases have written: each release keeps a file of them, and every later
// one reads it. A record of a new field, or one that comes from a later release, is read as well.
//
// records/<release>.txt: a line per record, its name, its type (0: it has none, and is any bytes)
// and its bytes in hexadecimal digits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "actors/core/directory.h"
#include "collective_groups/membership/messages.h"
#include "daemons/head/core/actor_group_actions.h"
#include "daemons/head/core/collective_groups.h"
#include "daemons/head/core/placement_groups.h"
#include "daemons/head/core/read_record.h"
#include "daemons/head/core/run.h"
#include "daemons/head/store_owner.h"
#include "tests/unit/daemons/head/core/head_rig.h"

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
  HeadQueue queue;
  const auto record = ReadRecord<T>(queue, release.at(name).type, name, release.at(name).bytes);
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
  const auto spec = Read<RunSpec>(release, "run_spec");
  EXPECT_EQ(spec.id, "run-1");
  EXPECT_THAT(spec.worker_argv, ElementsAre("python3", "-m", "troupe.worker"));
  const auto state = Read<RunRecord>(release, "run_state");
  ASSERT_EQ(state.workers.size(), 1U);
  EXPECT_TRUE(state.workers[0].fenced);
  EXPECT_THAT(state.workers[0].devices, ElementsAre(1, 2));
  EXPECT_EQ(Read<actors::ActorSpec>(release, "actor_spec").max_restarts, 3);
  EXPECT_THAT(Read<actors::ActorLife>(release, "actor_life").links, ElementsAre("a2"));
  EXPECT_EQ(Read<GroupRecord>(release, "placement_group").next_bundle, 3U);
  const auto group = Read<ActorGroupRecord>(release, "actor_group");
  EXPECT_EQ(group.spec.member.type, "Trainer");
  EXPECT_EQ(group.next_member, 5U);
  ASSERT_EQ(group.members.size(), 1U);
  EXPECT_EQ(group.members[0].reason, "resized");
  const auto collective = Read<CollectiveRecord>(release, "collective");
  EXPECT_THAT(collective.spec.actors, ElementsAre("a1", "a2"));
  ASSERT_EQ(collective.seats.size(), 2U);
  EXPECT_EQ(collective.seats[1].number, 7U);
  EXPECT_TRUE(collective.stays);
}

// Only who has made it may go on with the records, to the last byte.
TEST(OldRecordsTest, AnOwnersClaimCounts) {
  const std::string claim = Release("0.1").at("owner").bytes;
  FakeClock clock;
  MemoryStore store(&clock);
  ASSERT_TRUE(store.Put("head/owner", claim, kOwnerLease).ok());
  EXPECT_EQ(StoreOwner(&store, "another", "key").Take().error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(StoreOwner(&store, claim, "key").Take().ok());
  for (size_t i = 0; i < claim.size(); ++i) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string bytes = claim;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      ASSERT_TRUE(store.Put("head/owner", bytes, kOwnerLease).ok());
      EXPECT_FALSE(StoreOwner(&store, claim, "key").Take().ok());
    }
  }
}

// What a worker has returned is any bytes; the head that finds them tells them as they are.
TEST(OldRecordsTest, AKeptResultIsTold) {
  const std::string kept = Release("0.1").at("result").bytes;
  testing::HeadRig rig;
  rig.JoinNode();
  rig.Submit(2);
  for (const size_t i : {0, 1}) rig.Greet(i);
  rig.FormGroup(2);
  for (const size_t i : {0, 1}) rig.Report(i, groups::MemberState::kActive, 1);
  const auto finish = [&](size_t worker, const std::string& value) {
    rig.Report(worker, groups::MemberState::kFinished, 1);
    const std::string member = "w" + std::to_string(worker) + "#1";
    rig.Say(kFrameWorkerResult, rig.process(worker),
            WorkerResult{rig.process(worker), "j", member, true, 0, value});
  };
  finish(0, kept);
  const auto in_store = rig.store().Get("job/j/result/w0#1");
  ASSERT_TRUE(in_store.ok() && in_store->has_value());
  EXPECT_EQ(**in_store, kept);
  rig.Restart();
  rig.JoinNode();
  finish(1, "other");
  rig.Pass(seconds(1));
  EXPECT_THAT(rig.results(), ElementsAre(kept, "other"));
}

// What RunRecord may look like in the next release, and has looked like in the one before.
struct Longer {
  std::string driver = "d";
  uint32_t target = 3;
  std::map<std::string, uint64_t> numbers;
  std::vector<RunWorker> workers;
  std::string driver_place;
  std::string new_field = "news";
  template <class A>
  void Fields(A& a) {
    a(driver, target, numbers, workers, driver_place, new_field);
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
       {wire::Encode(kFrameRunCommand, Longer{}), wire::Encode(kFrameRunCommand, Shorter{})}) {
    HeadQueue queue;
    const auto record = ReadRecord<RunRecord>(queue, kFrameRunCommand, "job/x/state", bytes);
    ASSERT_TRUE(record.has_value());
    EXPECT_EQ(record->target, 3U);
    EXPECT_TRUE(record->workers.empty());
  }
  EXPECT_FALSE(wire::Decode<RunRecord>(kFrameRunCommand, wire::Encode(kFrameRunCommand, Longer{}))
                   .ok());  // A message must fit exactly.
}

TEST(OldRecordsTest, ANewerFormatIsRefusedByItsNumber) {
  std::string bytes = wire::Encode(kFrameRunCommand, RunRecord{});
  bytes[1] = static_cast<char>(wire::kRecordFormat + 1);
  const auto record = wire::DecodeRecord<RunRecord>(kFrameRunCommand, bytes);
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
        refused += !wire::DecodeRecord<RunSpec>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<RunRecord>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<actors::ActorSpec>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<actors::ActorLife>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<GroupRecord>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<ActorGroupRecord>(record.type, bytes).ok();
        refused += !wire::DecodeRecord<CollectiveRecord>(record.type, bytes).ok();
      }
    }
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace troupe::daemons
