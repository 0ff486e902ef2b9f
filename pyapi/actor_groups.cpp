#include "pyapi/actor_groups.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "actors/api/actor_type.h"
#include "pyapi/python_support.h"
#include "runtime/wire.h"

namespace troupe::pyapi {

namespace py = pybind11;

using actors::ActorGroupVerb;

namespace {

py::dict StatusDict(const py::bytes& encoded) {
  const ActorGroupStatus status =
      Unwrap(wire::Decode<ActorGroupStatus>(actors::kFrameActorGroupRequest, encoded));
  py::list members;
  for (const ActorGroupStatus::Member& m : status.members) {
    py::dict one;
    one["number"] = m.number;
    one["state"] = GroupMemberStateName(m.state);
    one["reason"] = m.reason;
    one["actor"] = m.actor;
    one["incarnation"] = m.incarnation;
    const actors::ActorAddress address{
        m.actor, std::max<uint64_t>(1, m.incarnation), status.type, {}, true};
    one["address"] = py::bytes(
        wire::Encode(actors::kArgumentsType, actors::Pack<actors::ActorAddress>{{address}}));
    members.append(std::move(one));
  }
  py::list events;
  for (const GroupEvent& event : status.events) {
    py::dict one;
    one["sequence"] = event.sequence;
    one["kind"] = GroupEventKindName(event.kind);
    one["member"] = event.member < 0 ? py::object(py::none()) : py::int_(event.member);
    one["detail"] = event.detail;
    events.append(std::move(one));
  }
  py::dict dict;
  dict["id"] = status.id;
  dict["name"] = status.name;
  dict["type"] = status.type;
  dict["min_size"] = status.min_size;
  dict["size"] = status.size;
  dict["max_size"] = status.max_size;
  dict["ended"] = status.ended;
  dict["reason"] = status.reason;
  dict["members"] = std::move(members);
  dict["events"] = std::move(events);
  dict["sequence"] = status.sequence;
  dict["missed"] = status.missed;
  return dict;
}

}  // namespace

actors::ActorGroupRequest ActorGroupRequestOf(const std::string& verb, const py::dict& options) {
  static const std::map<std::string, ActorGroupVerb> kVerbs = {
      {"create", ActorGroupVerb::kCreate},    {"find", ActorGroupVerb::kFind},
      {"status", ActorGroupVerb::kStatus},    {"watch", ActorGroupVerb::kWatch},
      {"resize", ActorGroupVerb::kResize},    {"drain", ActorGroupVerb::kDrain},
      {"end", ActorGroupVerb::kEnd},          {"run", ActorGroupVerb::kRun},
      {"returned", ActorGroupVerb::kReturned}};
  actors::ActorGroupRequest request;
  request.verb = kVerbs.at(verb);
  actors::ActorGroupSpec& spec = request.spec;
  spec.group = Given<std::string>(options, "group", "");
  spec.name = Given<std::string>(options, "name", "");
  spec.detached = Given(options, "detached", false);
  spec.min_size = Given(options, "min_size", spec.min_size);
  spec.size = Given(options, "size", spec.size);
  spec.max_size = Given(options, "max_size", spec.max_size);
  spec.below_min_s = Given(options, "below_min_s", spec.below_min_s);
  request.size = Given(options, "size", request.size);
  request.member = Given(options, "member", request.member);
  request.reason = Given<std::string>(options, "reason", "");
  request.limit_s = Given(options, "limit_s", request.limit_s);
  request.since = Given(options, "since", request.since);
  return request;
}

void BindActorGroups(py::module_& m) {
  m.def("actor_group_status", &StatusDict, py::arg("encoded"));
}

}  // namespace troupe::pyapi
