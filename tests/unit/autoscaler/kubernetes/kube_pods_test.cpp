#include "autoscaler/kubernetes/kube_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "autoscaler/kubernetes/kube_caller.h"
#include "autoscaler/kubernetes/kube_errors.h"
#include "autoscaler/kubernetes/kube_objects.h"

namespace troupe::kubernetes {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

MachineOrder OrderOf(const std::string& request = "r1", const std::string& life = "l1") {
  return {request,
          "spot",
          1,
          "#!/bin/sh\n",
          {{"troupe-cluster", "My_demo"}, {"troupe-life", life}, {"troupe-node", "spot-1"}}};
}

KubeOptions OptionsOf() {
  KubeOptions options;
  options.cluster = "My_demo";
  return options;
}

json PodWith(const std::string& container, const std::map<std::string, double>& resources,
             const std::string& metadata = "{}") {
  const KubeOffer offer{R"({"metadata": )" + metadata +
                            R"(, "spec": {"priorityClassName": "high", "containers": [)" +
                            R"({"name": "side"}, )" + container + "]}}",
                        "troupe", seconds(30), resources};
  const Result<std::string> body = PodBody(OptionsOf(), offer, OrderOf(), 0);
  EXPECT_TRUE(body.ok());
  return json::parse(body.ok() ? *body : "{}");
}

TEST(KubePodsTest, NamesFollowFromTheOrder) {
  EXPECT_EQ(PodName(OrderOf(), 0), PodName(OrderOf(), 0));
  EXPECT_EQ(PodName(OrderOf(), 0), SecretName(OrderOf()));
  EXPECT_EQ(PodName(OrderOf(), 1), PodName(OrderOf(), 0) + "-1");
  EXPECT_NE(PodName(OrderOf("r1"), 0), PodName(OrderOf("r2"), 0));
  EXPECT_NE(PodName(OrderOf("r1", "l1"), 0), PodName(OrderOf("r1", "l2"), 0));
  EXPECT_THAT(PodName(OrderOf(), 0), testing::MatchesRegex("my-demo-spot-1-[0-9a-f]+"));
  MachineOrder odd = OrderOf();
  odd.tags["troupe-cluster"] = "__" + std::string(80, 'A');
  EXPECT_LE(PodName(odd, 999).size(), 63U);
  EXPECT_EQ(PodName(odd, 0)[0], 'a');
}

TEST(KubePodsTest, LabelsHaveRoomForEveryName) {
  EXPECT_EQ(LabelValue("a_B-1"), "a_B-1");
  EXPECT_EQ(LabelValue(""), "");
  for (const std::string& name : {std::string("_a"), std::string("a-"), std::string(64, 'x')}) {
    const std::string value = LabelValue(name);
    EXPECT_LE(value.size(), 63U);
    EXPECT_THAT(value, testing::MatchesRegex("[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"));
    EXPECT_NE(value, LabelValue(name + "b"));
  }
  EXPECT_EQ(PodSelector("_a"), "labelSelector=troupe.dev%2Fcluster%3D" + LabelValue("_a"));
}

TEST(KubePodsTest, APodIsItsTemplateAndWhatANodeNeeds) {
  const json pod = PodWith(R"({"name": "troupe", "image": "i", "volumeMounts": [{"name": "x"}]})",
                           {{"CPU", 1.5}, {"memory", 1024}, {"GPU", 1}, {"other", 2}, {"a.b/c", 1}},
                           R"({"labels": {"team": "a"}, "annotations":
                               {"karpenter.sh/do-not-disrupt": "false"}, "name": "theirs"})");
  EXPECT_EQ(pod["metadata"]["name"], PodName(OrderOf(), 0));
  EXPECT_EQ(pod["metadata"]["labels"]["team"], "a");
  EXPECT_EQ(pod["metadata"]["labels"]["troupe.dev/cluster"], "My_demo");
  EXPECT_EQ(pod["metadata"]["labels"]["troupe.dev/node"], "spot-1");
  EXPECT_EQ(pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"], "false");
  EXPECT_EQ(pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"],
            "false");
  EXPECT_EQ(pod["metadata"]["annotations"]["troupe.dev/request"], "r1");
  EXPECT_EQ(pod["spec"]["restartPolicy"], "Never");
  EXPECT_EQ(pod["spec"]["priorityClassName"], "high");
  EXPECT_EQ(pod["spec"]["containers"][0], json::parse(R"({"name": "side"})"));
  const json& container = pod["spec"]["containers"][1];
  EXPECT_EQ(container["resources"], json::parse(R"({"requests": {"cpu": "1500m", "memory": "1024"},
                            "limits": {"nvidia.com/gpu": "1", "a.b/c": "1"}})"));
  EXPECT_EQ(container["command"], json::parse(R"(["/bin/sh", "/etc/troupe-boot/boot.sh"])"));
  EXPECT_EQ(container["volumeMounts"].size(), 2U);
  EXPECT_EQ(pod["spec"]["volumes"][0]["secret"]["secretName"], SecretName(OrderOf()));
}

TEST(KubePodsTest, WhatTheTemplateAsksForStays) {
  const json container =
      PodWith(R"({"name": "troupe", "resources": {"limits": {"cpu": "3", "amd.com/gpu": "1"}}})",
              {{"CPU", 1}, {"GPU", 2}, {"memory", 5}})["spec"]["containers"][1];
  EXPECT_EQ(
      container["resources"],
      json::parse(R"({"limits": {"cpu": "3", "amd.com/gpu": "1"}, "requests": {"memory": "5"}})"));
}

TEST(KubePodsTest, ASecretIsItsPods) {
  const json secret = json::parse(SecretBody(OptionsOf(), OrderOf(), {{"p", "u"}}));
  EXPECT_EQ(secret["immutable"], true);
  EXPECT_EQ(secret["stringData"]["boot.sh"], "#!/bin/sh\n");
  EXPECT_EQ(secret["metadata"]["ownerReferences"],
            json::parse(R"([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}])"));
}

TEST(KubePodsTest, APodThatIsMadeIsReadBack) {
  json pod = PodWith(R"({"name": "troupe"})", {});
  pod["metadata"]["uid"] = "u";
  pod["metadata"]["resourceVersion"] = "7";
  pod["status"] = json::parse(R"({"phase": "Pending", "conditions": [{"type": "PodScheduled",
      "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]})");
  Result<KubePod> read = ReadPod(pod.dump());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->tags, OrderOf().tags);
  EXPECT_EQ(read->request_id, "r1");
  EXPECT_EQ(read->offer, "spot");
  EXPECT_EQ(read->unschedulable, "0/3 nodes");
  EXPECT_FALSE(read->started || read->ended);
  pod["spec"]["nodeName"] = "n";
  pod["status"] = json::parse(R"({"phase": "Running", "containerStatuses": [
      {"name": "side", "state": {"running": {}}},
      {"name": "troupe", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]})");
  read = ReadPod(pod.dump());
  EXPECT_TRUE(read->ended);  // Though another container runs on.
  EXPECT_EQ(read->end, "exit code 137, OOMKilled");
  EXPECT_EQ(read->ended_container, "troupe");
  pod["status"] = json::parse(R"({"phase": "Failed", "reason": "Evicted", "message": "low on x"})");
  EXPECT_EQ(ReadPod(pod.dump())->end, "Evicted: low on x");
  pod["status"] = json::parse(R"({"phase": "Pending", "containerStatuses": [{"name": "troupe",
      "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}}}]})");
  EXPECT_EQ(ReadPod(pod.dump())->stuck, "ImagePullBackOff");
  EXPECT_FALSE(ReadPod("[]").ok());
}

TEST(KubePodsTest, LinesOfAWatch) {
  const auto seen = ReadEvent(KubeKind::kNodes, R"({"type": "MODIFIED", "object": {"metadata":
      {"name": "n", "resourceVersion": "9"}, "spec": {"taints": [
      {"key": "k", "effect": "NoExecute"}]}}})");
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ(seen->version, "9");
  EXPECT_EQ(seen->node->taints[0].key, "k");
  const auto mark = ReadEvent(
      KubeKind::kPods, R"({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}})");
  EXPECT_EQ(mark->kind, KubeEvent::Kind::kBookmark);
  const auto gone = ReadEvent(KubeKind::kPods, R"({"type": "ERROR", "object": {"kind": "Status",
      "code": 410, "reason": "Expired", "message": "too old"}})");
  EXPECT_EQ(gone->error->failure, KubeFailure::kGone);
  for (const char* line : {"", "{", "[]", R"({"type": "ADDED"})"})
    EXPECT_FALSE(ReadEvent(KubeKind::kPods, line).ok()) << line;
}

struct Refusal {
  int status;
  const char* reason;
  const char* message;
  KubeFailure failure;
  ErrorCode code;
};

TEST(KubeErrorsTest, EachIsWhatItIs) {
  const std::vector<Refusal> refusals = {
      {403, "Forbidden", "pods is forbidden: User \\\"a\\\" cannot create resource \\\"pods\\\"",
       KubeFailure::kForbidden, ErrorCode::kPermissionDenied},
      {403, "Forbidden",
       "pods \\\"p\\\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2",
       KubeFailure::kQuota, ErrorCode::kResourceExhausted},
      {403, "Forbidden", "pods \\\"p\\\" is forbidden: maximum cpu usage per Container is 1",
       KubeFailure::kDenied, ErrorCode::kPermissionDenied},
      {400, "BadRequest", "admission webhook \\\"w\\\" denied the request: no",
       KubeFailure::kDenied, ErrorCode::kPermissionDenied},
      {422, "Invalid", "Pod is invalid", KubeFailure::kInvalid, ErrorCode::kInvalidArgument},
      {409, "AlreadyExists", "", KubeFailure::kExists, ErrorCode::kUnavailable},
      {409, "Conflict", "", KubeFailure::kConflict, ErrorCode::kUnavailable},
      {404, "NotFound", "", KubeFailure::kMissing, ErrorCode::kNotFound},
      {401, "Unauthorized", "", KubeFailure::kUnauthorized, ErrorCode::kPermissionDenied},
      {500, "InternalError", "", KubeFailure::kServer, ErrorCode::kUnavailable},
  };
  for (const Refusal& one : refusals) {
    HttpReply reply;
    reply.status = one.status;
    reply.body = R"({"kind": "Status", "code": )" + std::to_string(one.status) +
                 R"(, "reason": ")" + one.reason + R"(", "message": ")" + one.message + R"("})";
    const KubeError error = ReadKubeError(reply);
    EXPECT_EQ(error.failure, one.failure) << one.message;
    EXPECT_EQ(TellKubeError(error, {"create", "pods", "n", "spot"}).code, one.code) << one.message;
  }
}

TEST(KubeErrorsTest, TheMessageHasWhatAPersonNeeds) {
  HttpReply reply;
  reply.status = 422;
  reply.body = R"({"kind": "Status", "code": 422, "reason": "Invalid", "message": "Pod is invalid",
      "details": {"causes": [{"field": "spec.x", "message": "Required value"}]}})";
  EXPECT_THAT(TellKubeError(ReadKubeError(reply), {"create", "pods", "n", "spot"}).message,
              HasSubstr("for pool spot: Pod is invalid; spec.x: Required value"));
  reply.status = 403;
  reply.body = R"({"kind": "Status", "code": 403, "message": "User cannot list"})";
  EXPECT_THAT(TellKubeError(ReadKubeError(reply), {"list", "nodes", ""}).message,
              HasSubstr("a ClusterRole with the verb \"list\" on nodes is needed"));
  EXPECT_THAT(TellKubeError(ReadKubeError(reply), {"list", "pods", "n"}).message,
              HasSubstr("a Role with the verb \"list\" on pods in namespace n is needed"));
}

TEST(KubeErrorsTest, ThrottlingMayBePlainText) {
  HttpReply reply;
  reply.status = 429;
  reply.body = "Too many requests, please try again later.\n";
  reply.headers["retry-after"] = "3";
  const KubeError error = ReadKubeError(reply);
  EXPECT_EQ(error.failure, KubeFailure::kThrottled);
  EXPECT_EQ(error.retry_after, seconds(3));
  reply.headers["retry-after"] = "99999";
  EXPECT_EQ(ReadKubeError(reply).retry_after, seconds(600));
}

}  // namespace
}  // namespace troupe::kubernetes
