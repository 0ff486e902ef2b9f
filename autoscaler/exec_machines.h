// Machines of a program of the user's: anything that can be asked for machines.
//
// The program is called once per request (autoscaler/exec_protocol.h) and keeps what it must know
// by itself.
// Thread: one; the program is not waited for.
#pragma once

#include <functional>
#include <map>
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

  // `price_interval`: between two questions for prices; 0: none.
  explicit ExecMachines(ExecCommand command, Run run = nullptr, Duration price_interval = {})
      : command_(std::move(command)), run_(std::move(run)), price_interval_(price_interval) {}

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  std::map<std::string, double> TakePrices() override { return std::exchange(prices_, {}); }
  bool Step(Time now) override;

 private:
  void Ask(std::string_view verb, const std::string& request,
           std::function<void(const Result<std::string>& reply)> answer);

  const ExecCommand command_;
  const Run run_;
  const Duration price_interval_;
  bool listed_ = false;  // Who is there matters more than prices.
  bool pricing_ = false;
  Time price_at_{};
  std::map<std::string, double> prices_;  // Told, and not yet taken.
  std::string price_trouble_;             // As it was logged last.
  CommandPool pool_;
};

}  // namespace troupe
