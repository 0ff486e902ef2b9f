// What every binding of troupe._core needs: errors as Python exceptions, waits that see signals.
#pragma once

#include <pybind11/pybind11.h>

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::pyapi {

namespace py = pybind11;

// Makes the exception class CoreError of the module; once, before anything is raised.
void MakeCoreError(py::module_& m);
[[noreturn]] void Raise(const Error& error);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status.error());
}
template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.error());
  return std::move(*result);
}

// An option that may be left out. What Python could not give as a T raises.
template <class T>
T Given(const pybind11::dict& options, const char* key, const T& fallback) {
  return options.contains(key) ? options[key].cast<T>() : fallback;
}

// Something was used in a forked child. May be thrown without the GIL; in Python it is a CoreError.
class WrongProcess : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Of what has threads and sockets: they exist in the process that made it, not in one forked from
// that, which must neither use nor destroy it.
class MadeHere {
 public:
  [[nodiscard]] bool here() const { return ::getpid() == pid_; }
  void Check() const;  // Throws WrongProcess.

 private:
  const pid_t pid_ = ::getpid();
};

[[nodiscard]] Duration Seconds(double s);

// The GIL is given up as long as this lives. Once the interpreter ends, another thread than the one
// that ends it never gets it again, and Python would unwind its stack in the middle of C++: such a
// thread stays here instead, until the process is gone.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false);  // It is unwound all the same if the end began this moment.
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Calls `attempt(slice)` without the GIL until `ready(result)` or the limit; between slices signals
// are handled.
template <class F, class Ready>
auto WaitInSlices(double limit_s, F&& attempt, Ready&& ready) {
  constexpr Duration kSlice = milliseconds(100);
  const Time deadline = SteadyClock().Now() + Seconds(limit_s);
  for (;;) {
    const Duration left = std::max(Duration::zero(), deadline - SteadyClock().Now());
    auto result = [&] {
      const WithoutGil released;
      return attempt(std::min(left, kSlice));
    }();
    if (ready(result) || left <= kSlice) return result;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

}  // namespace troupe::pyapi
