// Machines that are jobs of Slurm, one for each, by its own commands: sbatch, squeue and scancel.
//
// A job's comment has its tags, so that one whose submission was not answered for is found in the
// queue. Jobs are not requeued: the autoscaler asks for another one, with a join token of its own.
// One that Slurm takes back is so replaced at once. The time limit of a job is a notice.
// Thread: one; the commands are not waited for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autoscaler/exec_command.h"
#include "autoscaler/machine_source.h"
#include "runtime/clock.h"

namespace troupe {

struct SlurmOptions {
  std::vector<std::string> options;                          // Of sbatch.
  std::map<std::string, std::vector<std::string>> of_offer;  // Further ones.
  std::string folder;                                        // Where jobs begin, and leave output.
  Duration limit = seconds(30);                              // Of one command.
  Duration notice = seconds(120);                            // Before the end of a job's time.
};

class SlurmMachines final : public MachineSource {
 public:
  // Instead of running them; `done` may be called at once.
  using Run = std::function<void(const ExecCommand&, std::string input, ExecDone done)>;

  explicit SlurmMachines(SlurmOptions options, Run run = nullptr)
      : options_(std::move(options)), run_(std::move(run)) {}

  void Create(const MachineOrder& order, Answer done) override;
  void List(Answer done) override;
  void Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) override;
  bool Step(Time now) override { return pool_.Step(now); }

 private:
  void Ask(std::vector<std::string> argv, std::string input, ExecDone done);

  const SlurmOptions options_;
  const Run run_;
  CommandPool pool_;
};

// Jobs that carry tags of ours, of what squeue has printed for kSlurmFormat. A job that has less
// time left than `notice` is said to be preempted then.
[[nodiscard]] Result<std::vector<Machine>> ParseSlurmQueue(std::string_view text, Duration notice);
// "1-02:03:04", "02:03:04", "03:04"; nothing for what is no time, such as UNLIMITED.
[[nodiscard]] std::optional<double> ParseSlurmTime(std::string_view text);
// Why a command of Slurm has failed, by its exit status and what it has said.
[[nodiscard]] Error SlurmError(const std::string& command, const ExecReply& reply);

}  // namespace troupe
