#include "pyapi/actor_requests.h"

#include <utility>

namespace troupe::pyapi {
namespace {

Status Answered(const PyRequestHandle& request, Result<std::string> result,
                std::string exit_reason = "") {
  const WithoutGil released;
  request.get().Answer(std::move(result), std::move(exit_reason));
  return Status::Ok();
}

}  // namespace

void BindRequest(py::module_& m) {
  py::class_<PyRequestHandle>(m, "Request")
      .def_property_readonly("method", &PyRequestHandle::Method)
      .def_property_readonly("group", &PyRequestHandle::Group)
      .def_property_readonly("arguments", &PyRequestHandle::Arguments)
      .def_property_readonly(
          "saves", [](const PyRequestHandle& r) { return r.get().kind == PyRequest::Kind::kSave; })
      .def_property_readonly("key", &PyRequestHandle::key)
      // The process that it comes from; empty: this one.
      .def_property_readonly("caller", [](const PyRequestHandle& r) { return r.get().caller; })
      .def_property_readonly("cancelled", &PyRequestHandle::Cancelled)
      .def_property_readonly("remaining", &PyRequestHandle::Remaining)
      .def("add_child", &PyRequestHandle::AddChild, py::arg("call"))
      .def("cancel_children",
           [](const PyRequestHandle& r) {
             const WithoutGil released;
             r.get().CancelChildren();
           })
      // Its code has been interrupted: no other signal is needed.
      .def("heard", [](const PyRequestHandle& r) { r.get().Heard(); })
      .def("reply", [](const PyRequestHandle& r,
                       const py::bytes& value) { (void)Answered(r, std::string(value)); })
      .def("exit", [](const PyRequestHandle& r, const py::bytes& value,
                      const std::string& reason) { (void)Answered(r, std::string(value), reason); })
      // The actor ends, and this call has no other result.
      .def("leave",
           [](const PyRequestHandle& r, const std::string& reason) {
             (void)Answered(r, Error{ErrorCode::kPeerGone, reason}, reason);
           })
      .def(
          "fail",
          [](const PyRequestHandle& r, const std::string& code, const std::string& message,
             const std::string& type, const std::string& traceback) {
            const ErrorCode known = code == "not_found"           ? ErrorCode::kNotFound
                                    : code == "invalid_argument"  ? ErrorCode::kInvalidArgument
                                    : code == "cancelled"         ? ErrorCode::kCancelled
                                    : code == "peer_gone"         ? ErrorCode::kPeerGone
                                    : code == "deadline_exceeded" ? ErrorCode::kDeadlineExceeded
                                                                  : ErrorCode::kUserError;
            (void)Answered(r, Error{known, message,
                                    std::make_shared<const ErrorOrigin>(
                                        ErrorOrigin{type, "", "", traceback, nullptr})});
          },
          py::arg("code"), py::arg("message"), py::arg("type") = "", py::arg("traceback") = "");
}

}  // namespace troupe::pyapi
