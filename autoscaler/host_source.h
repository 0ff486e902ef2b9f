// HostSource: where the hosts of a fleet are told: the cluster file, a file beside it that may
// change, or a program that prints them, asked again and again.
//
// Thread: one; the program is not waited for. Hosts that were told stay until others are: a program
// that fails, or a file that cannot be read, ends nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/host_list.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

struct HostSourceOptions {
  std::vector<std::string> lines;  // Of the cluster file.
  std::string file;                // Or a file.
  ExecCommand discovery;           // Or a program; without arguments: none.
  int default_slots = 1;
  Duration interval = seconds(1);  // Between two looks.
};

class HostSource {
 public:
  using Run = std::function<void(const ExecCommand&, std::string input, ExecDone done)>;

  HostSource(HostSourceOptions options, Run run)
      : options_(std::move(options)), run_(std::move(run)) {}

  // The hosts, if they are others than before.
  [[nodiscard]] std::optional<std::vector<HostSlots>> Step(Time now);
  // How the last look went.
  [[nodiscard]] const Status& status() const { return status_; }
  // Whether any look went well.
  [[nodiscard]] bool told() const { return told_; }

 private:
  void Take(const std::string& text, const std::string& name);
  void TakeReply(const Result<ExecReply>& reply);

  const HostSourceOptions options_;
  const Run run_;
  std::string text_;  // As it was taken last.
  std::optional<std::vector<HostSlots>> fresh_;
  Status status_ = Status::Ok();
  bool told_ = false;
  bool asking_ = false;
  Time look_at_{};
};

}  // namespace troupe
