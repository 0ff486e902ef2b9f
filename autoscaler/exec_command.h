// Programs that are run for one answer each: text in at their standard input, text out at their
// standard output.
//
// Thread: one. Nothing that a program has started and left running is touched if it ends by itself:
// it may have started a node.
// Owns: the programs that run; they are killed, with their process groups, when it is destroyed.
// Limits: kExecReplyBytesMax of what one prints, kExecLogBytesMax of what it logs (the end of it),
// kExecRunningMax at a time, kExecWaitingMax that wait.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "runtime/process.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kExecReplyBytesMax = size_t{8} << 20;
inline constexpr size_t kExecLogBytesMax = 4096;
inline constexpr size_t kExecRunningMax = 16;
inline constexpr size_t kExecWaitingMax = 20'000;

struct ExecCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::string folder;            // Where it runs; empty: here.
  Duration limit = seconds(30);  // Then it is killed, with its process group.
};

struct ExecReply {
  int code = 0;     // 128 and the number if a signal has ended it.
  std::string out;  // Standard output, whole.
  std::string log;  // The end of standard error.
};

// What becomes of it. kNotFound: there is no such program. kDeadlineExceeded: it was killed; its
// log is in the message. kResourceExhausted: it printed too much. kBackpressure: too many wait.
using ExecDone = std::function<void(Result<ExecReply>)>;

// One that was started.
class RunningCommand {
 public:
  static Result<RunningCommand> Start(const ExecCommand& command, std::string_view input);
  // Its answer, if it has ended or was ended now; never waits.
  std::optional<Result<ExecReply>> Step(Time now);
  // Until something happens to it, or `limit`.
  void Await(Duration limit) const;
  void Kill() { (void)child_.Terminate(Duration::zero()); }

 private:
  RunningCommand(std::string name, Duration limit, ChildProcess child);

  std::string name_;
  Duration limit_;
  Time deadline_;
  ChildProcess child_;
  ExecReply reply_;
  bool out_ = true;
  bool log_ = true;
};

// Several at the same time, none of which is waited for.
class CommandPool {
 public:
  ~CommandPool();
  // `done` is called from Step, once.
  void Run(ExecCommand command, std::string input, ExecDone done);
  // Takes up what has ended, and starts what waits. True if there was anything.
  bool Step(Time now);

 private:
  struct Waiting {
    ExecCommand command;
    std::string input;
    ExecDone done;
  };
  struct Running {
    RunningCommand command;
    ExecDone done;
  };
  std::deque<Waiting> waiting_;
  std::list<Running> running_;
};

// One that is waited for.
[[nodiscard]] Result<ExecReply> RunExecCommand(const ExecCommand& command, std::string_view input);

}  // namespace troupe
