// The extension module troupe._core: its classes and functions.
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

#include "collective_groups/membership/ledger.h"
#include "daemons/client/driver_client.h"
#include "daemons/client/worker_client.h"
#include "pyapi/actors.h"
#include "pyapi/collectives.h"
#include "pyapi/commits.h"
#include "pyapi/fork_server.h"
#include "pyapi/group.h"
#include "pyapi/python_support.h"
#include "pyapi/user_metrics.h"
#include "runtime/trace.h"

namespace py = pybind11;

namespace {

using namespace troupe;
using namespace troupe::pyapi;
using troupe::daemons::DriverClient;
using troupe::daemons::WorkerClient;

// A worker that has returned stays until the run is over, so that a head which starts meanwhile
// hears its result. Who ends the run or takes the node down ends it before.
constexpr Duration kResultLimit = std::chrono::hours(24);

py::object ParseJson(const std::string& text) {
  return py::module_::import("json").attr("loads")(text);
}

py::dict EventDict(const RunEvent& event) {
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
    o.metrics_port = Get<int>(options, "metrics_port", 0);
    o.silence_s = Get<double>(options, "driver_silence_s", o.silence_s);
    const auto python = Get<std::string>(options, "python", "");
    worker_argv_ = {
        python.empty() ? py::module_::import("sys").attr("executable").cast<std::string>() : python,
        "-m", "troupe.worker"};
    for (const auto& path : Get<std::vector<std::string>>(options, "python_path", {})) {
      python_path_ += (python_path_.empty() ? "" : ":") + path;
    }
    lease_ms_ = Get<uint32_t>(options, "lease_ms", 2000);
    key_file_ = o.key_file;
    const WithoutGil released;
    Result<std::unique_ptr<DriverClient>> client = DriverClient::Connect(std::move(o));
    py::gil_scoped_acquire acquire;
    client_ = Unwrap(std::move(client));
    address_ = client_->address();
  }

  ~PyDriver() {
    if (!made_.here()) {
      (void)client_.release();  // Its threads are those of the parent.
      return;
    }
    const WithoutGil released;  // It may wait for the head, and for the cluster it started.
    client_.reset();
  }
  PyDriver(const PyDriver&) = delete;
  PyDriver& operator=(const PyDriver&) = delete;

  [[nodiscard]] std::string Address() const { return address_; }

  std::string Submit(const py::dict& spec) {
    RunSpec s;
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
    s.worker_argv = s.spare_argv = worker_argv_;
    s.spare_argv.emplace_back("--spare");
    s.spare_argv.insert(s.spare_argv.end(), s.preload.begin(), s.preload.end());
    s.elastic_timeout_s = Get<double>(spec, "elastic_timeout_s", 600);
    s.start_timeout_s = Get<double>(spec, "start_timeout_s", 60);
    s.stall_report_s = Get<double>(spec, "stall_report_s", 30);
    s.stall_remove_s = Get<double>(spec, "stall_remove_s", 600);
    s.reset_limit = Get<int64_t>(spec, "reset_limit", -1);
    s.spares = Get<uint32_t>(spec, "spares", 1);
    s.lease_ms = lease_ms_;
    s.detached = Get<bool>(spec, "detached", false);
    s.driver_silence_s = Get<double>(spec, "driver_silence_s", s.driver_silence_s);
    return Call([&] { return client().Submit(std::move(s)); });
  }

  py::object NextEvent(const std::string& run, double timeout_s) {
    auto result = WaitInSlices(
        timeout_s, [&](Duration slice) { return client().NextEvent(run, slice); },
        [](const auto& r) { return !r.ok() || r->has_value(); });
    std::optional<RunEvent> event = Unwrap(std::move(result));
    if (!event) return py::none();
    return EventDict(*event);
  }

  void Attach(const std::string& run, bool watch) {
    CallStatus([&] { return client().Attach(run, watch); });
  }
  py::tuple OfferJoin(const std::string& node, double valid_s) {
    const auto offer = Unwrap([&] {
      const WithoutGil released;
      return client().OfferJoin(node, Seconds(valid_s));
    }());
    return py::make_tuple(offer.token, offer.listens);
  }
  void DrainNode(const std::string& node, double deadline_s, const std::string& reason) {
    CallStatus([&] { return client().DrainNode(node, Seconds(deadline_s), reason); });
  }
  void Resize(const std::string& run, uint32_t workers) {
    CallStatus([&] { return client().Resize(run, workers); });
  }
  void Drain(const std::string& run, const std::string& worker, double deadline_s) {
    CallStatus([&] { return client().Drain(run, worker, Seconds(deadline_s)); });
  }
  void Cancel(const std::string& run) {
    CallStatus([&] { return client().Cancel(run); });
  }
  py::object RunStatus(const std::string& run) {
    return ParseJson(Call([&] { return client().RunJson(run); }));
  }
  py::object Cluster() {
    return ParseJson(Call([&] { return client().ClusterJson(); }));
  }
  py::object State() {
    return ParseJson(Call([&] { return client().StateJson(); }));
  }
  py::object Log(const std::string& what, const std::string& node, uint32_t lines) {
    return ParseJson(Call([&] { return client().LogJson(what, node, lines); }));
  }
  void TakeDown() {
    CallStatus([&] { return client().TakeDown(); });
  }
  py::object Actors(const std::string& data_address, const std::vector<std::string>& preload) {
    return pyapi::MakeDriverActors(&client(),
                                   {worker_argv_, preload, python_path_, key_file_, data_address});
  }
  void TellMetrics(uint64_t life, uint64_t number, const py::list& series) {
    const UserMetrics told = MetricsOf(life, number, series);
    const WithoutGil released;
    client().metrics().Tell(told);
  }
  py::object MetricsTaken() const { return TakenTuple(client().metrics().taken()); }
  std::string RunDir() const { return client().run_dir(); }
  void Shutdown() {
    const WithoutGil released;
    if (client_ && made_.here()) client_->Shutdown();
  }

 private:
  [[nodiscard]] DriverClient& client() const {
    made_.Check();
    return *client_;
  }
  template <class F>
  std::string Call(F&& f) {
    auto result = [&] {
      const WithoutGil released;
      return f();
    }();
    return Unwrap(std::move(result));
  }
  template <class F>
  void CallStatus(F&& f) {
    const Status status = [&] {
      const WithoutGil released;
      return f();
    }();
    Check(status);
  }

  MadeHere made_;
  std::unique_ptr<DriverClient> client_;
  std::string address_;
  std::vector<std::string> worker_argv_;
  std::string python_path_;
  std::string key_file_;
  uint32_t lease_ms_ = 2000;
};

// ---- worker ----

class PyWorker {
 public:
  PyWorker() {
    Result<std::unique_ptr<WorkerClient>> client = [&] {
      const WithoutGil released;
      return WorkerClient::FromEnvironment();
    }();
    client_ = Unwrap(std::move(client));
  }
  ~PyWorker() {
    if (!made_.here()) {
      (void)client_.release();  // Its threads are those of the parent.
      return;
    }
    const WithoutGil released;
    client_.reset();
  }

  std::string Id() const {
    return client().member().empty() ? client().process() : client().member();
  }
  std::string Host() const { return client().host(); }
  py::object Actors() { return pyapi::MakeWorkerActors(&client()); }
  py::object Group() { return pyapi::MakeGroup(&client()); }
  bool ShouldExit() const { return client().released(); }

  py::object WaitAssignment(double timeout_s) {
    const auto assignment = WaitInSlices(
        timeout_s, [&](Duration slice) { return client().WaitAssignment(slice); },
        [&](const auto& a) { return a.has_value() || client().released(); });
    if (!assignment) return py::none();
    py::dict dict;
    dict["run"] = assignment->id;
    dict["name"] = assignment->name;
    dict["kind"] = assignment->kind == AssignmentKind::kActor ? "actor" : "run";
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
    const WithoutGil released;
    client().Finish(ok, std::move(bytes), kResultLimit);
  }
  void TellMetrics(uint64_t life, uint64_t number, const py::list& series) {
    const UserMetrics told = MetricsOf(life, number, series);
    const WithoutGil released;
    client().metrics().Tell(told);
  }
  py::object MetricsTaken() const { return TakenTuple(client().metrics().taken()); }
  void Report(const py::bytes& payload) { Note(NoteKind::kReport, payload); }
  // An event: "warning" or "resumed" with a sentence for people, "recovered" with JSON; or
  // "progress" with JSON, which only the head takes.
  void Tell(const std::string& kind, const std::string& message) {
    static const std::map<std::string, NoteKind> kKinds = {{"warning", NoteKind::kWarning},
                                                           {"resumed", NoteKind::kResumed},
                                                           {"recovered", NoteKind::kRecovered},
                                                           {"progress", NoteKind::kProgress}};
    const auto known = kKinds.find(kind);
    if (known == kKinds.end()) throw py::value_error("no event of a worker is a \"" + kind + '"');
    Note(known->second, py::bytes(message));
  }

 private:
  void Note(NoteKind kind, const py::bytes& payload) {
    std::string bytes = payload;
    CheckNote([&] { return client().Note(kind, 0, std::move(bytes)); });
  }
  template <class F>
  static void CheckNote(F&& note) {
    const Status status = [&] {
      const WithoutGil released;
      return note();
    }();
    if (!status.ok() && status.error().code == ErrorCode::kDeadlineExceeded) Check(status);
  }

  [[nodiscard]] WorkerClient& client() const {
    made_.Check();
    return *client_;
  }

  MadeHere made_;
  std::unique_ptr<WorkerClient> client_;
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
      .def("attach", &PyDriver::Attach, py::arg("run_id"), py::arg("watch") = false)
      .def("offer_join", &PyDriver::OfferJoin, py::arg("node"), py::arg("valid_s"))
      .def("drain_node", &PyDriver::DrainNode, py::arg("node"), py::arg("deadline_s"),
           py::arg("reason") = "")
      .def("next_event", &PyDriver::NextEvent, py::arg("run_id"), py::arg("timeout_s"))
      .def("resize", &PyDriver::Resize, py::arg("run_id"), py::arg("workers"))
      .def("drain", &PyDriver::Drain, py::arg("run_id"), py::arg("worker_id"),
           py::arg("deadline_s") = 0.0)
      .def("cancel", &PyDriver::Cancel, py::arg("run_id"))
      .def("status", &PyDriver::RunStatus, py::arg("run_id"))
      .def("cluster", &PyDriver::Cluster)
      .def("state", &PyDriver::State)
      .def("log", &PyDriver::Log, py::arg("what"), py::arg("node"), py::arg("lines"))
      .def("take_down", &PyDriver::TakeDown)
      .def("actors", &PyDriver::Actors, py::keep_alive<0, 1>(), py::arg("data_address") = "",
           py::arg("preload") = std::vector<std::string>())
      .def("tell_metrics", &PyDriver::TellMetrics, py::arg("life"), py::arg("number"),
           py::arg("series"))
      .def("metrics_taken", &PyDriver::MetricsTaken)
      .def_property_readonly("run_dir", &PyDriver::RunDir)
      .def("shutdown", &PyDriver::Shutdown);
}

void BindWorker(py::module_& m) {
  py::class_<PyWorker>(m, "Worker")
      .def(py::init<>())
      .def_property_readonly("id", &PyWorker::Id)
      .def_property_readonly("host", &PyWorker::Host)
      // A plain property would drop keep_alive.
      .def_property_readonly("group", py::cpp_function(&PyWorker::Group, py::keep_alive<0, 1>()))
      .def("actors", &PyWorker::Actors, py::keep_alive<0, 1>())
      .def("wait_assignment", &PyWorker::WaitAssignment, py::arg("timeout_s"))
      .def("finish", &PyWorker::Finish, py::arg("ok"), py::arg("payload"))
      .def("tell_metrics", &PyWorker::TellMetrics, py::arg("life"), py::arg("number"),
           py::arg("series"))
      .def("metrics_taken", &PyWorker::MetricsTaken)
      .def("report", &PyWorker::Report, py::arg("payload"))
      .def("tell", &PyWorker::Tell, py::arg("kind"), py::arg("message"))
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
  pyapi::MakeCoreError(m);
  BindDriver(m);
  pyapi::BindGroup(m);
  pyapi::BindCollectives(m);
  BindWorker(m);
  pyapi::BindActors(m);
  BindLedger(m);
  pyapi::BindCommitStore(m);
  pyapi::BindForkServer(m);
  m.def(
      "trace_enter",
      [](const std::string& track, const std::string& name) { trace::Enter(track, name); },
      py::arg("track"), py::arg("name"));
  m.def("version", [] { return std::string(TROUPE_VERSION); });
  m.def("free_port", &FreePort, "A TCP port of the loopback interface that is free at the moment.");
  m.def("xxh64_of", [](const std::vector<std::pair<uintptr_t, size_t>>& pieces) {
    uint64_t digest = 0;
    for (const auto& [ptr, nbytes] : pieces) {
      digest = XXH3_64bits_withSeed(reinterpret_cast<const void*>(ptr), nbytes, digest);
    }
    return digest;
  });
  m.def(
      "xxh64",
      [](uintptr_t address, size_t bytes) {
        return XXH3_64bits(reinterpret_cast<void*>(address), bytes);
      },
      py::arg("ptr"), py::arg("nbytes"));
}
