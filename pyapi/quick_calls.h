// Quick calls: what most calls of Python are, a few small plain values and a result that is one,
// done here from end to end, where each step of Python would cost as much as the call.
//
// What is not quick is left to Python, which does the same for all values: nothing is quick that
// Python would do otherwise.
// Thread: any that holds the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "actors/host/cpu_loan.h"
#include "pyapi/actor_calls.h"
#include "pyapi/actor_requests.h"

namespace troupe::pyapi {

// Answers quick calls of an actor that runs one call after the other.
class QuickHost {
 public:
  // `running`: the context variable of the call that runs, which is set to `begin(request)`. What
  // a method raises goes to `raised(request, error)`, a result that is not plain to
  // `reply(request, value, owner)`. `loan`: may be null.
  QuickHost(py::object running, py::object begin, py::object raised, py::object reply,
            std::shared_ptr<actors::CpuLoan> loan);
  // `method` takes its calls from now on; it is a plain function, of one result.
  void Add(const py::str& name, const py::object& method) { methods_[name] = method; }

  enum class Done : uint8_t {
    kNo,        // It is not quick, and as it was.
    kAnswered,  // By what this has done alone.
    kByPython,  // `raised` or `reply` has seen to it, and may have ended the actor.
  };
  [[nodiscard]] Done Answer(const py::object& request);

 private:
  struct Arguments {
    py::object args, kwargs, owner;
  };
  class Begun;
  [[nodiscard]] std::optional<Arguments> Read(PyRequestHandle& request) const;

  const py::object running_, begin_, raised_, reply_;
  const std::shared_ptr<actors::CpuLoan> loan_;
  const MadeHere made_here_;
  py::dict methods_;
};

void BindQuickCalls(py::module_& m);

}  // namespace troupe::pyapi
