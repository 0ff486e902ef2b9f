#include "autoscaler/kubernetes_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "autoscaler/cluster_config.h"

namespace troupe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string FileWith(const std::string& of_all, const std::string& of_pool) {
  return "provider: kubernetes\nkubernetes: {" + of_all +
         "}\npools:\n  - {name: spot, market: spot, max_workers: 1, " + of_pool + "}\n";
}

PodTemplate PodOf(const std::string& of_all, const std::string& of_pool) {
  const Result<ClusterConfig> config = ParseClusterConfig(
      FileWith(of_all, of_pool + (of_pool.empty() ? "" : ", ") + "zone: a"), "fleet.yaml");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? config->pools[0].pod : PodTemplate{};
}

std::string ProblemsIn(const std::string& of_all, const std::string& of_pool,
                       const std::string& name = "fleet.yaml") {
  const Result<ClusterConfig> config = ParseClusterConfig(
      FileWith(of_all, of_pool + (of_pool.empty() ? "" : ", ") + "zone: a"), name);
  return config.ok() ? "" : config.error().message;
}

std::string ImageOf(const PodTemplate& pod) {
  return json::parse(pod.json)["spec"]["containers"][0]["image"];
}

TEST(KubernetesSpecTest, DefaultsAreThoseOfTheTool) {
  const Result<ClusterConfig> config = ParseClusterConfig(
      FileWith("image: i, namespace: n, context: c, kubeconfig: k", "zone: a"), "fleet.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->kubernetes.kube_namespace, "n");
  EXPECT_EQ(config->kubernetes.context, "c");
  EXPECT_EQ(config->kubernetes.kubeconfig, "k");
  EXPECT_EQ(config->kubernetes.schedule_within, seconds(300));
  EXPECT_EQ(config->head.listen, "0.0.0.0:6380");
}

TEST(KubernetesSpecTest, AnImageIsATemplateOfItsOwn) {
  EXPECT_EQ(ImageOf(PodOf("image: one", "")), "one");
  EXPECT_EQ(ImageOf(PodOf("image: one", "image: two")), "two");
  EXPECT_EQ(PodOf("image: one", "").container, "troupe");
  EXPECT_EQ(PodOf("image: one", "").grace, seconds(30));
  const std::string inside = "{spec: {containers: [{name: c, image: inner}]}}";
  EXPECT_EQ(ImageOf(PodOf("template: " + inside, "")), "inner");
  EXPECT_EQ(ImageOf(PodOf("template: " + inside, "image: two")), "two");
  EXPECT_EQ(ImageOf(PodOf("image: one", "template: " + inside)), "one");
}

TEST(KubernetesSpecTest, AWholePodATemplateAndItsSpecAreTheSame) {
  const std::string pod =
      "metadata: {labels: {team: a}, namespace: n}, spec: {priorityClassName: high, "
      "terminationGracePeriodSeconds: 7, volumes: [{secret: {defaultMode: 0440}}], "
      "containers: [{name: side, image: s}, {name: troupe, image: i}]}";
  const PodTemplate whole =
      PodOf("namespace: n, template: {apiVersion: v1, kind: Pod, " + pod + "}", "");
  EXPECT_EQ(whole.json, PodOf("namespace: n, template: {" + pod + "}", "").json);
  EXPECT_EQ(whole.json,
            PodOf("namespace: n, template: {kind: PodTemplate, template: {" + pod + "}}", "").json);
  EXPECT_EQ(whole.container, "troupe");
  EXPECT_EQ(whole.grace, seconds(7));
  const json read = json::parse(whole.json);
  EXPECT_EQ(read["spec"]["priorityClassName"], "high");
  EXPECT_EQ(read["spec"]["volumes"][0]["secret"]["defaultMode"], 288);
  EXPECT_EQ(read["metadata"]["labels"]["team"], "a");
}

TEST(KubernetesSpecTest, ProblemsHaveTheirPlace) {
  EXPECT_EQ(ProblemsIn("", ""),
            "fleet.yaml:4:5: pools[0].template: give kubernetes.image or kubernetes.template, or "
            "one of this pool");
  EXPECT_EQ(ProblemsIn("template: {spec: {containers: [{name: a}, {name: b}]}}", ""),
            "fleet.yaml:2:44: kubernetes.template.spec.containers: which one becomes the node? Of "
            "several it is called troupe");
  EXPECT_EQ(ProblemsIn("template: {spec: {containers: [{name: a}]}}", ""),
            "fleet.yaml:2:45: kubernetes.template.spec.containers[0].image: which image? Or give "
            "kubernetes.image");
  EXPECT_THAT(ProblemsIn("image: i, template: {spec: {containers: [{command: [a]}]}}", ""),
              HasSubstr("spec.containers[0].command: the node's container runs the node"));
  EXPECT_THAT(ProblemsIn("image: i, template: {spec: {restartPolicy: Always, "
                         "terminationGracePeriodSeconds: x, containers: [{}]}}",
                         ""),
              HasSubstr("spec.restartPolicy: must be Never"));
  EXPECT_THAT(ProblemsIn("image: i, template: {kind: Deployment}", ""),
              HasSubstr("expected Pod or PodTemplate, got Deployment"));
  EXPECT_THAT(ProblemsIn("image: i, template: {spek: {}}", ""), HasSubstr("spec is missing"));
  EXPECT_THAT(ProblemsIn("image: i, template: {metadata: {annotations: {troupe.dev/x: a, n: 1}}, "
                         "spec: {containers: [{}]}}",
                         ""),
              testing::AllOf(HasSubstr("names that begin with troupe.dev/ are not yours"),
                             HasSubstr("annotations.n: expected a string; write it in quotes")));
  EXPECT_THAT(
      ProblemsIn("image: i, template: {metadata: {namespace: m}, spec: {containers: [{}]}}", ""),
      HasSubstr("pods go into kubernetes.namespace; name m there"));
  EXPECT_THAT(ProblemsIn("image: i, schedule_within: 2h", ""),
              HasSubstr("kubernetes.schedule_within: is over autoscaler.launch_timeout"));
  EXPECT_THAT(ProblemsIn("image: i, template: [a]", ""),
              HasSubstr("expected a mapping, or the name of a file"));
  EXPECT_THAT(ParseClusterConfig("kubernetes: {image: i}\npools:\n  - {name: a, market: spot, "
                                 "max_workers: 1, template: {spec: {}}, image: j}\n",
                                 "f")
                  .error()
                  .message,
              testing::AllOf(HasSubstr("kubernetes: is of no use without provider: kubernetes"),
                             HasSubstr("template: is of no use without provider: kubernetes"),
                             HasSubstr("image: is of no use without provider: ec2")));
}

TEST(KubernetesSpecTest, ATemplateMayBeAFileBesideIt) {
  std::string folder = testing::TempDir() + "podXXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/pod.yaml") << "kind: Pod\nspec:\n  containers:\n    - image: filed\n";
  std::ofstream(folder + "/bad.yaml") << "kind: Pod\nspec:\n  containers:\n    - name: a\n";
  const Result<ClusterConfig> config =
      ParseClusterConfig(FileWith("template: pod.yaml", "zone: a"), folder + "/fleet.yaml");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(ImageOf(config->pools[0].pod), "filed");
  EXPECT_THAT(ProblemsIn("template: bad.yaml", "", folder + "/fleet.yaml"),
              HasSubstr("/bad.yaml:4:7: spec.containers[0].image: which image?"));
  EXPECT_THAT(ProblemsIn("template: none.yaml", "", folder + "/fleet.yaml"),
              HasSubstr("none.yaml: cannot be read"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace troupe
