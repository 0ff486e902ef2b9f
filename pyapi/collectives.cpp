#include "pyapi/collectives.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "pyapi/actor_calls.h"
#include "pyapi/python_support.h"

namespace troupe::pyapi {
namespace {

using Buffer = std::pair<uintptr_t, size_t>;  // Address, bytes.
using Memory = std::pair<int, uintptr_t>;     // A device's index and the stream that writes.
constexpr Memory kHost = {groups::kHostMemory, 0};

groups::ConstBuffer In(const Buffer& buffer) {
  return {reinterpret_cast<void*>(buffer.first), buffer.second};
}
groups::MutableBuffer Out(const Buffer& buffer) {
  return {reinterpret_cast<void*>(buffer.first), buffer.second};
}

class PyCollectiveGroup {
 public:
  explicit PyCollectiveGroup(std::shared_ptr<groups::CollectiveGroup> group)
      : group_(std::move(group)) {}

  py::dict Join(double timeout_s) {
    auto view = [&] {
      const WithoutGil released;
      return group().Join(Seconds(timeout_s));
    }();
    return ViewOf(Unwrap(std::move(view)));
  }
  py::object Known() const {
    const groups::ActiveView view = group().known();
    return view.view.epoch == 0 ? py::object(py::none()) : py::object(ViewOf(view));
  }

  void AllReduce(const std::string& what, double timeout_s, const Buffer& in, const Buffer& out,
                 size_t count, const std::string& dtype, const std::string& op,
                 const Memory& memory) {
    const groups::ReduceArguments arguments = Arguments(dtype, op, count);
    Run(memory, [&](const groups::Device& device) {
      return group().AllReduce(what, Seconds(timeout_s), {In(in)}, {Out(out)}, arguments, device);
    });
  }
  void Reduce(const std::string& what, double timeout_s, const Buffer& in, const Buffer& out,
              size_t count, const std::string& dtype, const std::string& op, int root,
              const Memory& memory) {
    const groups::ReduceArguments arguments = Arguments(dtype, op, count);
    Run(memory, [&](const groups::Device& device) {
      return group().Reduce(what, Seconds(timeout_s), In(in), Out(out), root, arguments, device);
    });
  }
  void Broadcast(const std::string& what, double timeout_s, const Buffer& data, int root,
                 const Memory& memory) {
    Run(memory, [&](const groups::Device& device) {
      return group().Broadcast(what, Seconds(timeout_s), Out(data), root, device);
    });
  }
  void AllGather(const std::string& what, double timeout_s, const Buffer& in, const Buffer& out,
                 const Memory& memory) {
    Run(memory, [&](const groups::Device& device) {
      return group().AllGather(what, Seconds(timeout_s), In(in), Out(out), device);
    });
  }
  void ReduceScatter(const std::string& what, double timeout_s, const Buffer& in, const Buffer& out,
                     size_t count, const std::string& dtype, const std::string& op,
                     const Memory& memory) {
    const groups::ReduceArguments arguments = Arguments(dtype, op, count);
    Run(memory, [&](const groups::Device& device) {
      return group().ReduceScatter(what, Seconds(timeout_s), In(in), Out(out), arguments, device);
    });
  }
  void Send(const std::string& what, double timeout_s, const Buffer& data, int to,
            const Memory& memory) {
    Run(memory, [&](const groups::Device& device) {
      return group().Send(what, Seconds(timeout_s), In(data), to, device);
    });
  }
  void Receive(const std::string& what, double timeout_s, const Buffer& data, int from,
               const Memory& memory) {
    Run(memory, [&](const groups::Device& device) {
      return group().Receive(what, Seconds(timeout_s), Out(data), from, device);
    });
  }
  void Barrier(const std::string& what, double timeout_s) {
    Run(kHost, [&](const groups::Device&) { return group().Barrier(what, Seconds(timeout_s)); });
  }
  [[nodiscard]] bool Devices() const { return group().devices(); }

 private:
  [[nodiscard]] groups::CollectiveGroup& group() const {
    made_.Check();
    return *group_.get();
  }

  template <class F>
  void Run(const Memory& memory, F&& collective) {
    const auto& [index, stream] = memory;
    const groups::Device device = Unwrap(group().Mark(index, reinterpret_cast<void*>(stream)));
    const Status status = [&] {
      const WithoutGil released;
      return collective(device);
    }();
    Check(status);
  }

  static groups::ReduceArguments Arguments(const std::string& dtype, const std::string& op,
                                           size_t count) {
    groups::ReduceArguments arguments;
    const auto type = groups::ParseDataType(dtype);
    if (!type) throw py::value_error("unknown dtype '" + dtype + "'");
    arguments.average = op == "average";
    const auto reduce = groups::ParseReduceOp(arguments.average ? "sum" : op);
    if (!reduce) throw py::value_error("unknown op '" + op + "'");
    arguments.elements = {*type, *reduce};
    arguments.count = count;
    return arguments;
  }

  static py::dict ViewOf(const groups::ActiveView& active) {
    py::list members;
    for (const groups::ViewMember& m : active.view.members) members.append(m.id.actor);
    py::dict view;
    view["epoch"] = active.view.epoch;
    view["rank"] = active.topology.rank;
    view["size"] = active.topology.size;
    view["members"] = members;
    view["reason"] = active.view.reason;
    return view;
  }

  const OwnedHere<groups::CollectiveGroup> group_;
  MadeHere made_;
};

}  // namespace

namespace {

actors::CollectiveVerb VerbOf(const std::string& word) {
  static const std::map<std::string, actors::CollectiveVerb> kVerbs = {
      {"create", actors::CollectiveVerb::kCreate},
      {"destroy", actors::CollectiveVerb::kDestroy},
      {"status", actors::CollectiveVerb::kStatus}};
  return kVerbs.at(word);
}

}  // namespace

actors::CollectiveRequest CollectiveRequestOf(const std::string& verb, const py::dict& options) {
  actors::CollectiveRequest request;
  request.verb = VerbOf(verb);
  request.spec.name = Given<std::string>(options, "name", "");
  request.spec.size = Given(options, "size", request.spec.size);
  request.spec.elastic = Given(options, "elastic", false);
  request.spec.min_size = Given(options, "min_size", request.spec.min_size);
  request.spec.actors = Given(options, "actors", request.spec.actors);
  return request;
}

py::dict CollectiveDict(const actors::CollectiveStatus& status) {
  py::list members;
  for (const actors::CollectiveStatus::Seat& seat : status.seats) {
    py::dict one;
    one["actor"] = seat.actor;
    one["state"] = seat.state;
    members.append(std::move(one));
  }
  py::dict dict;
  dict["name"] = status.spec.name;
  dict["size"] = status.spec.size;
  dict["elastic"] = status.spec.elastic;
  dict["min_size"] = status.spec.min_size;
  dict["members"] = std::move(members);
  dict["epoch"] = status.epoch;
  dict["phase"] = status.phase;
  dict["reason"] = status.reason;
  return dict;
}

void BindCollectives(py::module_& m) {
  using G = PyCollectiveGroup;
  py::class_<G>(m, "CollectiveGroup")
      .def("join", &G::Join, py::arg("timeout_s"))
      .def("known", &G::Known)
      .def("allreduce", &G::AllReduce, py::arg("what"), py::arg("timeout_s"), py::arg("data"),
           py::arg("out"), py::arg("count"), py::arg("dtype"), py::arg("op"),
           py::arg("memory") = kHost)
      .def("reduce", &G::Reduce, py::arg("what"), py::arg("timeout_s"), py::arg("data"),
           py::arg("out"), py::arg("count"), py::arg("dtype"), py::arg("op"), py::arg("root"),
           py::arg("memory") = kHost)
      .def("broadcast", &G::Broadcast, py::arg("what"), py::arg("timeout_s"), py::arg("data"),
           py::arg("root"), py::arg("memory") = kHost)
      .def("allgather", &G::AllGather, py::arg("what"), py::arg("timeout_s"), py::arg("data"),
           py::arg("out"), py::arg("memory") = kHost)
      .def("reducescatter", &G::ReduceScatter, py::arg("what"), py::arg("timeout_s"),
           py::arg("data"), py::arg("out"), py::arg("count"), py::arg("dtype"), py::arg("op"),
           py::arg("memory") = kHost)
      .def("send", &G::Send, py::arg("what"), py::arg("timeout_s"), py::arg("data"), py::arg("to"),
           py::arg("memory") = kHost)
      .def("recv", &G::Receive, py::arg("what"), py::arg("timeout_s"), py::arg("data"),
           py::arg("source"), py::arg("memory") = kHost)
      .def("barrier", &G::Barrier, py::arg("what"), py::arg("timeout_s"))
      .def("devices", &G::Devices);
}

py::object MakeCollectiveGroup(std::shared_ptr<groups::CollectiveGroup> group) {
  return py::cast(std::make_unique<PyCollectiveGroup>(std::move(group)));
}

}  // namespace troupe::pyapi
