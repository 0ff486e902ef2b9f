#include "pyapi/quick_calls.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "pyapi/python_support.h"

namespace troupe::pyapi {
namespace {

// As in troupe/actors/_codec.py, of a payload without flags, files and buffers.
constexpr std::string_view kSmallHeader{"TPy1\0\0\0\0\0\0\0\0", 12};  // And u64 length.
constexpr size_t kHeaderBytes = kSmallHeader.size() + sizeof(uint64_t);
constexpr Py_ssize_t kContainerMax = 64;
constexpr Py_ssize_t kTextMax = 4096;
constexpr size_t kPayloadMax = 1 << 20;
constexpr int kProtocol = 5;

// Never freed: at interpreter exit there is no GIL to free them with.
struct Pickle {
  PyObject* dumps;
  PyObject* loads;
  PyObject* protocol;
};
const Pickle& ThePickle() {
  static const auto* const pickle = [] {
    const py::module_ module = py::module_::import("pickle");
    return new Pickle{py::object(module.attr("dumps")).release().ptr(),
                      py::object(module.attr("loads")).release().ptr(),
                      py::int_(kProtocol).release().ptr()};
  }();
  return *pickle;
}

// Of these types themselves: what derives from them may pickle as it likes.
bool IsAtom(PyObject* value) {
  if (value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
      PyFloat_CheckExact(value))
    return true;
  if (PyBytes_CheckExact(value)) return PyBytes_GET_SIZE(value) < kTextMax;
  return PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) < kTextMax;
}

bool AreAtoms(PyObject* tuple) {
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  if (size > kContainerMax) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!IsAtom(PyTuple_GET_ITEM(tuple, i))) return false;
  }
  return true;
}

bool AreAtoms(const py::dict& dict) {
  if (static_cast<Py_ssize_t>(dict.size()) > kContainerMax) return false;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(dict.ptr(), &at, &key, &value) != 0) {
    if (!IsAtom(key) || !IsAtom(value)) return false;
  }
  return true;
}

bool IsPlain(PyObject* value) {
  return IsAtom(value) || (PyTuple_CheckExact(value) && AreAtoms(value));
}

bool ArePlain(const py::tuple& args) {
  if (static_cast<Py_ssize_t>(args.size()) > kContainerMax) return false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!IsPlain(PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i)))) return false;
  }
  return true;
}

// nullopt: it is too large for what is small; a number may be.
std::optional<std::string> Pickled(PyObject* value) {
  const Pickle& pickle = ThePickle();
  PyObject* arguments[] = {value, pickle.protocol};
  const auto blob =
      py::reinterpret_steal<py::object>(PyObject_Vectorcall(pickle.dumps, arguments, 2, nullptr));
  if (!blob) throw py::error_already_set();
  const auto size = static_cast<uint64_t>(PyBytes_GET_SIZE(blob.ptr()));
  if (size >= kPayloadMax) return std::nullopt;
  std::string payload;
  payload.reserve(kHeaderBytes + size);
  payload.append(kSmallHeader);
  payload.append(reinterpret_cast<const char*>(&size), sizeof size);
  payload.append(PyBytes_AS_STRING(blob.ptr()), size);
  return payload;
}

// What a small payload holds; a null object, without an error, if this is another one, or cannot be
// loaded: then Python will say so.
py::object Loaded(std::string_view payload) {
  if (!payload.starts_with(kSmallHeader) || payload.size() < kHeaderBytes) return {};
  uint64_t size = 0;
  std::memcpy(&size, payload.data() + kSmallHeader.size(), sizeof size);
  if (size != payload.size() - kHeaderBytes) return {};
  const auto blob = py::reinterpret_steal<py::object>(
      PyBytes_FromStringAndSize(payload.data() + kHeaderBytes, static_cast<Py_ssize_t>(size)));
  if (!blob) throw py::error_already_set();
  auto value =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(ThePickle().loads, blob.ptr()));
  if (!value) {  // Ctrl-C, and what else ends a program, goes on.
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  return value;
}

// None: it is not quick.
std::unique_ptr<PyCall> QuickCall(const PyActorRef& ref, const std::string& method,
                                  const py::tuple& args, const py::dict& kwargs,
                                  const py::object& owner, double timeout_s, bool retry) {
  if (!ref.here() || !ArePlain(args) || !AreAtoms(kwargs)) return nullptr;
  const py::tuple values = py::make_tuple(args, kwargs, owner);
  std::optional<std::string> payload = Pickled(values.ptr());
  if (!payload) return nullptr;
  return ref.Send(method, std::move(*payload), timeout_s, retry);
}

// The values of these calls; of each that is not complete, has failed or is not small, `other`.
py::list QuickValues(const py::list& calls, const py::object& other) {
  py::list values(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    py::object value;
    if (!calls[i].is_none()) {
      CallState& state = *calls[i].cast<PyCall&>().state();
      if (state.Ready() && state.result().ok()) value = Loaded(*state.result());
    }
    values[i] = value ? value : other;
  }
  return values;
}

}  // namespace

QuickHost::QuickHost(py::object running, py::object begin, py::object raised, py::object reply,
                     std::shared_ptr<actors::CpuLoan> loan)
    : running_(std::move(running)),
      begin_(std::move(begin)),
      raised_(std::move(raised)),
      reply_(std::move(reply)),
      loan_(std::move(loan)) {}

// While it lives the call runs here.
class QuickHost::Begun {
 public:
  Begun(const QuickHost& host, const py::object& request)
      : host_(host),
        token_(py::reinterpret_steal<py::object>(
            PyContextVar_Set(host.running_.ptr(), host.begin_(request).ptr()))),
        call_(host.loan_.get()) {
    if (!token_) throw py::error_already_set();
  }
  ~Begun() {
    if (PyContextVar_Reset(host_.running_.ptr(), token_.ptr()) != 0) PyErr_Clear();
  }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

 private:
  const QuickHost& host_;
  const py::object token_;
  const actors::LoanCall call_;
};

std::optional<QuickHost::Arguments> QuickHost::Read(PyRequestHandle& request) const {
  const py::object data = request.Arguments();
  const std::string_view payload{PyBytes_AS_STRING(data.ptr()),
                                 static_cast<size_t>(PyBytes_GET_SIZE(data.ptr()))};
  const py::object values = Loaded(payload);
  if (!values || !PyTuple_CheckExact(values.ptr()) || PyTuple_GET_SIZE(values.ptr()) != 3)
    return std::nullopt;
  const auto item = [&](Py_ssize_t i) {
    return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(values.ptr(), i));
  };
  Arguments read{item(0), item(1), item(2)};
  if (!PyTuple_CheckExact(read.args.ptr()) || !PyDict_CheckExact(read.kwargs.ptr()))
    return std::nullopt;
  return read;
}

QuickHost::Done QuickHost::Answer(const py::object& request) {
  auto& handle = request.cast<PyRequestHandle&>();
  const PyRequest& call = handle.get();
  if (call.kind != PyRequest::Kind::kCall || handle.Cancelled() || handle.Late()) return Done::kNo;
  PyObject* const method = PyDict_GetItem(methods_.ptr(), handle.Method().ptr());
  if (method == nullptr || !handle.Group().empty()) return Done::kNo;
  std::optional<Arguments> read = Read(handle);
  if (!read) return Done::kNo;
  const Begun begun(*this, request);
  const auto value = py::reinterpret_steal<py::object>(
      PyObject_Call(method, read->args.ptr(), read->kwargs.ptr()));
  if (!value) {
    py::error_already_set error;
    py::object raised = error.value();
    if (error.trace()) PyException_SetTraceback(raised.ptr(), error.trace().ptr());
    raised_(request, raised);
    return Done::kByPython;
  }
  std::optional<std::string> payload;
  if (made_here_.here() && !handle.Late() && IsPlain(value.ptr())) payload = Pickled(value.ptr());
  if (!payload) {
    reply_(request, value, read->owner);
    return Done::kByPython;
  }
  const WithoutGil released;
  handle.get().Answer(std::move(*payload));
  return Done::kAnswered;
}

void BindQuickCalls(py::module_& m) {
  // Now: two threads that both needed it first would wait for each other, for it and for the GIL.
  (void)ThePickle();
  m.def("quick_call", &QuickCall, py::arg("ref"), py::arg("method"), py::arg("args"),
        py::arg("kwargs"), py::arg("owner"), py::arg("timeout_s"), py::arg("retry"));
  m.def("quick_values", &QuickValues, py::arg("calls"), py::arg("other"));
  py::class_<QuickHost>(m, "QuickHost")
      .def(py::init<py::object, py::object, py::object, py::object,
                    std::shared_ptr<actors::CpuLoan>>(),
           py::arg("running"), py::arg("begin"), py::arg("raised"), py::arg("reply"),
           py::arg("loan"))
      .def("add", &QuickHost::Add, py::arg("name"), py::arg("method"));
}

}  // namespace troupe::pyapi
