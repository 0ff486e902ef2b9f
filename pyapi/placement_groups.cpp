#include "pyapi/placement_groups.h"

#include <pybind11/stl.h>

#include <utility>

#include "actors/api/future.h"
#include "actors/api/placement_group.h"
#include "pyapi/python_support.h"

namespace troupe::pyapi {

namespace py = pybind11;

namespace {

actors::PlacementGroupVerb VerbOf(const std::string& word) {
  static const std::map<std::string, actors::PlacementGroupVerb> kVerbs = {
      {"create", actors::PlacementGroupVerb::kCreate},
      {"resize", actors::PlacementGroupVerb::kResize},
      {"remove", actors::PlacementGroupVerb::kRemove},
      {"await", actors::PlacementGroupVerb::kAwait},
      {"status", actors::PlacementGroupVerb::kStatus},
      {"find", actors::PlacementGroupVerb::kFind}};
  return kVerbs.at(word);
}

}  // namespace

actors::GroupRequest GroupRequestOf(const std::string& verb, const py::dict& options) {
  actors::GroupRequest request;
  request.verb = VerbOf(verb);
  request.spec.group = Given<std::string>(options, "group", "");
  request.spec.name = Given<std::string>(options, "name", "");
  request.spec.detached = Given(options, "detached", false);
  request.spec.strategy = Given(options, "strategy", request.spec.strategy);
  request.spec.priority = Given(options, "priority", 0);
  for (const py::handle item : Given(options, "add", py::list())) {
    const auto bundle = item.cast<py::dict>();
    request.add.push_back({Given(bundle, "resources", std::map<std::string, double>()),
                           Given(bundle, "labels", std::vector<std::string>())});
  }
  request.remove = Given(options, "remove", request.remove);
  return request;
}

py::dict GroupDict(const PlacementGroupStatus& status) {
  py::list bundles;
  for (const PlacementGroupStatus::Bundle& bundle : status.bundles) {
    py::dict one;
    one["number"] = bundle.number;
    one["node"] = bundle.node;
    one["devices"] = bundle.devices;
    one["resources"] = bundle.wish.resources;
    one["labels"] = bundle.wish.labels;
    bundles.append(std::move(one));
  }
  py::dict dict;
  dict["id"] = status.id;
  dict["name"] = status.name;
  dict["state"] = status.state;
  dict["reason"] = status.reason;
  dict["bundles"] = std::move(bundles);
  return dict;
}

std::unique_ptr<PyCall> AskPlacementGroup(const std::shared_ptr<actors::ActorSystem>& system,
                                          const std::string& verb, const py::dict& options,
                                          const std::string& payload, Duration limit) {
  const auto state = std::make_shared<CallState>();
  actors::GroupRequest request = GroupRequestOf(verb, options);
  const WithoutGil released;
  actors::AskGroupLater(system, std::move(request), limit)
      .OnComplete([state, payload](const Result<PlacementGroupStatus>& status) {
        state->Complete(status.ok() ? Result<std::string>(payload)
                                    : Result<std::string>(status.error()));
      });
  return std::make_unique<PyCall>(state, nullptr);
}

}  // namespace troupe::pyapi
