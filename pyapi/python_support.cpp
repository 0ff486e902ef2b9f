#include "pyapi/python_support.h"

#include <string>
#include <thread>

namespace troupe::pyapi {
namespace {

py::object core_error;  // The exception class; set once when the module is made, never freed.

constexpr int kLingerS = 60;  // The process is long gone by then, or somebody else ends Python.

bool InterpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

// NOLINTNEXTLINE(bugprone-unsafe-to-allow-exceptions): glibc unwinds a thread that it ends.
WithoutGil::~WithoutGil() noexcept(false) {
  for (int s = 0; s < kLingerS && InterpreterEnds(); ++s) {
    if (::gettid() == ::getpid()) break;  // The main thread ends it.
    std::this_thread::sleep_for(seconds(1));
  }
  PyEval_RestoreThread(state_);
}

void MakeCoreError(py::module_& m) {
  // Leaked on purpose: destroying it at interpreter exit would need the GIL at a time when there is
  // none.
  core_error = py::reinterpret_borrow<py::object>(
      PyErr_NewException("troupe._core.CoreError", PyExc_RuntimeError, nullptr));
  m.attr("CoreError") = core_error;
  core_error.inc_ref();
  // pybind11 takes no other signature. NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const WrongProcess& wrong) {
      py::object instance = core_error(wrong.what());
      instance.attr("code") = std::string(ErrorCodeName(ErrorCode::kPermissionDenied));
      instance.attr("message") = std::string(wrong.what());
      PyErr_SetObject(core_error.ptr(), instance.ptr());
    }
  });
}

void MadeHere::Check() const {
  if (here()) return;
  throw WrongProcess("this belongs to process " + std::to_string(pid_) +
                     " and cannot be used in process " + std::to_string(::getpid()) +
                     ", which was forked from it");
}

void Raise(const Error& error) {
  py::object instance = core_error(error.message);
  instance.attr("code") = std::string(ErrorCodeName(error.code));
  instance.attr("message") = error.message;
  if (error.origin) {
    instance.attr("exc_type") = error.origin->type;
    instance.attr("actor") = error.origin->actor;
    instance.attr("node") = error.origin->node;
    instance.attr("remote_traceback") = error.origin->traceback;
  }
  PyErr_SetObject(core_error.ptr(), instance.ptr());
  throw py::error_already_set();
}

Duration Seconds(double s) {
  return s > 1e9 ? Duration(int64_t{1'000'000'000} * 1'000'000'000)
                 : Duration(static_cast<int64_t>(std::max(0.0, s) * 1e9));
}

}  // namespace troupe::pyapi
