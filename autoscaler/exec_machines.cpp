#include "autoscaler/exec_machines.h"

#include "autoscaler/exec_protocol.h"

namespace troupe {
namespace {

Result<std::vector<Machine>> MachinesOf(const Result<std::string>& reply, const char* verb) {
  if (!reply.ok()) return reply.error();
  Result<std::vector<Machine>> machines = ParseExecNodes(*reply);
  if (!machines.ok()) return machines.error().WithContext(verb);
  return machines;
}

}  // namespace

void ExecMachines::Ask(std::string_view verb, const std::string& request,
                       std::function<void(const Result<std::string>& reply)> answer) {
  ExecDone done = [name = std::string(verb), answer = std::move(answer)](Result<ExecReply> reply) {
    if (!reply.ok()) return answer(reply.error());
    const Status status = ExecStatus(name, reply->code, reply->log);
    if (!status.ok()) return answer(status.error());
    const Result<std::string> said = std::move(reply->out);
    answer(said);
  };
  if (run_) return run_(command_, request, done);
  pool_.Run(command_, request, std::move(done));
}

void ExecMachines::Create(const MachineOrder& order, Answer done) {
  Ask("create", ExecCreateRequest(order),
      [done = std::move(done)](const Result<std::string>& reply) {
        done(MachinesOf(reply, "create"));
      });
}

void ExecMachines::List(Answer done) {
  Ask("list", ExecRequest("list"), [done = std::move(done)](const Result<std::string>& reply) {
    done(MachinesOf(reply, "list"));
  });
}

void ExecMachines::Terminate(const std::vector<std::string>& ids,
                             std::function<void(Status)> done) {
  Ask("terminate", ExecTerminateRequest(ids),
      [done = std::move(done)](const Result<std::string>& reply) {
        if (!reply.ok()) return done(reply.error());
        const Status status = ParseExecDone(*reply);
        done(status.ok() ? status : Status(status.error().WithContext("terminate")));
      });
}

}  // namespace troupe
