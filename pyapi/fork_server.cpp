#include "pyapi/fork_server.h"

#include <string>

#include "runtime/fork_server.h"

namespace troupe::pyapi {

namespace py = pybind11;

namespace {

std::string Serve(int socket) {
  switch (ServeFork(socket, {&PyOS_BeforeFork, &PyOS_AfterFork_Parent, &PyOS_AfterFork_Child})) {
    case Forked::kParent:
      return "parent";
    case Forked::kChild:
      return "child";
    case Forked::kNodeGone:
      return "gone";
    case Forked::kUnfit:
      break;
  }
  return "unfit";
}

}  // namespace

void BindForkServer(py::module_& module) {
  module.def("serve_fork", &Serve, py::arg("socket"),
             "Waits for an order to fork and carries it out: 'parent' or 'child', as which this "
             "process goes on; 'gone': the node has ended; 'unfit': this process has threads.");
  module.def("may_fork", &MayFork, "Whether no other thread of this process is left at a fork.");
  module.attr("FORKS_READY") = py::bytes(std::string(1, kForksReady));
  module.attr("FORKS_NOTHING") = kForksNothing;
}

}  // namespace troupe::pyapi
