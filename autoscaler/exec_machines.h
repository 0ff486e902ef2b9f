// Machines of a program of the user's: anything that can be asked for machines.
//
// The program is called once per request (autoscaler/exec_protocol.h) and keeps what it must know
// by itself.
// Thread: one; the program is not waited for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/machine_source.h"

namespace troupe {

class ExecMachines final : public MachineSource {
 public:
  // Instead of running it; `done` may be called at once.
  using Run = std::function<void(const ExecCommand&, std::string input, ExecDone done)>;

  explicit ExecMachines(ExecCommand command, Run run = nullptr)
      : command_(std::move(command)), run_(std::move(run)) {}

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  bool Step(Time now) override { return pool_.Step(now); }

 private:
  void Ask(std::string_view verb, const std::string& request,
           std::function<void(const Result<std::string>& reply)> answer);

  const ExecCommand command_;
  const Run run_;
  CommandPool pool_;
};

}  // namespace troupe
