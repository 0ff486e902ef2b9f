#include "pyapi/group.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pyapi/actor_calls.h"

namespace troupe::pyapi {
namespace {

using daemons::WorkerClient;

py::object ViewDict(const groups::ActiveView& active, uint32_t max_workers) {
  if (active.view.epoch == 0) return py::none();
  py::list members;
  for (const groups::ViewMember& m : active.view.members) {
    py::dict member;
    member["id"] = m.id.ToString();
    member["host"] = m.host;
    member["version"] = m.version;
    member["has_state"] = m.has_state;
    members.append(member);
  }
  py::dict view;
  view["epoch"] = active.view.epoch;
  view["rank"] = active.topology.rank;
  view["size"] = active.topology.size;
  view["local_rank"] = active.topology.local_rank;
  view["local_size"] = active.topology.local_size;
  view["cross_rank"] = active.topology.cross_rank;
  view["cross_size"] = active.topology.cross_size;
  view["max_size"] = max_workers;
  view["reason"] = active.view.reason;
  view["source_rank"] = groups::SourceRank(active.view);
  view["needs_state"] = groups::RanksWithoutState(active.view);
  view["members"] = members;
  view["pause_ms"] = ToMilliseconds(active.pause);
  return view;
}

// Where a group is known from.
struct GroupSource {
  std::function<groups::GroupAgent*()> agent;  // Null: there is none yet.
  std::function<uint32_t()> max_size;
  std::function<bool()> running;
  std::function<void(uint64_t bytes)> state_sent;
};

class PyGroup {
 public:
  explicit PyGroup(GroupSource source) : source_(std::move(source)) {}

  void Ready(uint64_t version, bool has_state, bool founder) {
    const WithoutGil released;
    Agent().Ready(version, has_state, founder);
  }
  py::object WaitActive(double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return Agent().WaitActive(slice); },
        [this](const auto& r) {
          return r.ok() || r.error().code != ErrorCode::kDeadlineExceeded || Agent().Running();
        });
    if (!result.ok() && result.error().code == ErrorCode::kDeadlineExceeded) return py::none();
    return ViewDict(Unwrap(std::move(result)), source_.max_size());
  }
  py::object View() { return ViewDict(Agent().Current(), source_.max_size()); }
  bool Running() { return Agent().Running() || source_.running(); }
  bool Boundary() {
    auto result = [&] {
      const WithoutGil released;
      return Agent().Boundary();
    }();
    return Unwrap(std::move(result));
  }
  void SetVersion(uint64_t version) { Agent().SetVersion(version); }

  using Buffers = std::vector<std::pair<uintptr_t, size_t>>;       // Address, bytes.
  using Blocks = std::vector<std::tuple<int, uintptr_t, size_t>>;  // Peer, address, bytes.
  // Where the buffers are: a device's index and the stream that writes them; see kHostMemory.
  using Memory = std::pair<int, uintptr_t>;

  uint64_t AllReduce(const Buffers& in, const Buffers& out, size_t count, const std::string& dtype,
                     const std::string& op, double prescale, double postscale,
                     const std::string& text, uint32_t team, const Memory& memory, bool weighted) {
    groups::ReduceArguments arguments = Arguments(dtype, op, count, prescale, postscale);
    arguments.weighted = weighted;
    return Agent().AllReduce(MakeCall(text, team, memory), Inputs(in), Outputs(out), arguments);
  }
  uint64_t ReduceScatter(uintptr_t in, uintptr_t out, std::vector<size_t> counts,
                         const std::string& dtype, const std::string& op, double prescale,
                         double postscale, const std::string& text, uint32_t team,
                         const Memory& memory) {
    CheckSizes("reduce-scatter", counts.size(), team);
    return Agent().ReduceScatter(MakeCall(text, team, memory), reinterpret_cast<void*>(in),
                                 reinterpret_cast<void*>(out), std::move(counts),
                                 Arguments(dtype, op, 0, prescale, postscale));
  }
  uint64_t Broadcast(uintptr_t address, size_t bytes, int root, const std::string& text,
                     uint32_t team, const Memory& memory) {
    CheckPosition(root, team);
    return Agent().Broadcast(MakeCall(text, team, memory), reinterpret_cast<void*>(address), bytes,
                             root);
  }
  uint64_t AllGather(uintptr_t in, uintptr_t out, std::vector<size_t> bytes_per_rank,
                     const std::string& text, uint32_t team, const Memory& memory) {
    CheckSizes("all-gather", bytes_per_rank.size(), team);
    return Agent().AllGather(MakeCall(text, team, memory), reinterpret_cast<void*>(in),
                             reinterpret_cast<void*>(out), std::move(bytes_per_rank));
  }
  uint64_t Exchange(const Blocks& outgoing, const Blocks& incoming, const std::string& text,
                    uint32_t team, const Memory& memory) {
    std::vector<groups::OutgoingBlock> out;
    for (const auto& [peer, address, bytes] : outgoing) {
      CheckPosition(peer, team);
      out.push_back({peer, reinterpret_cast<void*>(address), bytes});
    }
    std::vector<groups::IncomingBlock> in;
    for (const auto& [peer, address, bytes] : incoming) {
      CheckPosition(peer, team);
      in.push_back({peer, reinterpret_cast<void*>(address), bytes});
    }
    return Agent().Exchange(MakeCall(text, team, memory), std::move(out), std::move(in));
  }
  uint64_t Adasum(const Buffers& tensors, const std::string& dtype, const std::string& text,
                  uint32_t team) {
    return Agent().Adasum(MakeCall(text, team), Outputs(tensors), ParseType(dtype));
  }
  uint64_t Barrier(const std::string& text, uint32_t team) {
    return Agent().Barrier(MakeCall(text, team));
  }
  uint64_t Join() { return Agent().Join(); }
  uint64_t AddTeam(const std::vector<int>& ranks, bool members_only) {
    for (const int rank : ranks) CheckPosition(rank, 0);
    return Agent().AddTeam(ranks, members_only);
  }
  void DropTeam(uint32_t id) { Agent().DropTeam(id); }
  // Whether the epoch of the last view is over.
  bool Over() { return Agent().WaitTurn(Duration::zero()) == groups::GroupAgent::Turn::kLeft; }
  std::vector<int> Team(uint32_t id) { return Agent().team(id).ranks; }
  uint64_t Wait(uint64_t handle, double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return Agent().Wait(handle, slice); },
        [](const auto& r) { return r.ok() || r.error().code != ErrorCode::kDeadlineExceeded; });
    return Unwrap(std::move(result));
  }
  bool Devices() { return Agent().devices(); }
  bool Poll(uint64_t handle) { return Agent().Poll(handle); }
  uint64_t StartTransfer(std::vector<int> sources, std::vector<int> receivers,
                         const Buffers& buffers) {
    for (const int rank : sources) CheckPosition(rank, 0);
    for (const int rank : receivers) CheckPosition(rank, 0);
    return Agent().Transfer(std::move(sources), std::move(receivers), Outputs(buffers));
  }
  uint64_t FinishTransfer(uint64_t handle, double timeout_s) {
    const uint64_t sent = Wait(handle, timeout_s);
    if (sent > 0) source_.state_sent(sent);
    return sent;
  }

 private:
  groups::GroupAgent& Agent() {
    made_.Check();
    groups::GroupAgent* agent = source_.agent();
    if (agent == nullptr)
      throw std::runtime_error("this worker has no assignment yet, so it has no group");
    return *agent;
  }
  groups::GroupAgent::Call MakeCall(const std::string& text, uint32_t team,
                                    const Memory& memory = {groups::kHostMemory, 0}) {
    groups::GroupAgent::Call call;
    call.team = team;
    call.text = text;
    const auto& [device, stream] = memory;
    call.device = Unwrap(Agent().Mark(device, reinterpret_cast<void*>(stream)));
    return call;
  }
  static groups::DataType ParseType(const std::string& dtype) {
    const auto type = groups::ParseDataType(dtype);
    if (!type) throw py::value_error("unknown dtype '" + dtype + "'");
    return *type;
  }
  static groups::ReduceArguments Arguments(const std::string& dtype, const std::string& op,
                                           size_t count, double prescale, double postscale) {
    groups::ReduceArguments arguments;
    arguments.elements.type = ParseType(dtype);
    arguments.average = op == "average";
    const auto reduce = groups::ParseReduceOp(arguments.average ? "sum" : op);
    if (!reduce) {
      throw py::value_error("unknown op '" + op + "'; use sum, average, min, max or product");
    }
    arguments.elements.op = *reduce;
    arguments.count = count;
    arguments.prescale = prescale;
    arguments.postscale = postscale;
    return arguments;
  }
  static std::vector<groups::ConstBuffer> Inputs(const Buffers& buffers) {
    std::vector<groups::ConstBuffer> list;
    for (const auto& [address, bytes] : buffers) {
      list.push_back({reinterpret_cast<void*>(address), bytes});
    }
    return list;
  }
  static std::vector<groups::MutableBuffer> Outputs(const Buffers& buffers) {
    std::vector<groups::MutableBuffer> list;
    for (const auto& [address, bytes] : buffers) {
      list.push_back({reinterpret_cast<void*>(address), bytes});
    }
    return list;
  }
  // Outside an epoch sizes are unknown, and the operation fails by itself.
  void CheckPosition(int position, uint32_t team) {
    const int size = Agent().team(team).size();
    if (size > 0 && (position < 0 || position >= size)) {
      throw py::value_error("rank " + std::to_string(position) + " is not in 0.." +
                            std::to_string(size - 1));
    }
  }
  void CheckSizes(const char* what, size_t given, uint32_t team) {
    const int size = Agent().team(team).size();
    if (size > 0 && static_cast<int>(given) != size) {
      throw py::value_error(std::string(what) + " wants one block size per rank: " +
                            std::to_string(size) + ", got " + std::to_string(given));
    }
  }
  const GroupSource source_;
  MadeHere made_;
};

}  // namespace

void BindGroup(py::module_& m) {
  py::class_<PyGroup>(m, "Group")
      .def("ready", &PyGroup::Ready, py::arg("version"), py::arg("has_state"),
           py::arg("founder") = false)
      .def("wait_active", &PyGroup::WaitActive, py::arg("timeout_s"))
      .def("view", &PyGroup::View)
      .def("running", &PyGroup::Running)
      .def("boundary", &PyGroup::Boundary)
      .def("set_version", &PyGroup::SetVersion, py::arg("version"))
      .def("allreduce", &PyGroup::AllReduce, py::arg("ins"), py::arg("outs"), py::arg("count"),
           py::arg("dtype"), py::arg("op"), py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
           py::arg("text") = "", py::arg("team") = 0,
           py::arg("memory") = PyGroup::Memory{groups::kHostMemory, 0}, py::arg("weighted") = false)
      .def("reducescatter", &PyGroup::ReduceScatter, py::arg("in_ptr"), py::arg("out_ptr"),
           py::arg("counts"), py::arg("dtype"), py::arg("op"), py::arg("prescale") = 1.0,
           py::arg("postscale") = 1.0, py::arg("text") = "", py::arg("team") = 0,
           py::arg("memory") = PyGroup::Memory{groups::kHostMemory, 0})
      .def("broadcast", &PyGroup::Broadcast, py::arg("ptr"), py::arg("nbytes"), py::arg("root"),
           py::arg("text") = "", py::arg("team") = 0,
           py::arg("memory") = PyGroup::Memory{groups::kHostMemory, 0})
      .def("allgather", &PyGroup::AllGather, py::arg("in_ptr"), py::arg("out_ptr"),
           py::arg("nbytes_per_rank"), py::arg("text") = "", py::arg("team") = 0,
           py::arg("memory") = PyGroup::Memory{groups::kHostMemory, 0})
      .def("exchange", &PyGroup::Exchange, py::arg("outgoing"), py::arg("incoming"),
           py::arg("text") = "", py::arg("team") = 0,
           py::arg("memory") = PyGroup::Memory{groups::kHostMemory, 0})
      .def("adasum", &PyGroup::Adasum, py::arg("tensors"), py::arg("dtype"), py::arg("text") = "",
           py::arg("team") = 0)
      .def("barrier", &PyGroup::Barrier, py::arg("text") = "", py::arg("team") = 0)
      .def("join", &PyGroup::Join)
      .def("add_team", &PyGroup::AddTeam, py::arg("ranks"), py::arg("members_only") = false)
      .def("drop_team", &PyGroup::DropTeam, py::arg("team"))
      .def("over", &PyGroup::Over)
      .def("team", &PyGroup::Team, py::arg("team"))
      .def("wait", &PyGroup::Wait, py::arg("handle"), py::arg("timeout_s"))
      .def("devices", &PyGroup::Devices)
      .def("poll", &PyGroup::Poll, py::arg("handle"))
      .def("start_transfer", &PyGroup::StartTransfer, py::arg("sources"), py::arg("receivers"),
           py::arg("buffers"))
      .def("finish_transfer", &PyGroup::FinishTransfer, py::arg("handle"), py::arg("timeout_s"));
}

py::object MakeGroup(WorkerClient* client) {
  return py::cast(PyGroup(
      {[client] { return client->group(); }, [client] { return client->assignment().max_workers; },
       [client] { return client->assignment().group_running; },
       [client](uint64_t bytes) { (void)client->Note(NoteKind::kState, bytes, ""); }}));
}

py::object MakeGroup(std::shared_ptr<groups::GroupAgent> agent, uint32_t max_size, bool running) {
  // In a forked child its threads are missing, and it is never destroyed.
  const auto owned = std::make_shared<OwnedHere<groups::GroupAgent>>(std::move(agent));
  return py::cast(PyGroup({[owned] { return owned->get().get(); }, [max_size] { return max_size; },
                           [running] { return running; }, [](uint64_t) {}}));
}

}  // namespace troupe::pyapi
