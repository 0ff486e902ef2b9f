#include "pyapi/actor_calls.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "actors/api/actor_type.h"
#include "actors/api/handle.h"
#include "pyapi/object_refs.h"
#include "pyapi/python_support.h"
#include "pyapi/shared_files.h"
#include "runtime/wire.h"

namespace troupe::pyapi {
namespace {

constexpr size_t kReleaseGilBytes = 64 << 10;  // A copy of more takes longer than the GIL's return.
constexpr std::string_view kPayloadMagic = "TPy1";
constexpr uint8_t kReceiverOwns = 1;
constexpr uint8_t kPinned = 4;  // It has a table of what it refers to, which its sender has pinned.
constexpr uint8_t kHasHome = 8;  // It ends with the address that has its segments, and u32 length.
constexpr size_t kPayloadHeader = 12;

struct ValueReader {
  std::mutex mu;
  std::weak_ptr<Completions> completions;
  pid_t pid = 0;  // A forked child has copies of values, and no thread that is told.
  uint64_t next = 1;
};
ValueReader& TheValueReader() {
  static auto* const reader = new ValueReader();
  return *reader;
}

template <class T>
T NumberAt(const std::string& bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

[[nodiscard]] bool Flagged(const std::string& payload, uint8_t flag) {
  return payload.size() >= kPayloadHeader && payload.starts_with(kPayloadMagic) &&
         (static_cast<uint8_t>(payload[5]) & flag) != 0;
}

// What a pinned payload refers to; see troupe/actors/_codec.py for the layout.
std::string TableOf(const std::string& payload) {
  size_t at = kPayloadHeader;
  const auto files = NumberAt<uint16_t>(payload, 6);
  for (uint16_t i = 0; i < files; ++i) at += 10 + NumberAt<uint16_t>(payload, at + 8);
  at += size_t{9} * NumberAt<uint32_t>(payload, 8);
  const auto length = NumberAt<uint64_t>(payload, at);
  if (at + 8 > payload.size() || length > payload.size() - at - 8) return "";
  return payload.substr(at + 8, length);
}

// Tells Python of a value that has come; returns by which number it keeps what that refers to.
uint64_t TellArrived(const std::string& payload, bool wanted) {
  ValueReader& reader = TheValueReader();
  std::shared_ptr<Completions> completions;
  uint64_t number = 0;
  {
    std::lock_guard lock(reader.mu);
    completions = reader.completions.lock();
    number = reader.next++;
  }
  if (completions) completions->Push(ValueArrived{wanted ? number : 0, TableOf(payload)});
  return wanted ? number : 0;
}

void TellGone(uint64_t contents) {
  ValueReader& reader = TheValueReader();
  if (::getpid() != reader.pid) return;
  std::shared_ptr<Completions> completions;
  {
    std::lock_guard lock(reader.mu);
    completions = reader.completions.lock();
  }
  if (completions) completions->Push(ValueGone{contents});
}

// The layout is that of troupe/actors/_codec.py: magic, kind, flags, u16 segments, u32 buffers,
// then of each segment u64 bytes, u16 length of its name, its name.
void UnlinkSegments(const std::string& payload) {
  if (!Flagged(payload, kReceiverOwns)) return;
  const auto segments = NumberAt<uint16_t>(payload, 6);
  size_t at = kPayloadHeader;
  for (uint16_t i = 0; i < segments && at + 10 <= payload.size(); ++i) {
    const auto length = NumberAt<uint16_t>(payload, at + 8);
    UnlinkSharedFile(payload.substr(at + 10, length));
    at += 10 + size_t{length};
  }
}

py::object ResultOf(const PyCall& call) {
  const Result<std::string>& result = call.state()->result();
  if (!result.ok()) Raise(result.error());
  call.state()->Claim();
  return py::bytes(*result);
}

// An error, or a payload of Python that is an exception.
bool HasFailed(const Result<std::string>& result) {
  constexpr char kErrorKind = 1;
  return !result.ok() ||
         (result->size() > 4 && result->starts_with(kPayloadMagic) && (*result)[4] == kErrorKind);
}

// True if `count` of the calls are complete within the limit, or, if it is asked for, any has
// failed. Wakes once, whatever their number, and runs the runtime's loop meanwhile if nobody does.
bool WaitForSome(const std::vector<PyCall*>& calls, size_t count, double limit_s,
                 bool or_any_failed) {
  struct Counter {
    std::atomic<size_t> ready{0};
    FiberEvent enough;
  };
  const auto counter = std::make_shared<Counter>();
  std::vector<std::pair<PyCall*, uint64_t>> asked;
  for (PyCall* call : calls) {
    if (or_any_failed && call->state()->Ready()) {  // What it ended with is looked at in its turn.
      if (counter->ready.fetch_add(1) + 1 == count) counter->enough.Set();
      continue;
    }
    const auto over = [counter, count, or_any_failed, state = call->state().get()] {
      if (counter->ready.fetch_add(1) + 1 == count || (or_any_failed && HasFailed(state->result())))
        counter->enough.Set();
    };
    const uint64_t id = call->state()->OnComplete(over);
    if (id != 0) asked.emplace_back(call, id);
    if (counter->enough.IsSet()) break;  // Of many calls, the first may do.
  }
  const auto forget = [&asked] {
    for (const auto& [call, id] : asked) call->state()->Remove(id);
  };
  const auto sent = std::ranges::find_if(
      asked, [](const auto& entry) { return entry.first->pending() && entry.first->here(); });
  const auto attempt = [&](Duration slice) {
    if (sent == asked.end()) return counter->enough.WaitFor(slice);
    sent->first->pending()->Await(counter->enough, SteadyClock().Now() + slice);
    return counter->enough.IsSet();
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

template <class... T>
py::list Listed(const char* what, T&&... values) {
  py::list list;
  list.append(what);
  (list.append(std::forward<T>(values)), ...);
  return list;
}

// Tokens as they are, lines as tuples, what becomes of refs as lists.
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
    if (const auto* ended = std::get_if<RefsEnded>(&item)) {
      list.append(Listed("ended", py::cast(ended->numbers)));
      continue;
    }
    if (const auto* arrived = std::get_if<ValueArrived>(&item)) {
      list.append(Listed("arrived", py::cast(arrived->contents), py::bytes(arrived->table)));
      continue;
    }
    if (const auto* gone = std::get_if<ValueGone>(&item)) {
      list.append(Listed("gone", py::cast(gone->contents)));
      continue;
    }
    if (const auto* again = std::get_if<ComputeAgain>(&item)) {
      list.append(Listed("again", py::cast(again->number), py::bytes(again->lost),
                         py::cast(std::make_unique<PyCall>(again->answer, nullptr))));
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

void SetValueReader(const std::shared_ptr<Completions>& completions) {
  std::lock_guard lock(TheValueReader().mu);
  TheValueReader().completions = completions;
  TheValueReader().pid = ::getpid();
}

void DisownSegments(std::string& payload) {
  if (payload.size() > 5 && payload.starts_with(kPayloadMagic))
    payload[5] = static_cast<char>(payload[5] & ~(kReceiverOwns | kPinned));
}

void Rehome(std::string& payload, const std::string& home) {
  if (!Flagged(payload, kHasHome)) return;
  const auto length = NumberAt<uint16_t>(payload, kPayloadHeader + 8);
  if (kPayloadHeader + 10 + length + sizeof(uint32_t) > payload.size()) return;
  if (!IsSharedHere(std::string_view(payload).substr(kPayloadHeader + 10, length))) return;
  const size_t end = payload.size() - sizeof(uint32_t);
  const auto before = NumberAt<uint32_t>(payload, end);
  if (before > end) return;
  payload.resize(end - before);
  payload += home;
  const auto size = static_cast<uint32_t>(home.size());
  payload.append(reinterpret_cast<const char*>(&size), sizeof size);
}

CallState::~CallState() {
  if (result_ && result_->ok() && !claimed_.load()) UnlinkSegments(**result_);
  if (contents_ != 0) TellGone(contents_);
}

void CallState::Complete(Result<std::string> result) {
  std::map<uint64_t, std::function<void()>> then;
  {
    std::lock_guard lock(mu_);
    const bool refers = result.ok() && Flagged(*result, kPinned);
    if (result_) {
      if (refers) (void)TellArrived(*result, false);
      return;
    }
    if (refers) contents_ = TellArrived(*result, true);
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
  return Send(method, std::string(arguments), timeout_s, retry);
}

std::unique_ptr<PyCall> PyActorRef::Send(const std::string& method, std::string bytes,
                                         double timeout_s, bool retry) const {
  auto state = std::make_shared<CallState>();
  const auto call = [&] {
    return ref_->Call(
        method, std::move(bytes), CallOptions{Seconds(timeout_s), retry},
        [state, held = held_](Result<std::string> result) { state->Complete(std::move(result)); });
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

void PyActorRef::TellGone(const std::shared_ptr<Completions>& completions, uint64_t token) const {
  (void)ref_->Monitor([completions, token](const Error&) { completions->Push(token); });
}

bool PyActorRef::Gone() const {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const uint64_t monitor = ref_->Monitor([gone](const Error&) { gone->store(true); });
  if (monitor != 0) ref_->Demonitor(monitor);
  return gone->load();
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
      .def_property_readonly("gone", &PyActorRef::Gone)
      .def_property_readonly("held", &PyActorRef::held)
      .def("tell_gone", &PyActorRef::TellGone, py::arg("completions"), py::arg("token"))
      .def_property_readonly("peer",
                             [](const PyActorRef& r) { return r.ref().address().process.peer; })
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
  m.def("wait_for_some", &WaitForSome, py::arg("calls"), py::arg("count"), py::arg("timeout_s"),
        py::arg("or_any_failed") = false);
}

}  // namespace troupe::pyapi
