// The extension module troupe._core: the only file (with its helpers in python_support.h) that
// includes pybind11.
//
// Blocking calls release the GIL and wait in slices, so that Ctrl-C is seen within 100 ms. The
// module never links libtorch: tensors arrive as addresses and element counts, so one build serves
// every torch version.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <xxhash.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective_groups/ledger.h"
#include "daemons/driver_client.h"
#include "daemons/worker_client.h"
#include "runtime/trace.h"

namespace py = pybind11;

namespace {

using namespace troupe;
using troupe::daemons::DriverClient;
using troupe::daemons::WorkerClient;

constexpr Duration kSlice = milliseconds(100);

py::object core_error;  // The exception class; set once when the module is made, never freed.

[[noreturn]] void Raise(const Error& error) {
  py::object instance = core_error(error.message);
  instance.attr("code") = std::string(ErrorCodeName(error.code));
  instance.attr("message") = error.message;
  PyErr_SetObject(core_error.ptr(), instance.ptr());
  throw py::error_already_set();
}

void Check(const Status& status) {
  if (!status.ok()) Raise(status.error());
}
template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.error());
  return std::move(*result);
}

Duration Seconds(double s) {
  return s > 1e9 ? Duration(int64_t{1'000'000'000} * 1'000'000'000)
                 : Duration(static_cast<int64_t>(std::max(0.0, s) * 1e9));
}

// Calls `attempt(slice)` without the GIL until `ready(result)` or the limit; between slices signals
// are handled.
template <class F, class Ready>
auto WaitInSlices(double limit_s, F&& attempt, Ready&& ready) {
  const Time deadline = SteadyClock().Now() + Seconds(limit_s);
  for (;;) {
    const Duration left = std::max(Duration::zero(), deadline - SteadyClock().Now());
    auto result = [&] {
      py::gil_scoped_release release;
      return attempt(std::min(left, kSlice));
    }();
    if (ready(result) || left <= kSlice) return result;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::object ParseJson(const std::string& text) {
  return py::module_::import("json").attr("loads")(text);
}

py::dict EventDict(const JobEvent& event) {
  py::dict dict = ParseJson(event.json);
  const bool has_payload = event.kind == "report" || event.kind == "result" || event.kind == "done";
  if (has_payload) dict["payload"] = py::bytes(event.payload);
  return dict;
}

template <class T>
T Get(const py::dict& dict, const char* key, T fallback) {
  if (!dict.contains(key) || dict[key].is_none()) return fallback;
  try {
    return dict[key].cast<T>();
  } catch (const py::cast_error&) {
    const py::object value = dict[key];
    throw py::type_error(std::string(key) +
                         " has an unusable type: " + std::string(py::str(py::type::of(value))));
  }
}

// ---- driver ----

class PyDriver {
 public:
  PyDriver(const std::string& address, const py::dict& options) {
    daemons::DriverOptions o;
    o.address = address;
    o.key_file = Get<std::string>(options, "key_file", "");
    o.bin_dir = Get<std::string>(options, "bin_dir", "");
    o.redis_server = Get<std::string>(options, "redis_server", "");
    o.log_dir = Get<std::string>(options, "log_dir", "");
    o.resources = Get<std::map<std::string, double>>(options, "resources", {});
    if (const double cpus = Get<double>(options, "num_cpus", 0); cpus > 0)
      o.resources["CPU"] = cpus;
    if (const double gpus = Get<double>(options, "num_gpus", 0); gpus > 0)
      o.resources["GPU"] = gpus;
    if (const double bytes = Get<double>(options, "memory_bytes", 0); bytes > 0)
      o.resources["memory"] = bytes;
    o.start_timeout = Seconds(Get<double>(options, "start_timeout_s", 20));
    const auto python = Get<std::string>(options, "python", "");
    worker_argv_ = {
        python.empty() ? py::module_::import("sys").attr("executable").cast<std::string>() : python,
        "-m", "troupe.worker"};
    for (const auto& path : Get<std::vector<std::string>>(options, "python_path", {})) {
      python_path_ += (python_path_.empty() ? "" : ":") + path;
    }
    lease_ms_ = Get<uint32_t>(options, "lease_ms", 2000);
    py::gil_scoped_release release;
    Result<std::unique_ptr<DriverClient>> client = DriverClient::Connect(std::move(o));
    py::gil_scoped_acquire acquire;
    client_ = Unwrap(std::move(client));
    address_ = client_->address();
  }

  [[nodiscard]] std::string Address() const { return address_; }

  std::string Submit(const py::dict& spec) {
    JobSpec s;
    s.name = Get<std::string>(spec, "name", "run");
    s.min_workers = Get<uint32_t>(spec, "min_workers", 1);
    s.max_workers = Get<uint32_t>(spec, "max_workers", s.min_workers);
    s.workers = Get<uint32_t>(spec, "workers", s.max_workers);
    s.resources = Get<std::map<std::string, double>>(spec, "resources", {{"CPU", 1.0}});
    s.strategy = Get<std::string>(spec, "strategy", "spread");
    s.payload = spec["payload"].cast<py::bytes>();
    s.preload = Get<std::vector<std::string>>(spec, "preload", {});
    s.env = Get<std::map<std::string, std::string>>(spec, "env", {});
    if (!python_path_.empty()) {
      std::string& path = s.env["PYTHONPATH"];
      path = path.empty() ? python_path_ : python_path_ + ":" + path;
    }
    s.worker_argv = worker_argv_;
    s.elastic_timeout_s = Get<double>(spec, "elastic_timeout_s", 600);
    s.start_timeout_s = Get<double>(spec, "start_timeout_s", 60);
    s.stall_report_s = Get<double>(spec, "stall_report_s", 30);
    s.stall_remove_s = Get<double>(spec, "stall_remove_s", 600);
    s.reset_limit = Get<int64_t>(spec, "reset_limit", -1);
    s.spares = Get<uint32_t>(spec, "spares", 1);
    s.lease_ms = lease_ms_;
    return Call([&] { return client().Submit(std::move(s)); });
  }

  py::object NextEvent(const std::string& job, double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return client().NextEvent(job, slice); },
        [](const auto& r) { return !r.ok() || r->has_value(); });
    std::optional<JobEvent> event = Unwrap(std::move(result));
    if (!event) return py::none();
    return EventDict(*event);
  }

  void Resize(const std::string& job, uint32_t workers) {
    CallStatus([&] { return client().Resize(job, workers); });
  }
  void Drain(const std::string& job, const std::string& worker, double deadline_s) {
    CallStatus([&] { return client().Drain(job, worker, Seconds(deadline_s)); });
  }
  void Cancel(const std::string& job) {
    CallStatus([&] { return client().Cancel(job); });
  }
  py::object JobStatus(const std::string& job) {
    return ParseJson(Call([&] { return client().JobJson(job); }));
  }
  py::object Cluster() {
    return ParseJson(Call([&] { return client().ClusterJson(); }));
  }
  void Shutdown() {
    py::gil_scoped_release release;
    if (client_) client_->Shutdown();
  }

 private:
  DriverClient& client() { return *client_; }
  template <class F>
  std::string Call(F&& f) {
    auto result = [&] {
      py::gil_scoped_release release;
      return f();
    }();
    return Unwrap(std::move(result));
  }
  template <class F>
  void CallStatus(F&& f) {
    const Status status = [&] {
      py::gil_scoped_release release;
      return f();
    }();
    Check(status);
  }

  std::unique_ptr<DriverClient> client_;
  std::string address_;
  std::vector<std::string> worker_argv_;
  std::string python_path_;
  uint32_t lease_ms_ = 2000;
};

// ---- worker ----

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

class PyGroup {
 public:
  explicit PyGroup(WorkerClient* client) : client_(client) {}

  void Ready(uint64_t version, bool has_state, bool founder) {
    py::gil_scoped_release release;
    Agent().Ready(version, has_state, founder);
  }
  py::object WaitActive(double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return Agent().WaitActive(slice); },
        [this](const auto& r) {
          return r.ok() || r.error().code != ErrorCode::kDeadlineExceeded || Agent().Running();
        });
    if (!result.ok() && result.error().code == ErrorCode::kDeadlineExceeded) return py::none();
    return ViewDict(Unwrap(std::move(result)), client_->assignment().max_workers);
  }
  py::object View() { return ViewDict(Agent().Current(), client_->assignment().max_workers); }
  bool Running() { return client_->assignment().group_running || Agent().Running(); }
  bool Boundary() {
    auto result = [&] {
      py::gil_scoped_release release;
      return Agent().Boundary();
    }();
    return Unwrap(std::move(result));
  }
  void SetVersion(uint64_t version) { Agent().SetVersion(version); }

  using Buffers = std::vector<std::pair<uintptr_t, size_t>>;       // Address, bytes.
  using Blocks = std::vector<std::tuple<int, uintptr_t, size_t>>;  // Peer, address, bytes.

  uint64_t AllReduce(const Buffers& in, const Buffers& out, size_t count, const std::string& dtype,
                     const std::string& op, double prescale, double postscale,
                     const std::string& text, uint32_t team, bool now) {
    return Agent().AllReduce(MakeCall(text, team, now), Inputs(in), Outputs(out),
                             Arguments(dtype, op, count, prescale, postscale));
  }
  uint64_t ReduceScatter(uintptr_t in, uintptr_t out, std::vector<size_t> counts,
                         const std::string& dtype, const std::string& op, double prescale,
                         double postscale, const std::string& text, uint32_t team, bool now) {
    CheckSizes("reduce-scatter", counts.size(), team);
    return Agent().ReduceScatter(MakeCall(text, team, now), reinterpret_cast<void*>(in),
                                 reinterpret_cast<void*>(out), std::move(counts),
                                 Arguments(dtype, op, 0, prescale, postscale));
  }
  uint64_t Broadcast(uintptr_t address, size_t bytes, int root, const std::string& text,
                     uint32_t team, bool now) {
    CheckPosition(root, team);
    return Agent().Broadcast(MakeCall(text, team, now), reinterpret_cast<void*>(address), bytes,
                             root);
  }
  uint64_t AllGather(uintptr_t in, uintptr_t out, std::vector<size_t> bytes_per_rank,
                     const std::string& text, uint32_t team, bool now) {
    CheckSizes("all-gather", bytes_per_rank.size(), team);
    return Agent().AllGather(MakeCall(text, team, now), reinterpret_cast<void*>(in),
                             reinterpret_cast<void*>(out), std::move(bytes_per_rank));
  }
  uint64_t Exchange(const Blocks& outgoing, const Blocks& incoming, const std::string& text,
                    uint32_t team, bool now) {
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
    return Agent().Exchange(MakeCall(text, team, now), std::move(out), std::move(in));
  }
  uint64_t Adasum(const Buffers& tensors, const std::string& dtype, const std::string& text,
                  uint32_t team, bool now) {
    return Agent().Adasum(MakeCall(text, team, now), Outputs(tensors), ParseType(dtype));
  }
  uint64_t Barrier(const std::string& text, uint32_t team, bool now) {
    return Agent().Barrier(MakeCall(text, team, now));
  }
  uint64_t AddTeam(const std::vector<int>& ranks) {
    for (const int rank : ranks) CheckPosition(rank, 0);
    return Agent().AddTeam(ranks);
  }
  std::vector<int> Team(uint32_t id) { return Agent().team(id).ranks; }
  uint64_t Wait(uint64_t handle, double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return Agent().Wait(handle, slice); },
        [](const auto& r) { return r.ok() || r.error().code != ErrorCode::kDeadlineExceeded; });
    return Unwrap(std::move(result));
  }
  bool Poll(uint64_t handle) { return Agent().Poll(handle); }
  uint64_t Transfer(std::vector<int> sources, std::vector<int> receivers, const Buffers& buffers,
                    double timeout_s) {
    for (const int rank : sources) CheckPosition(rank, 0);
    for (const int rank : receivers) CheckPosition(rank, 0);
    const uint64_t handle =
        Agent().Transfer(std::move(sources), std::move(receivers), Outputs(buffers));
    const uint64_t sent = Wait(handle, timeout_s);
    if (sent > 0) client_->Note("state", sent, "");
    return sent;
  }

 private:
  groups::GroupAgent& Agent() {
    groups::GroupAgent* agent = client_->group();
    if (agent == nullptr)
      throw std::runtime_error("this worker has no assignment yet, so it has no group");
    return *agent;
  }
  static groups::GroupAgent::Call MakeCall(const std::string& text, uint32_t team, bool now) {
    using RunBy = groups::GroupAgent::RunBy;
    return {team, text, now ? RunBy::kCaller : RunBy::kLane};
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
  WorkerClient* const client_;
};

class PyWorker {
 public:
  PyWorker() {
    Result<std::unique_ptr<WorkerClient>> client = [&] {
      py::gil_scoped_release release;
      return WorkerClient::FromEnvironment();
    }();
    client_ = Unwrap(std::move(client));
  }
  ~PyWorker() {
    py::gil_scoped_release release;
    client_.reset();
  }

  std::string Id() const {
    return client_->member().empty() ? client_->process() : client_->member();
  }
  std::string Host() const { return client_->host(); }
  PyGroup Group() { return PyGroup(client_.get()); }
  bool ShouldExit() const { return client_->released(); }

  py::object WaitAssignment(double timeout_s) {
    if (preloading_) {
      preloading_ = false;
      client_->Preloaded();
    }
    const auto assignment = WaitInSlices(
        timeout_s, [&](Duration slice) { return client_->WaitAssignment(slice); },
        [&](const auto& a) { return a.has_value() || client_->released(); });
    if (!assignment) return py::none();
    preloading_ = assignment->job.empty();
    py::dict dict;
    dict["job"] = assignment->job;
    dict["name"] = assignment->name;
    dict["payload"] = py::bytes(assignment->payload);
    dict["env"] = assignment->env;
    dict["preload"] = assignment->preload;
    dict["min_workers"] = assignment->min_workers;
    dict["max_workers"] = assignment->max_workers;
    dict["index"] = assignment->index;
    return dict;
  }
  void Finish(bool ok, const py::bytes& payload) {
    std::string bytes = payload;
    py::gil_scoped_release release;
    client_->Finish(ok, std::move(bytes), seconds(600));
  }
  void Report(const py::bytes& payload) {
    std::string bytes = payload;
    py::gil_scoped_release release;
    client_->Note("report", 0, std::move(bytes));
  }

 private:
  std::unique_ptr<WorkerClient> client_;
  bool preloading_ = false;
};

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int port = 0;
  if (fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    port = ntohs(address.sin_port);
  }
  if (fd >= 0) ::close(fd);
  return port;
}

void BindDriver(py::module_& m) {
  py::class_<PyDriver>(m, "Driver")
      .def(py::init<const std::string&, const py::dict&>(), py::arg("address"), py::arg("options"))
      .def_property_readonly("address", &PyDriver::Address)
      .def("submit", &PyDriver::Submit, py::arg("spec"))
      .def("next_event", &PyDriver::NextEvent, py::arg("job_id"), py::arg("timeout_s"))
      .def("resize", &PyDriver::Resize, py::arg("job_id"), py::arg("workers"))
      .def("drain", &PyDriver::Drain, py::arg("job_id"), py::arg("worker_id"),
           py::arg("deadline_s") = 0.0)
      .def("cancel", &PyDriver::Cancel, py::arg("job_id"))
      .def("status", &PyDriver::JobStatus, py::arg("job_id"))
      .def("cluster", &PyDriver::Cluster)
      .def("shutdown", &PyDriver::Shutdown);
}

void BindWorker(py::module_& m) {
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
           py::arg("text") = "", py::arg("team") = 0, py::arg("now") = false)
      .def("reducescatter", &PyGroup::ReduceScatter, py::arg("in_ptr"), py::arg("out_ptr"),
           py::arg("counts"), py::arg("dtype"), py::arg("op"), py::arg("prescale") = 1.0,
           py::arg("postscale") = 1.0, py::arg("text") = "", py::arg("team") = 0,
           py::arg("now") = false)
      .def("broadcast", &PyGroup::Broadcast, py::arg("ptr"), py::arg("nbytes"), py::arg("root"),
           py::arg("text") = "", py::arg("team") = 0, py::arg("now") = false)
      .def("allgather", &PyGroup::AllGather, py::arg("in_ptr"), py::arg("out_ptr"),
           py::arg("nbytes_per_rank"), py::arg("text") = "", py::arg("team") = 0,
           py::arg("now") = false)
      .def("exchange", &PyGroup::Exchange, py::arg("outgoing"), py::arg("incoming"),
           py::arg("text") = "", py::arg("team") = 0, py::arg("now") = false)
      .def("adasum", &PyGroup::Adasum, py::arg("tensors"), py::arg("dtype"), py::arg("text") = "",
           py::arg("team") = 0, py::arg("now") = false)
      .def("barrier", &PyGroup::Barrier, py::arg("text") = "", py::arg("team") = 0,
           py::arg("now") = false)
      .def("add_team", &PyGroup::AddTeam, py::arg("ranks"))
      .def("team", &PyGroup::Team, py::arg("team"))
      .def("wait", &PyGroup::Wait, py::arg("handle"), py::arg("timeout_s"))
      .def("poll", &PyGroup::Poll, py::arg("handle"))
      .def("transfer", &PyGroup::Transfer, py::arg("sources"), py::arg("receivers"),
           py::arg("buffers"), py::arg("timeout_s"));
  py::class_<PyWorker>(m, "Worker")
      .def(py::init<>())
      .def_property_readonly("id", &PyWorker::Id)
      .def_property_readonly("host", &PyWorker::Host)
      // A plain property would drop keep_alive.
      .def_property_readonly("group", py::cpp_function(&PyWorker::Group, py::keep_alive<0, 1>()))
      .def("wait_assignment", &PyWorker::WaitAssignment, py::arg("timeout_s"))
      .def("finish", &PyWorker::Finish, py::arg("ok"), py::arg("payload"))
      .def("report", &PyWorker::Report, py::arg("payload"))
      .def("should_exit", &PyWorker::ShouldExit);
}

void BindLedger(py::module_& m) {
  using groups::SampleLedger;
  py::class_<SampleLedger>(m, "SampleLedger")
      .def(py::init<uint64_t>(), py::arg("samples"))
      .def("begin_epoch", &SampleLedger::BeginEpoch, py::arg("data_epoch"))
      .def_property_readonly("data_epoch", &SampleLedger::data_epoch)
      .def_property_readonly("samples", &SampleLedger::samples)
      .def_property_readonly("committed", &SampleLedger::committed)
      .def_property_readonly("next_step", &SampleLedger::next_step)
      .def("remaining", &SampleLedger::remaining)
      .def("pool", &SampleLedger::Pool)
      .def(
          "lease",
          [](SampleLedger& l, uint64_t step, const std::vector<uint64_t>& sizes) {
            return Unwrap(l.Lease(step, sizes));
          },
          py::arg("step"), py::arg("sizes"))
      .def(
          "commit",
          [](SampleLedger& l, uint64_t step, SampleLedger::Share returned) {
            Check(l.Commit(step, std::move(returned)));
          },
          py::arg("step"), py::arg("returned") = SampleLedger::Share{})
      .def("void", &SampleLedger::Void, py::arg("step"))
      .def("state", [](const SampleLedger& l) { return py::bytes(l.Save()); })
      .def(
          "load", [](SampleLedger& l, const py::bytes& state) { Check(l.Load(state)); },
          py::arg("state"));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Core of Troupe: cluster client, worker, collective group, sample ledger.";
  // Leaked on purpose: destroying it at interpreter exit would need the GIL at a time when there is
  // none.
  core_error = py::reinterpret_borrow<py::object>(
      PyErr_NewException("troupe._core.CoreError", PyExc_RuntimeError, nullptr));
  m.attr("CoreError") = core_error;
  core_error.inc_ref();
  BindDriver(m);
  BindWorker(m);
  BindLedger(m);
  m.def(
      "trace_enter",
      [](const std::string& track, const std::string& name) { trace::Enter(track, name); },
      py::arg("track"), py::arg("name"));
  m.def("version", [] { return std::string(TROUPE_VERSION); });
  m.def("free_port", &FreePort, "A TCP port of the loopback interface that is free at the moment.");
  m.def(
      "xxh64",
      [](uintptr_t address, size_t bytes) {
        return XXH3_64bits(reinterpret_cast<void*>(address), bytes);
      },
      py::arg("ptr"), py::arg("nbytes"));
}
