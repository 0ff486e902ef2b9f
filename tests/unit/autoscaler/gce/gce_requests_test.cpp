#include "autoscaler/gce/gce_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "autoscaler/gce_spec.h"
#include "tests/unit/autoscaler/gce/fake_gce.h"

namespace troupe::gce {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using RequestJson = nlohmann::json;

MachineOrder OrderOf(const std::string& node, const std::string& request, int count = 1) {
  return {request, "spot", count, "echo boot\n", {{kClusterTag, "demo"}, {kNodeTag, node}}};
}

TEST(GceRequestsTest, LabelsHoldAnyTextAndGiveItBack) {
  EXPECT_EQ(GceLabelOf("spot-1"), "spot-1");
  EXPECT_EQ(GceLabelOf("My_A"), "_4dy_5f_41");
  for (const char* text : {"", "demo", "A_B", "_", "a\xC3\xA9", "x_41", "__"})
    EXPECT_EQ(TextOfGceLabel(GceLabelOf(text)), text);
  for (const char* odd : {"_", "a_4", "_zz", "_4_41"})  // Of somebody else.
    EXPECT_THAT(TextOfGceLabel(odd), Not(IsEmpty()));
}

TEST(GceRequestsTest, NamesAndRequestIdsAreThoseOfTheOrder) {
  const std::string id = RequestUuidOf("life-1");
  EXPECT_THAT(id, MatchesRegex("[0-9a-f-]*"));
  ASSERT_EQ(id.size(), 36U);
  EXPECT_EQ(std::string({id[8], id[13], id[14], id[18], id[19], id[23]}), "--4-8-");
  EXPECT_EQ(id, RequestUuidOf("life-1"));
  EXPECT_NE(id, RequestUuidOf("life-2"));
  for (const std::string& node :
       {std::string("spot-1"), std::string("GPU_pool-12"), std::string("9-1"), std::string(),
        std::string("-"), std::string(80, 'a')}) {
    const std::string name = InstanceNameOf(OrderOf(node, "r"), 12);
    EXPECT_THAT(name, MatchesRegex("[a-z][a-z0-9-]*[a-z0-9]"));
    EXPECT_LE(name.size(), 63U);
  }
  EXPECT_NE(InstanceNameOf(OrderOf("a", "r"), 0), InstanceNameOf(OrderOf("a", "s"), 0));
  EXPECT_NE(InstanceNameOf(OrderOf("a", "r"), 0), InstanceNameOf(OrderOf("a", "r"), 1));
}

TEST(GceRequestsTest, ASpotPoolOfSeveralZonesAsksItsRegion) {
  GceOptions options;
  options.image = "projects/p/global/images/family/f";
  options.labels = {{"team", "vision"}};
  options.subnetwork = "s";
  options.service_account = "sa@p";
  const GceOffer offer{true, {"a", "b"}, {"us-central1-a", "us-central1-b"}, ""};
  EXPECT_EQ(BulkPathOf(offer), "regions/us-central1/instances/bulkInsert");
  const auto body = RequestJson::parse(*BulkBodyOf(options, offer, OrderOf("spot-1", "r", 2)));
  EXPECT_EQ(body["count"], "2");
  EXPECT_EQ(body["minCount"], "1");
  EXPECT_EQ(body["perInstanceProperties"].size(), 2U);
  EXPECT_EQ(body["locationPolicy"]["targetShape"], "ANY");
  EXPECT_EQ(body["locationPolicy"]["locations"].size(), 2U);
  const auto& selections = body["instanceFlexibilityPolicy"]["instanceSelections"];
  EXPECT_EQ(selections["choice-1"]["machineTypes"][0], "b");
  EXPECT_EQ(selections["choice-1"]["rank"], 1);
  const auto& properties = body["instanceProperties"];
  EXPECT_FALSE(properties.contains("machineType"));
  EXPECT_EQ(properties["scheduling"]["provisioningModel"], "SPOT");
  EXPECT_EQ(properties["scheduling"]["instanceTerminationAction"], "DELETE");
  EXPECT_EQ(properties["labels"]["troupe-node"], "spot-1");
  EXPECT_EQ(properties["labels"]["troupe-request"], "r");
  EXPECT_EQ(properties["labels"]["team"], "vision");
  EXPECT_EQ(properties["disks"][0]["initializeParams"]["sourceImage"], options.image);
  const auto& network = properties["networkInterfaces"][0];
  EXPECT_EQ(network["subnetwork"], "regions/us-central1/subnetworks/s");
  EXPECT_EQ(network["accessConfigs"][0]["type"], "ONE_TO_ONE_NAT");
  EXPECT_EQ(properties["serviceAccounts"][0]["email"], "sa@p");
  const auto& items = properties["metadata"]["items"];
  EXPECT_EQ(items[0]["key"], "startup-script");
  EXPECT_THAT(std::string(items[0]["value"]), HasSubstr("echo boot\n"));
  EXPECT_EQ(items[1]["key"], "shutdown-script");
  EXPECT_THAT(std::string(items[1]["value"]), HasSubstr("pkill -TERM -x troupe-node\nleft=26\n"));
}

TEST(GceRequestsTest, AnOnDemandPoolOfOneZoneAsksThat) {
  GceOptions options;
  options.image = "mine";
  options.external_ip = false;
  options.disk_gb = 50;
  const GceOffer offer{false, {"a"}, {"us-central1-a"}, ""};
  EXPECT_EQ(BulkPathOf(offer), "zones/us-central1-a/instances/bulkInsert");
  const auto body = RequestJson::parse(*BulkBodyOf(options, offer, OrderOf("o-1", "r")));
  EXPECT_FALSE(body.contains("locationPolicy"));
  const auto& properties = body["instanceProperties"];
  EXPECT_EQ(properties["machineType"], "a");
  EXPECT_EQ(properties["scheduling"]["provisioningModel"], "STANDARD");
  EXPECT_EQ(properties["disks"][0]["initializeParams"],
            (RequestJson{{"sourceImage", "global/images/mine"}, {"diskSizeGb", "50"}}));
  EXPECT_EQ(properties["networkInterfaces"][0].size(), 1U);
  EXPECT_EQ(properties["networkInterfaces"][0]["network"], "global/networks/default");
  options.image = "";
  options.instance_template = "t";
  const GceOffer plain{false, {}, {"us-central1-a"}, ""};
  const auto templated = RequestJson::parse(*BulkBodyOf(options, plain, OrderOf("o-1", "r")));
  EXPECT_EQ(templated["sourceInstanceTemplate"], "global/instanceTemplates/t");
  for (const char* key : {"machineType", "disks", "networkInterfaces", "scheduling"})
    EXPECT_FALSE(templated["instanceProperties"].contains(key)) << key;
  MachineOrder long_one = OrderOf("o-1", "r");
  long_one.user_data = std::string(kGceScriptMax, 'x');
  EXPECT_EQ(BulkBodyOf(options, offer, long_one).error().code, ErrorCode::kInvalidArgument);
}

TEST(GceRequestsTest, OperationsTellWhatWasMadeAndWhatWasWrong) {
  const auto done = ReadOperation(
      R"({"name": "op", "region": "https://g/regions/us-central1", "status": "DONE",
          "instancesBulkInsertOperationMetadata": {"perLocationStatus": {
            "zones/us-central1-b": {"createdVmCount": 3, "deletedVmCount": 1}}}})");
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->path, "regions/us-central1/operations/op");
  EXPECT_TRUE(done->done);
  EXPECT_THAT(done->made, ElementsAre(Pair("us-central1-b", 2)));
  EXPECT_EQ(done->error.code, "");
  const auto failed = ReadOperation(
      R"({"name": "op", "zone": "z", "status": "DONE", "httpErrorStatusCode": 503, "error": {
          "errors": [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": "0 of 1"},
                     {"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "message": "none"}]}})");
  EXPECT_EQ(failed->path, "zones/z/operations/op");
  EXPECT_EQ(failed->error.code, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS");
  EXPECT_EQ(failed->error.failure, GceFailure::kCapacity);
  const auto refused = ReadOperationError(
      R"({"error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "m"},
                               {"code": "INVALID_USAGE", "message": "n"}]}})");
  EXPECT_EQ(refused.failure, GceFailure::kRefused);  // Waiting is of no use.
  for (const char* odd : {"", "[]", "{}", R"({"name": 3})", R"({"name": "a/b"})", "null"})
    EXPECT_EQ(ReadOperation(odd).error().code, ErrorCode::kCorrupt) << odd;
  EXPECT_THAT(ReadOperation(R"({"name": "o", "instancesBulkInsertOperationMetadata": 7})")->made,
              IsEmpty());
}

TEST(GceRequestsTest, APageTellsInstancesAndZonesOutOfReach) {
  const GcePage page = ReadPage(
      R"({"nextPageToken": "n", "unreachables": ["projects/p/zones/us-east1-b"], "items": {
          "zones/us-central1-a": {"instances": [
            {"name": "spot-1-x", "zone": "https://g/zones/us-central1-a", "status": "STAGING",
             "machineType": "https://g/machineTypes/n2", "labels": {"troupe-node": "spot_5f-1",
             "troupe-request": "l-1", "troupe-offer": "spot", "team": "a_41"}},
            {"name": "x", "zone": "us-central1-a", "status": "TERMINATED"},
            {"name": "", "zone": ""}, {"name": "../x", "zone": "z"}, 7]},
          "zones/us-central1-c": {"warning": {"code": "UNREACHABLE"}},
          "zones/us-central1-d": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
          "odd": 3}})");
  EXPECT_EQ(page.next, "n");
  EXPECT_THAT(page.unreachable, ElementsAre("us-central1-c", "us-east1-b"));
  ASSERT_THAT(page.machines, SizeIs(2));
  const Machine& machine = page.machines[0].machine;
  EXPECT_EQ(machine.id, "us-central1-a/spot-1-x");
  EXPECT_EQ(machine.state, "pending");
  EXPECT_EQ(machine.request_id, "l-1");
  EXPECT_EQ(machine.offer, "spot");
  EXPECT_EQ(machine.detail, "n2 in us-central1-a");
  EXPECT_THAT(machine.tags, ElementsAre(Pair("team", "a_41"), Pair("troupe-node", "spot_-1")));
  EXPECT_EQ(page.machines[1].machine.state, "stopping");
  EXPECT_THAT(page.stopped, ElementsAre("us-central1-a/x"));
  for (const char* odd : {"", "[]", R"({"items": []})", R"({"items": {"zones/a": []}})"})
    EXPECT_THAT(ReadPage(odd).machines, IsEmpty()) << odd;
}

TEST(GceRequestsTest, TheLatestOperationSaysWhyOneEnded) {
  EXPECT_EQ(ReasonIn(R"({"items": [
      {"operationType": "insert", "insertTime": "3"},
      {"operationType": "compute.instances.preempted", "insertTime": "2", "user": "system"},
      {"operationType": "stop", "insertTime": "1", "user": "ann"}]})"),
            "preempted by Compute Engine");
  EXPECT_EQ(ReasonIn(R"({"items": [{"operationType": "delete", "user": "ann@x"}]})"),
            "deleted by ann@x");
  EXPECT_EQ(ReasonIn("{}"), "");
}

Error ToldOf(int status, const std::string& reason, const std::string& message) {
  return TellGceError(ReadGceError(tests::Refuses(status, reason, message)),
                      {"bulkInsert", "compute.instances.create"});
}

TEST(GceErrorsTest, EachSaysWhatToDo) {
  EXPECT_THAT(ToldOf(403, "quotaExceeded", "Quota 'CPUS' exceeded.").message,
              HasSubstr("no capacity: bulkInsert: quotaExceeded: Quota 'CPUS' exceeded; ask for "
                        "more of that quota"));
  EXPECT_EQ(ToldOf(403, "quotaExceeded", "m").code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(ToldOf(403, "forbidden", "m").message, HasSubstr("compute.instances.create"));
  EXPECT_EQ(ToldOf(403, "forbidden", "m").code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(ToldOf(403, "accessNotConfigured", "m").message, HasSubstr("enable the Compute"));
  EXPECT_THAT(ToldOf(404, "notFound", "'projects/p/global/images/x' was not found").message,
              HasSubstr("see gce.image"));
  EXPECT_THAT(ToldOf(400, "invalid", "machineType x").message, HasSubstr("instance_types"));
  EXPECT_EQ(ToldOf(400, "invalid", "m").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ToldOf(403, "rateLimitExceeded", "m").code, ErrorCode::kUnavailable);
  const GceError bare = ReadGceError({429, {}, "slow down"});
  EXPECT_EQ(bare.failure, GceFailure::kThrottled);
  EXPECT_EQ(bare.message, "status 429");
  const GceError newer = ReadGceError(tests::Says(
      R"({"error": {"status": "PERMISSION_DENIED", "message": "m", "details": [
          {"reason": "accessNotConfigured"}]}})",
      403));
  EXPECT_EQ(newer.code, "accessNotConfigured");
}

}  // namespace
}  // namespace troupe::gce
