#include "autoscaler/exec_machines.h"

#include "autoscaler/exec_protocol.h"
#include "runtime/log.h"

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
  Ask("list", ExecRequest("list"),
      [this, done = std::move(done)](const Result<std::string>& reply) {
        listed_ = true;
        done(MachinesOf(reply, "list"));
      });
}

// Without an answer the prices stay as they are.
bool ExecMachines::Step(Time now) {
  if (price_interval_ > Duration::zero() && listed_ && !pricing_ && now >= price_at_) {
    price_at_ = now + price_interval_;
    pricing_ = true;
    Ask("price", ExecRequest("price"), [this](const Result<std::string>& reply) {
      pricing_ = false;
      const Result<std::map<std::string, double>> prices =
          reply.ok() ? ParseExecPrices(*reply) : reply.error();
      if (prices.ok()) {
        for (const auto& [offer, price] : *prices) prices_[offer] = price;
      } else if (std::exchange(price_trouble_, prices.error().message) != prices.error().message) {
        LogWarning("prices stay as they were: ", prices.error().message);
      }
    });
  }
  return pool_.Step(now);
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
