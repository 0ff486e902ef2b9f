#include "pyapi/actors.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/api/cluster.h"
#include "actors/api/option_names.h"
#include "actors/core/actor_group_protocol.h"
#include "actors/host/placing.h"
#include "actors/host/task_pool.h"
#include "daemons/client/actor_process.h"
#include "daemons/client/head_client.h"
#include "daemons/client/process_groups.h"
#include "pyapi/actor_calls.h"
#include "pyapi/actor_groups.h"
#include "pyapi/actor_instance.h"
#include "pyapi/actor_program.h"
#include "pyapi/actor_requests.h"
#include "pyapi/collectives.h"
#include "pyapi/group.h"
#include "pyapi/object_refs.h"
#include "pyapi/placement_groups.h"
#include "pyapi/plain_values.h"
#include "pyapi/python_support.h"
#include "pyapi/quick_calls.h"
#include "pyapi/shared_files.h"
#include "runtime/curve_key_files.h"
#include "runtime/process.h"

namespace troupe::pyapi {
namespace {

using actors::ActorAddress;
using actors::ActorSystem;

constexpr Duration kStopLimit = seconds(2);
constexpr Duration kFailLimit = seconds(10);  // For the head to hear why an actor cannot be made.
// Calls that lie ready for a thread of Python, in order, so that it need not wait for a fiber
// between two of them.
constexpr uint32_t kReadAhead = 32;

template <class T>
T Get(const py::dict& dict, const char* key, T fallback) {
  if (!dict.contains(key) || dict[key].is_none()) return fallback;
  return dict[key].cast<T>();
}

template <class T>
void Take(const py::dict& dict, const char* key, T& to) {
  to = Get(dict, key, to);
}
void Take(const py::dict& dict, const char* key, Duration& to) {
  to = Seconds(Get(dict, key, ToSeconds(to)));
}
void Take(const py::dict& dict, const char* key, actors::Overflow& to) {
  if (Get<std::string>(dict, key, "") == "refuse") to = actors::Overflow::kRefuse;
}

ActorOptions OptionsOf(const py::dict& dict) {
  ActorOptions options;
  VisitOptions(options, [&](const char* key, auto& field) { Take(dict, key, field); });
  Take(dict, "runs_tasks", options.runs_tasks);
  return options;
}

// One process's actor system, and in a worker the actor that it hosts.
class PyActors {
 public:
  using Cleanup = std::function<void()>;

  PyActors(std::shared_ptr<ActorSystem> system, std::shared_ptr<Completions> completions,
           Cleanup cleanup)
      : system_(std::move(system)),
        completions_(std::move(completions)),
        cleanup_(std::make_shared<Cleanup>(std::move(cleanup))),
        refs_(std::make_shared<ObjectRefs>(system_.get(), completions_)) {
    refs_->Start();
    SetValueReader(completions_);
  }
  ~PyActors() {
    if (!system_.here()) return;  // Its threads are those of the parent.
    const WithoutGil released;
    Stop();
  }
  PyActors(const PyActors&) = delete;
  PyActors& operator=(const PyActors&) = delete;

  void Stop() {
    if (stopped_.exchange(true)) return;
    if (queue_) queue_->Close();
    refs_->Stop();
    (*cleanup_.get())();
    completions_->Close();
  }

  std::unique_ptr<PyActorRef> Spawn(const std::string& type, const py::bytes& arguments,
                                    const py::dict& options) {
    ActorOptions o = OptionsOf(options);
    if (Get(options, "counted", false)) o.counted_as = RandomId();
    const actors::ActorBlueprint blueprint = actors::MakeBlueprint(o.limits(), type, arguments);
    struct Placed {
      std::shared_ptr<actors::ActorRef> ref;
      std::shared_ptr<HeldRef> held;
    };
    const Future<Placed> placed;
    {
      const WithoutGil released;
      // Held where the answer comes: what this process has, it tells a new head from there.
      actors::PlaceAsync(
          system_.get(), o, blueprint,
          [placed, id = o.counted_as, refs = refs_.get()](const auto& ref) {
            if (!ref.ok()) {  // If it is made nevertheless, nobody holds it.
              if (!id.empty()) (void)HeldRef::OfActor(refs, id);
              return placed.Complete(ref.error());
            }
            const bool made = !id.empty() && (*ref)->address().actor == id;
            placed.Complete(Placed{*ref, made ? HeldRef::OfActor(refs, id) : nullptr});
          });
    }
    Placed one = Await(placed, ToSeconds(kAskLimit));
    return std::make_unique<PyActorRef>(std::move(one.ref), system_.get(), std::move(one.held));
  }
  std::unique_ptr<PyActorRef> Lookup(const std::string& name, double limit_s) {
    const Future<ActorAddress> found;
    if (system_->directory_client() == nullptr)
      Raise(Error{ErrorCode::kUnavailable, "this process is not part of a cluster"});
    system_->directory_client()->Lookup(
        name, Seconds(limit_s), [found](auto address) { found.Complete(std::move(address)); });
    return Refer(Await(found, limit_s + 1));
  }
  py::dict PlacementGroup(const std::string& kind, const py::dict& options, double limit_s) {
    const Future<PlacementGroupStatus> answer =
        actors::AskGroupLater(system_.get(), GroupRequestOf(kind, options), Seconds(limit_s));
    return GroupDict(Await(answer, limit_s + 1));
  }
  std::unique_ptr<PyCall> PlacementGroupLater(const std::string& kind, const py::dict& options,
                                              const py::bytes& payload, double limit_s) {
    return AskPlacementGroup(system_.get(), kind, options, payload, Seconds(limit_s));
  }
  // Its result is for core.actor_group_status.
  std::unique_ptr<PyCall> Group(const std::string& verb, const py::dict& options, double limit_s) {
    actors::ActorGroupRequest request = ActorGroupRequestOf(verb, options);
    if (options.contains("type")) {
      const ActorOptions o = OptionsOf(options["options"].cast<py::dict>());
      if (system_->directory_client() == nullptr)
        Raise(Error{ErrorCode::kUnavailable, "this process is not part of a cluster"});
      request.spec.group = actors::kActorGroupId + RandomId();
      request.spec.member =
          actors::SpecOf(*system_.get(), o,
                         actors::MakeBlueprint(o.limits(), options["type"].cast<std::string>(),
                                               options["arguments"].cast<std::string>()));
      request.spec.member.actor.clear();
    }
    const auto state = std::make_shared<CallState>();
    const WithoutGil released;
    actors::AskActorGroupLater(
        system_.get(), std::move(request), Seconds(limit_s),
        [state](Result<ActorGroupStatus> status) {
          state->Complete(status.ok() ? Result<std::string>(
                                            wire::Encode(actors::kFrameActorGroupRequest, *status))
                                      : Result<std::string>(status.error()));
        });
    return std::make_unique<PyCall>(state, nullptr);
  }
  py::dict Collective(const std::string& kind, const py::dict& options, double limit_s) {
    const actors::CollectiveRequest request = CollectiveRequestOf(kind, options);
    auto status = [&] {
      const WithoutGil released;
      return actors::AskCollective(system_.get(), request, Seconds(limit_s));
    }();
    return CollectiveDict(Unwrap(std::move(status)));
  }
  std::unique_ptr<PyActorRef> Refer(const ActorAddress& address, bool counted = false) {
    const WithoutGil released;
    return std::make_unique<PyActorRef>(
        system_->Refer(address), system_.get(),
        counted ? HeldRef::OfActor(refs_.get(), address.actor) : nullptr);
  }
  // `counted`: unless it is the actor of this process, which does not keep itself alive.
  std::unique_ptr<PyActorRef> ReferTo(const py::bytes& address, bool counted) {
    auto box = wire::Decode<actors::Pack<ActorAddress>>(actors::kArgumentsType, address);
    const ActorAddress there = std::get<0>(Unwrap(std::move(box)).values);
    return Refer(there, counted && there.actor != assignment_.actor);
  }
  // Counts for as long as it lives, whichever actor it is of.
  std::unique_ptr<PyActorRef> Count(const PyActorRef& ref) {
    return Refer(ref.ref().address(), true);
  }
  std::unique_ptr<PyCall> Submit(const std::string& task, const py::bytes& arguments,
                                 const py::dict& options) {
    TaskOptions o;
    o.resources = Get(options, "resources", o.resources);
    o.labels = Get(options, "labels", o.labels);
    o.timeout = Seconds(Get(options, "timeout_s", 3600.0));
    o.max_retries = Get(options, "max_retries", o.max_retries);
    o.code = Get(options, "code", o.code);
    const auto state = std::make_shared<CallState>();
    std::string bytes = arguments;
    const WithoutGil released;
    auto call =
        actors::SubmitTask(system_.get(), o, task, std::move(bytes),
                           [state](Result<std::string> r) { state->Complete(std::move(r)); });
    return std::make_unique<PyCall>(state, std::move(call));
  }
  // The refs of this process.
  [[nodiscard]] std::unique_ptr<PyObjectRefs> Refs() const {
    return std::make_unique<PyObjectRefs>(refs_.get());
  }

  // ---- a worker's actor ----

  void SetWorker(daemons::WorkerClient* worker, actors::ActorAssignment assignment) {
    worker_ = worker;
    refs_->SetOwn(assignment.actor);
    assignment_ = std::move(assignment);
  }
  void SetGroups(std::shared_ptr<daemons::ProcessGroups> groups) {
    groups_ = std::make_unique<OwnedHere<daemons::ProcessGroups>>(std::move(groups));
  }
  [[nodiscard]] OwnedHere<daemons::ProcessGroups>& Groups() const {
    if (!groups_) throw py::value_error("only actors are in collective groups: here is none");
    return *groups_;
  }
  py::object EnterCollective(const std::string& name, uint32_t size, bool elastic,
                             uint32_t min_size, int32_t rank, double limit_s) {
    return MakeCollectiveGroup(Unwrap([&, &groups = Groups()] {
      const WithoutGil released;
      return groups->Enter(name, {size, elastic, min_size, rank}, Seconds(limit_s));
    }()));
  }
  py::object EnterTraining(const std::string& name, double limit_s) {
    auto t = Unwrap([&, &groups = Groups()] {
      const WithoutGil released;
      return groups->Train(name, Seconds(limit_s));
    }());
    return MakeGroup(std::move(t.agent), t.max_size, t.running);
  }
  [[nodiscard]] bool InCollective(const std::string& name) const {
    return groups_ && (*groups_)->Find(name) != nullptr;
  }
  void LeaveCollective(const std::string& name, double limit_s) {
    Check([&, &groups = Groups()] {
      const WithoutGil released;
      return groups->Leave(name, Seconds(limit_s));
    }());
  }
  py::dict Assigned() const {
    const auto blueprint = Unwrap(
        wire::Decode<actors::ActorBlueprint>(actors::kActorBlueprint, assignment_.blueprint));
    py::dict d;
    d["actor"] = assignment_.actor;
    d["incarnation"] = assignment_.incarnation;
    d["type"] = blueprint.type;
    d["arguments"] = py::bytes(blueprint.arguments);
    d["max_concurrency"] = blueprint.max_concurrency;
    return d;
  }
  // `signal`: see PyInstance.
  void Host(bool saves, const py::object& restore, bool tell_cancelled, int signal) {
    auto blueprint = Unwrap(
        wire::Decode<actors::ActorBlueprint>(actors::kActorBlueprint, assignment_.blueprint));
    // Who bounds the calls that wait is to be refused when as many wait, not later.
    const bool bounded = blueprint.overflow == actors::Overflow::kRefuse;
    // A pool's runner answers a ping when it is free.
    const bool pooled = blueprint.type == actors::kTaskRunner;
    if (!tell_cancelled && !bounded && !pooled && blueprint.max_concurrency == 1)
      blueprint.max_concurrency = kReadAhead;
    queue_ = std::make_shared<RequestQueue>(tell_cancelled);
    std::string problem;
    const auto restorer = [&](const std::string& state) -> Status {
      py::gil_scoped_acquire acquire;
      problem = restore(py::bytes(state)).cast<std::string>();
      if (problem.empty()) return Status::Ok();
      return Error{ErrorCode::kUserError, problem};
    };
    own_address_ = Unwrap([&] {
      const WithoutGil released;
      return system_->HostInstance(
          std::make_unique<PyInstance>(queue_, saves, restorer, signal,
                                       [refs = refs_.get()] { return refs->Needed(); }),
          blueprint, assignment_.actor, assignment_.incarnation, assignment_.saved);
    }());
    worker_->Announce(system_->self());
  }
  std::unique_ptr<PyActorRef> Own() {
    return own_address_ ? Refer(*own_address_) : throw py::value_error("it is not made yet");
  }
  // Ends the actor as soon as nobody asks this process for anything.
  void LeaveWhenUnneeded(const std::string& reason) {
    const actors::LeaveActor leave{assignment_.actor, assignment_.incarnation, reason};
    refs_->WhenUnneeded([system = std::weak_ptr(system_.get()), leave] {
      if (const auto alive = system.lock()) alive->Leave(leave);
    });
  }
  // Whether somebody does.
  [[nodiscard]] bool Needed() const { return refs_->Needed(); }
  // The head is told that the actor cannot be made.
  void Fail(const std::string& message, const std::string& type, const std::string& traceback) {
    const Error error{ErrorCode::kUserError, message,
                      std::make_shared<const ErrorOrigin>(ErrorOrigin{
                          type, assignment_.actor, system_->options().node, traceback, nullptr})};
    const WithoutGil released;
    Stop();
    const actors::ActorSaved failure{"", 0, actors::ToChain(error)};
    worker_->Finish(false, wire::Encode(actors::kFrameActorSaved, failure), kFailLimit);
  }
  // (request, cancelled), or None if there is none within the limit or the process is let go.
  // `quick` answers what it can; None also if Python has to look whether the actor has ended.
  py::object Next(double limit_s, QuickHost* quick) {
    for (;;) {
      std::optional<RequestQueue::Item> item = WaitInSlices(
          limit_s, [&](Duration slice) { return queue_->Take(slice); },
          [&](const auto& taken) { return taken.has_value() || Released(); });
      if (!item || item->cancelled || quick == nullptr) return Given(std::move(item));
      const py::object request = py::cast(PyRequestHandle(std::move(item->request)));
      const QuickHost::Done done = quick->Answer(request);
      if (done == QuickHost::Done::kNo) return py::make_tuple(request, false);
      if (done == QuickHost::Done::kByPython || Released()) return py::none();
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
  py::object Poll() { return Given(queue_->Take(Duration::zero())); }
  [[nodiscard]] int Fd() const { return queue_->fd(); }
  [[nodiscard]] bool Released() const { return worker_ == nullptr || worker_->released(); }

  [[nodiscard]] std::string Process() const { return system_->self().peer; }
  [[nodiscard]] std::string Endpoint() const { return system_->self().endpoint; }
  // What all processes of its cluster call that, and no other cluster's.
  [[nodiscard]] const std::string& Cluster() const { return cluster_; }
  void SetCluster(std::string cluster) { cluster_ = std::move(cluster); }
  [[nodiscard]] std::string Node() const { return system_->options().node; }
  [[nodiscard]] const std::shared_ptr<Completions>& completions() const { return completions_; }
  // Where calls and waits are counted; null: there is no CPU to lend.
  [[nodiscard]] std::shared_ptr<actors::CpuLoan> Loan() const {
    return system_.here() ? system_->options().loan : nullptr;
  }

 private:
  static constexpr Duration kAskLimit = seconds(35);  // The link gives up before.

  static py::object Given(std::optional<RequestQueue::Item> item) {
    if (!item) return py::none();
    return py::make_tuple(PyRequestHandle(std::move(item->request)), item->cancelled);
  }
  template <class T>
  T Await(const Future<T>& future, double limit_s) {
    // What a slice gave may be old by the time one looks whether there is a result.
    (void)WaitInSlices(
        limit_s,
        [&](Duration slice) {
          (void)future.Get(slice);
          return future.Ready();
        },
        [](bool ready) { return ready; });
    return Unwrap(future.Get(Duration::zero()));
  }

  const OwnedHere<ActorSystem> system_;
  const std::shared_ptr<Completions> completions_;
  const OwnedHere<Cleanup> cleanup_;
  const PyObjectRefs refs_;
  std::optional<ActorAddress> own_address_;  // Of the actor that is hosted.
  std::atomic<bool> stopped_{false};
  std::string cluster_;
  daemons::WorkerClient* worker_ = nullptr;
  actors::ActorAssignment assignment_;
  std::shared_ptr<RequestQueue> queue_;
  std::unique_ptr<OwnedHere<daemons::ProcessGroups>> groups_;
};

Result<std::shared_ptr<PyActors>> StartBesideDriver(daemons::DriverClient* client,
                                                    const DriverActorOptions& options) {
  const bool remote = !client->address().starts_with("ipc://");
  CurveKeys keys;
  std::string cluster = client->address();
  if (remote) {
    const Result<ClientKeys> loaded = LoadClientKeys(options.key_file);
    if (!loaded.ok()) return loaded.error();
    keys = loaded->own;
    cluster = loaded->head_key;
  }
  auto link = std::make_shared<daemons::HeadClient>(
      &client->loop(), [client](std::string frame) { return client->SendToHead(std::move(frame)); },
      "driver/" + client->id());
  Result<std::unique_ptr<Transport>> transport =
      MakeZmqTransport({client->id() + actors::kCallsSuffix, keys, {}, true});
  if (!transport.ok()) return transport.error();
  ActorSystem::Options system_options;
  system_options.node = "driver";
  system_options.actors_run_loop = false;
  system_options.program = ActorProgram(options.worker_argv, options.preload, options.python_path);
  system_options.directory_client = link;
  const auto completions = std::make_shared<Completions>();
  // Python logs what comes from no actor.
  system_options.on_waiting = [completions](const std::string& line) {
    actors::ActorOutput note;
    note.lines = {line};
    completions->Push(note);
  };
  auto system = ActorSystem::Create(std::move(*transport), std::move(system_options));
  std::string endpoint = "ipc://" + client->socket_dir() + "/" + client->id() + ".sock";
  if (remote) {
    Result<std::string> address = options.data_address.empty()
                                      ? client->LocalAddress()
                                      : Result<std::string>(options.data_address);
    if (!address.ok()) return address.error();
    endpoint = "tcp://" + *address + ":*";
  }
  if (Status s = system->Listen(endpoint); !s.ok()) return s.error();
  link->SetSystem(system);
  link->SetOutput([completions](const actors::ActorOutput& o) { completions->Push(o); });
  client->SetOther([link](const std::string& frame) { (void)link->OnFrame(frame); });
  link->Start();
  const auto cleanup = [client, link, system] {
    link->Stop();
    system->Stop(kStopLimit);
    client->SetOther(nullptr);
  };
  auto made = std::make_shared<PyActors>(system, completions, cleanup);
  made->SetCluster(std::move(cluster));
  return made;
}

Result<std::shared_ptr<PyActors>> StartInWorker(daemons::WorkerClient* worker,
                                                const std::string& python) {
  Result<actors::ActorAssignment> actor =
      wire::Decode<actors::ActorAssignment>(actors::kActorAssignment, worker->assignment().payload);
  if (!actor.ok()) return actor.error();
  daemons::ActorProcessOptions options;
  options.program = ProgramOfWorker(python);
  options.has_cpu = actor->has_cpu;
  Result<std::shared_ptr<ActorSystem>> system =
      daemons::JoinCluster(*worker, "actor/" + actor->actor, std::move(options));
  if (!system.ok()) return system.error();
  const auto groups =
      std::make_shared<daemons::ProcessGroups>(worker, *system, actor->actor, actor->incarnation);
  const auto cleanup = [worker, system = *system, groups] {
    groups->Stop();
    worker->SetOther(nullptr);
    system->Stop(kStopLimit);
  };
  auto made = std::make_shared<PyActors>(*system, std::make_shared<Completions>(), cleanup);
  const std::string head_key = Env("TROUPE_WORKER_HEAD_KEY");
  made->SetCluster(head_key.empty() ? Env("TROUPE_WORKER_HEAD") : head_key);
  made->SetWorker(worker, std::move(*actor));
  made->SetGroups(groups);
  return made;
}

}  // namespace

py::object MakeDriverActors(daemons::DriverClient* client, const DriverActorOptions& options) {
  Result<std::shared_ptr<PyActors>> made = [&] {
    const WithoutGil released;
    return StartBesideDriver(client, options);
  }();
  return py::cast(Unwrap(std::move(made)));
}

py::object MakeWorkerActors(daemons::WorkerClient* client) {
  const auto python = py::module_::import("sys").attr("executable").cast<std::string>();
  Result<std::shared_ptr<PyActors>> made = [&] {
    const WithoutGil released;
    return StartInWorker(client, python);
  }();
  return py::cast(Unwrap(std::move(made)));
}

void BindActors(py::module_& m) {
  BindCalls(m);
  BindObjectRefs(m);
  BindSharedFiles(m);
  BindActorGroups(m);
  BindPlainValues(m);
  BindRequest(m);
  BindQuickCalls(m);
  m.attr("TASK_RUNNER") = actors::kTaskRunner;
  py::class_<PyActors, std::shared_ptr<PyActors>>(m, "Actors")
      .def("spawn", &PyActors::Spawn, py::arg("type"), py::arg("arguments"), py::arg("options"))
      .def("lookup", &PyActors::Lookup, py::arg("name"), py::arg("timeout_s"))
      .def("placement_group", &PyActors::PlacementGroup, py::arg("kind"), py::arg("options"),
           py::arg("timeout_s"))
      .def("placement_group_later", &PyActors::PlacementGroupLater, py::arg("kind"),
           py::arg("options"), py::arg("payload"), py::arg("timeout_s"))
      .def("group", &PyActors::Group, py::arg("verb"), py::arg("options"), py::arg("timeout_s"))
      .def("collective", &PyActors::Collective, py::arg("kind"), py::arg("options"),
           py::arg("timeout_s"))
      .def("enter_collective", &PyActors::EnterCollective, py::arg("name"), py::arg("size"),
           py::arg("elastic"), py::arg("min_size"), py::arg("rank"), py::arg("timeout_s"))
      .def("enter_training", &PyActors::EnterTraining, py::arg("name"), py::arg("timeout_s"))
      .def("in_collective", &PyActors::InCollective, py::arg("name"))
      .def("leave_collective", &PyActors::LeaveCollective, py::arg("name"), py::arg("timeout_s"))
      .def("refer", &PyActors::ReferTo, py::arg("address"), py::arg("counted") = false)
      .def("count", &PyActors::Count, py::arg("ref"))
      .def("submit", &PyActors::Submit, py::arg("task"), py::arg("arguments"), py::arg("options"))
      .def("refs", &PyActors::Refs)
      .def("leave_when_unneeded", &PyActors::LeaveWhenUnneeded, py::arg("reason"))
      .def_property_readonly("needed", &PyActors::Needed)
      .def("assigned", &PyActors::Assigned)
      .def("host", &PyActors::Host, py::arg("saves"), py::arg("restore"), py::arg("tell_cancelled"),
           py::arg("signal"))
      .def("own", &PyActors::Own)
      .def("fail", &PyActors::Fail, py::arg("message"), py::arg("type"), py::arg("traceback"))
      .def("next", &PyActors::Next, py::arg("timeout_s"), py::arg("quick") = py::none())
      .def("poll", &PyActors::Poll)
      .def_property_readonly("fd", &PyActors::Fd)
      .def_property_readonly("released", &PyActors::Released)
      .def_property_readonly("process", &PyActors::Process)
      .def_property_readonly("endpoint", &PyActors::Endpoint)
      .def_property_readonly("cluster", &PyActors::Cluster)
      .def_property_readonly("node", &PyActors::Node)
      .def_property_readonly("completions", &PyActors::completions)
      .def_property_readonly("loan", &PyActors::Loan)
      .def("stop", &PyActors::Stop, py::call_guard<WithoutGil>());
}

}  // namespace troupe::pyapi
