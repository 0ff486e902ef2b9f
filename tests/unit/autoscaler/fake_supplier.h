// A supplier of nodes in memory that keeps the contract of autoscaler/exec_protocol.h, or breaks
// one of its promises.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/exec_protocol.h"

namespace troupe::tests {

class FakeSupplier {
 public:
  using Json = nlohmann::json;

  enum class Fault {
    kNone,
    kNoOffers,
    kRubbish,          // Its list is not JSON.
    kDoubles,          // The same request makes another node.
    kForgetsRequests,  // The list does not say what made a node.
    kMakesTooMany,
    kTakesAnyOffer,
    kTakesAnyVerb,
    kNeverEnds,     // A terminated node stays listed.
    kFailsOnEnded,  // Terminate of an unknown node is an error.
    kNoPrices,
    kSilent,  // Nothing comes within the limit.
  };

  explicit FakeSupplier(Fault fault = Fault::kNone) : fault(fault) {}

  Result<ExecReply> operator()(const ExecCommand&, std::string_view input) {
    const Json request = Json::parse(input);
    const auto verb = request.at("verb").get<std::string>();
    verbs.push_back(verb);
    if (fault == Fault::kSilent) return Error{ErrorCode::kDeadlineExceeded, "did not answer"};
    if (next_code != 0) return ExecReply{std::exchange(next_code, 0), "", "said why\n"};
    if (verb == "offers") return Offers();
    if (verb == "price")
      return Said({{"prices", fault == Fault::kNoPrices ? Json::object() : Json{{"spot", 0.3}}}});
    if (verb == "list") return List();
    if (verb == "create") return Create(request);
    if (verb == "terminate") return Terminate(request);
    return ExecReply{fault == Fault::kTakesAnyVerb ? 0 : kExecBadConfig, "{}", "no such verb"};
  }

  Fault fault;
  int room = 8;
  int next_code = 0;  // The next request ends with it.
  std::map<std::string, Json> nodes;
  std::vector<std::string> verbs;
  Json last_create;

 private:
  static ExecReply Said(const Json& json) { return {0, json.dump(), ""}; }

  ExecReply Offers() const {
    Json offers = Json::array();
    if (fault != Fault::kNoOffers) offers.push_back({{"name", "spot"}, {"market", "spot"}});
    return Said({{"offers", offers}});
  }
  ExecReply List() const {
    if (fault == Fault::kRubbish) return {0, "node-1 running", ""};
    Json list = Json::array();
    for (const auto& [id, node] : nodes) list.push_back(node);
    return Said({{"nodes", list}});
  }
  ExecReply Create(const Json& request) {
    last_create = request;
    if (request.at("offer") != "spot" && fault != Fault::kTakesAnyOffer)
      return {kExecBadConfig, "", "no such offer"};
    Json made = Json::array();
    for (const auto& [id, node] : nodes) {
      const bool same = made_by_[id] == request.at("request_id").get<std::string>();
      if (same && fault != Fault::kDoubles) made.push_back(node);
    }
    if (!made.empty()) return Said({{"nodes", made}});
    const int more = fault == Fault::kMakesTooMany ? 1 : 0;
    for (int i = 0; i < request.at("count").get<int>() + more && room > 0; ++i, --room) {
      const std::string id = "i-" + std::to_string(++last_);
      made_by_[id] = request.at("request_id");
      nodes[id] = {{"id", id}, {"offer", request.at("offer")}, {"tags", request.at("tags")}};
      if (fault != Fault::kForgetsRequests) nodes[id]["request_id"] = request.at("request_id");
      made.push_back(nodes[id]);
    }
    if (made.empty()) return {kExecNoCapacity, "", "none left\n"};
    return Said({{"nodes", made}});
  }
  ExecReply Terminate(const Json& request) {
    for (const auto& id : request.at("ids")) {
      const bool known = nodes.contains(id.get<std::string>());
      if (!known && fault == Fault::kFailsOnEnded) return {1, "", "no such node"};
      if (fault != Fault::kNeverEnds) nodes.erase(id.get<std::string>());
    }
    return Said(Json::object());
  }

  int last_ = 0;
  std::map<std::string, std::string> made_by_;
};

}  // namespace troupe::tests
