#include "pyapi/actor_calls.h"

#include <pybind11/stl.h>

#include <cstring>
#include <utility>

#include "actors/api/actor_type.h"
#include "actors/api/handle.h"
#include "pyapi/python_support.h"
#include "runtime/wire.h"

namespace troupe::pyapi {
namespace {

constexpr size_t kReleaseGilBytes = 64 << 10;  // A copy of more takes longer than the GIL's return.
constexpr std::string_view kPayloadMagic = "TPy1";
constexpr uint8_t kReceiverOwns = 1;

struct ObjectFolder {
  std::mutex mu;
  std::string path;
};
ObjectFolder& TheObjectFolder() {
  static auto* const folder = new ObjectFolder();  // Results outlive static destructors.
  return *folder;
}

// The layout is that of troupe/actors/_codec.py: magic, kind, flags, u16 segments, u32 buffers,
// then of each segment u64 bytes, u16 length of its name, its name.
void UnlinkSegments(const std::string& payload) {
  constexpr size_t kHeader = 12;
  if (payload.size() < kHeader || !payload.starts_with(kPayloadMagic)) return;
  if ((static_cast<uint8_t>(payload[5]) & kReceiverOwns) == 0) return;
  std::string folder;
  {
    std::lock_guard lock(TheObjectFolder().mu);
    folder = TheObjectFolder().path;
  }
  uint16_t segments = 0;
  std::memcpy(&segments, payload.data() + 6, sizeof segments);
  size_t at = kHeader;
  for (uint16_t i = 0; i < segments && at + 10 <= payload.size() && !folder.empty(); ++i) {
    uint16_t length = 0;
    std::memcpy(&length, payload.data() + at + 8, sizeof length);
    const std::string name = payload.substr(at + 10, length);
    if (name.find('/') == std::string::npos) ::unlink((folder + "/" + name).c_str());
    at += 10 + size_t{length};
  }
}

py::object ResultOf(const PyCall& call) {
  const Result<std::string>& result = call.state()->result();
  if (!result.ok()) Raise(result.error());
  call.state()->Claim();
  return py::bytes(*result);
}

// True if `count` of the calls are complete within the limit.
bool WaitForSome(const std::vector<PyCall*>& calls, size_t count, double limit_s) {
  struct Counter {
    std::mutex mu;
    std::condition_variable changed;
    size_t ready = 0;
  };
  const auto counter = std::make_shared<Counter>();
  std::vector<std::pair<PyCall*, uint64_t>> asked;
  for (PyCall* call : calls) {
    const uint64_t id = call->state()->OnComplete([counter] {
      std::lock_guard lock(counter->mu);
      ++counter->ready;
      counter->changed.notify_all();
    });
    if (id != 0) asked.emplace_back(call, id);
    std::lock_guard lock(counter->mu);
    if (counter->ready >= count) break;  // Of many calls, the first may do.
  }
  const auto forget = [&asked] {
    for (const auto& [call, id] : asked) call->state()->Remove(id);
  };
  const auto attempt = [&](Duration slice) {
    std::unique_lock lock(counter->mu);
    return counter->changed.wait_for(lock, slice, [&] { return counter->ready >= count; });
  };
  bool enough = false;
  try {
    enough = WaitInSlices(limit_s, attempt, [](bool done) { return done; });
  } catch (...) {
    forget();
    throw;
  }
  forget();
  return enough;
}

// Of `with loan.waiting():`. In C++, since a handler of a signal may raise between any two steps of
// Python, but not between Begin and the block that ends with End.
class CountedWait {
 public:
  explicit CountedWait(std::shared_ptr<actors::CpuLoan> loan) : loan_(std::move(loan)) {}
  void Begin() const { loan_->WaitBegan(); }
  void End() const { loan_->WaitEnded(); }

 private:
  const std::shared_ptr<actors::CpuLoan> loan_;
};

py::list TakeItems(Completions& completions, double limit_s) {
  std::deque<Completions::Item> items = WaitInSlices(
      limit_s, [&](Duration slice) { return completions.Take(slice); },
      [&](const auto& taken) { return !taken.empty() || completions.closed(); });
  py::list list;
  for (const Completions::Item& item : items) {
    if (const auto* token = std::get_if<uint64_t>(&item)) {
      list.append(*token);
      continue;
    }
    const auto& output = std::get<actors::ActorOutput>(item);
    py::list lines;
    for (const std::string& line : output.lines)  // Bytes that are no text must not be lost.
      lines.append(py::bytes(line).attr("decode")("utf-8", "replace"));
    list.append(py::make_tuple(output.type, output.pid, output.node, output.is_stderr, lines,
                               output.dropped));
  }
  return list;
}

}  // namespace

void SetObjectFolder(const std::string& folder) {
  std::lock_guard lock(TheObjectFolder().mu);
  TheObjectFolder().path = folder;
}

void DisownSegments(std::string& payload) {
  if (payload.size() > 5 && payload.starts_with(kPayloadMagic))
    payload[5] = static_cast<char>(payload[5] & ~kReceiverOwns);
}

CallState::~CallState() {
  if (result_ && result_->ok() && !claimed_.load()) UnlinkSegments(**result_);
}

void CallState::Complete(Result<std::string> result) {
  std::map<uint64_t, std::function<void()>> then;
  {
    std::lock_guard lock(mu_);
    if (result_) return;
    result_ = std::move(result);
    then.swap(then_);
  }
  done_.Set();
  for (const auto& [id, fn] : then) fn();
}

void CallState::GiveUp() { Complete(Error{ErrorCode::kCancelled, "cancelled by its caller"}); }

bool CallState::Ready() const {
  std::lock_guard lock(mu_);
  return result_.has_value();
}

const Result<std::string>& CallState::result() const {
  std::lock_guard lock(mu_);
  TROUPE_ASSERT(result_.has_value(), "the result of a call that is not complete");
  return *result_;
}

uint64_t CallState::OnComplete(std::function<void()> fn) {
  {
    std::lock_guard lock(mu_);
    if (!result_) {
      then_.emplace(next_, std::move(fn));
      return next_++;
    }
  }
  fn();
  return 0;
}

void CallState::Remove(uint64_t id) {
  std::lock_guard lock(mu_);
  then_.erase(id);
}

void Completions::Push(Item item) {
  std::lock_guard lock(mu_);
  if (closed_) return;
  if (auto* output = std::get_if<actors::ActorOutput>(&item)) {
    size_t bytes = 0;
    for (const std::string& line : output->lines) bytes += line.size() + sizeof(std::string);
    if (output_bytes_ + bytes > kOutputBytesMax) {
      dropped_ += output->lines.size() + output->dropped;
      return;
    }
    output_bytes_ += bytes;
    output->dropped += std::exchange(dropped_, 0);
  }
  items_.push_back(std::move(item));
  changed_.notify_one();
}

std::deque<Completions::Item> Completions::Take(Duration limit) {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, limit, [this] { return closed_ || !items_.empty(); });
  output_bytes_ = 0;
  return std::exchange(items_, {});
}

void Completions::Close() {
  std::lock_guard lock(mu_);
  closed_ = true;
  changed_.notify_all();
}

bool Completions::closed() const {
  std::lock_guard lock(mu_);
  return closed_ && items_.empty();
}

bool PyCall::WaitFor(Duration limit) const {
  if (!call_.get() || !call_.here()) return state_->done().WaitFor(limit);
  call_->Await(state_->done(), SteadyClock().Now() + limit);
  return state_->Ready();
}

std::string PyCall::WhyNot() const {
  return call_.here() && call_.get() ? call_->WhyNot() : std::string();
}

void PyCall::Cancel(const actors::Cancellation& how) {
  if (call_.get()) call_->Cancel(how);
  state_->GiveUp();
}

std::unique_ptr<PyCall> PyActorRef::Call(const std::string& method, const py::bytes& arguments,
                                         double timeout_s, bool retry) const {
  auto state = std::make_shared<CallState>();
  std::string bytes = arguments;
  const auto call = [&] {
    return ref_->Call(method, std::move(bytes), CallOptions{Seconds(timeout_s), retry},
                      [state](Result<std::string> result) { state->Complete(std::move(result)); });
  };
  uint64_t number = 0;
  if (bytes.size() < kReleaseGilBytes) {
    number = call();
  } else {
    const WithoutGil released;
    number = call();
  }
  std::shared_ptr<actors::RefCall> pending;
  if (number != 0) pending = std::make_shared<actors::RefCall>(system_.get(), ref_.get(), number);
  return std::make_unique<PyCall>(std::move(state), std::move(pending));
}

void PyActorRef::Kill(bool restart, const std::string& reason, double limit_s) const {
  const auto state = std::make_shared<CallState>();
  ref_->Kill(restart, reason,
             [state](Result<std::string> result) { state->Complete(std::move(result)); });
  const bool done = WaitInSlices(
      limit_s, [&](Duration slice) { return state->done().WaitFor(slice); },
      [](bool d) { return d; });
  if (!done) Raise(Error{ErrorCode::kDeadlineExceeded, "the head did not answer in time"});
  if (!state->result().ok()) Raise(state->result().error());
}

namespace {

void BindCall(py::module_& m) {
  py::class_<PyCall>(m, "Call")
      .def("ready", [](const PyCall& call) { return call.state()->Ready(); })
      .def(
          "wait",
          [](const PyCall& call, double limit_s) {
            if (call.state()->Ready()) return true;
            return WaitInSlices(
                limit_s, [&](Duration slice) { return call.WaitFor(slice); },
                [](bool done) { return done; });
          },
          py::arg("timeout_s"))
      .def("why_not", &PyCall::WhyNot)
      .def("result", &ResultOf)
      .def(
          "cancel",
          [](PyCall& call, bool force, bool recursive) {
            const WithoutGil released;
            call.Cancel({force, recursive});
          },
          py::arg("force"), py::arg("recursive"))
      .def("complete_from",
           [](const PyCall& call, const PyCall& other) {
             const auto& source = other.state();
             source->OnComplete([target = call.state(), from = std::weak_ptr(source)] {
               const auto alive = from.lock();
               if (!alive) return;
               alive->Claim();
               target->Complete(alive->result());
             });
           })
      .def("fail",
           [](const PyCall& call, uint8_t code, const std::string& message) {
             call.state()->Complete(Error{static_cast<ErrorCode>(code), message});
           })
      .def(
          "notify",
          [](const PyCall& call, const std::shared_ptr<Completions>& completions, uint64_t token) {
            call.state()->OnComplete([completions, token] { completions->Push(token); });
          },
          py::arg("completions"), py::arg("token"));
}

}  // namespace

void BindCalls(py::module_& m) {
  py::class_<Completions, std::shared_ptr<Completions>>(m, "Completions")
      .def(py::init<>())
      .def("take", &TakeItems, py::arg("timeout_s"))
      .def("close", &Completions::Close)
      .def_property_readonly("closed", &Completions::closed);
  py::class_<actors::CpuLoan, std::shared_ptr<actors::CpuLoan>>(m, "CpuLoan")
      .def("call_began", &actors::CpuLoan::CallBegan)
      .def("call_ended", &actors::CpuLoan::CallEnded)
      .def("waiting", [](std::shared_ptr<actors::CpuLoan> loan) {
        return std::make_unique<CountedWait>(std::move(loan));
      });
  py::class_<CountedWait>(m, "CountedWait")
      .def("__enter__", &CountedWait::Begin)
      .def("__exit__", [](const CountedWait& wait, const py::args&) { wait.End(); });
  BindCall(m);
  py::class_<PyActorRef>(m, "ActorRef")
      .def("call", &PyActorRef::Call, py::arg("method"), py::arg("arguments"), py::arg("timeout_s"),
           py::arg("retry"))
      .def("kill", &PyActorRef::Kill, py::arg("restart"), py::arg("reason"), py::arg("timeout_s"))
      .def_property_readonly("id", [](const PyActorRef& r) { return r.ref().address().actor; })
      .def_property_readonly("type", [](const PyActorRef& r) { return r.ref().address().type; })
      .def_property_readonly("endpoint",
                             [](const PyActorRef& r) { return r.ref().address().process.endpoint; })
      .def_property_readonly("placed", [](const PyActorRef& r) { return r.ref().address().placed; })
      .def("why_not", [](const PyActorRef& r) { return r.ref().WhyNot(); })
      .def("address", [](const PyActorRef& r) {
        const auto box = actors::Pack<actors::ActorAddress>{{r.ref().address()}};
        return py::bytes(wire::Encode(actors::kArgumentsType, box));
      });
  // Complete from the start, for a value that was put.
  m.def("completed_call", [](const py::bytes& payload) {
    auto state = std::make_shared<CallState>();
    state->Complete(std::string(payload));
    state->Claim();
    return std::make_unique<PyCall>(std::move(state), nullptr);
  });
  // Of a call that is not sent yet: complete_from or fail completes it.
  m.def("pending_call",
        [] { return std::make_unique<PyCall>(std::make_shared<CallState>(), nullptr); });
  m.def("wait_for_some", &WaitForSome, py::arg("calls"), py::arg("count"), py::arg("timeout_s"));
  m.def("set_object_folder", &SetObjectFolder, py::arg("folder"));
}

}  // namespace troupe::pyapi
