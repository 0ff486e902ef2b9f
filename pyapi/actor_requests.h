// Calls that wait for a thread of Python, as Python sees them.
// Thread: any that holds the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "pyapi/actor_instance.h"
#include "pyapi/python_support.h"

namespace troupe::pyapi {

class PyRequestHandle {
 public:
  explicit PyRequestHandle(std::shared_ptr<PyRequest> request) : request_(std::move(request)) {}
  [[nodiscard]] PyRequest& get() const { return *request_; }
  [[nodiscard]] bool Cancelled() const { return request_->call && request_->call->cancelled(); }
  [[nodiscard]] bool Late() const {
    return request_->deadline != Time::Never() && request_->deadline <= SteadyClock().Now();
  }
  [[nodiscard]] py::object Remaining() const {
    if (request_->deadline == Time::Never()) return py::none();
    return py::float_(ToSeconds(request_->deadline - SteadyClock().Now()));
  }
  // A caller names what it calls "GROUP:METHOD", or "METHOD" for the group that the method is of.
  [[nodiscard]] py::object Method() {
    if (!method_) method_ = py::str(request_->method.substr(request_->method.find(kGroupEnd) + 1));
    return method_;
  }
  [[nodiscard]] std::string Group() const {
    const size_t end = request_->method.find(kGroupEnd);
    return end == std::string::npos ? "" : request_->method.substr(0, end);
  }
  // Copied once, however often they are asked for.
  [[nodiscard]] py::object Arguments() {
    if (!arguments_) arguments_ = py::bytes(std::exchange(request_->arguments, std::string()));
    return arguments_;
  }
  // The call `child` goes with it if it is cancelled.
  void AddChild(const PyCall& child) const { request_->children.Add(child); }
  [[nodiscard]] uintptr_t key() const { return reinterpret_cast<uintptr_t>(request_.get()); }

 private:
  static constexpr char kGroupEnd = ':';

  const std::shared_ptr<PyRequest> request_;
  py::object arguments_;
  py::object method_;
};

void BindRequest(py::module_& m);

}  // namespace troupe::pyapi
