#include "autoscaler/exec_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/process.h"

namespace troupe {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  const int fd_;
};

// A file with `text`, to be read from its beginning; -1 if there can be none.
int FileOf(std::string_view text) {
  const int fd = ::memfd_create("troupe-request", MFD_CLOEXEC);
  while (fd >= 0 && !text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      ::close(fd);
      return -1;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (fd >= 0) ::lseek(fd, 0, SEEK_SET);
  return fd;
}

// What is there now. False: nothing will come any more.
bool ReadMore(int fd, std::string& to) {
  char part[65536];
  for (;;) {
    const ssize_t bytes = ::read(fd, part, sizeof part);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return errno == EAGAIN;
    if (bytes == 0) return false;
    to.append(part, static_cast<size_t>(bytes));
    if (to.size() > kExecReplyBytesMax) return true;
  }
}

void KeepEnd(std::string& log) {
  if (log.size() > kExecLogBytesMax) log.erase(0, log.size() - kExecLogBytesMax);
}

}  // namespace

RunningCommand::RunningCommand(std::string name, Duration limit, ChildProcess child)
    : name_(std::move(name)),
      limit_(limit),
      deadline_(SteadyClock().Now() + limit),
      child_(std::move(child)) {}

Result<RunningCommand> RunningCommand::Start(const ExecCommand& command, std::string_view input) {
  if (command.argv.empty()) return Error{ErrorCode::kInvalidArgument, "no program is given"};
  const std::string& name = command.argv.front();
  const Descriptor request(FileOf(input));
  if (request.get() < 0)
    return Error{ErrorCode::kResourceExhausted,
                 "no memory for a request to " + name + ": " + std::strerror(errno)};
  SpawnOptions spawn;
  if (!command.folder.empty()) spawn.argv = {"env", "--chdir=" + command.folder};
  spawn.argv.insert(spawn.argv.end(), command.argv.begin(), command.argv.end());
  spawn.env = command.env;
  spawn.capture_output = true;
  spawn.stdin_fd = request.get();
  Result<ChildProcess> child = Spawn(spawn);
  if (!child.ok()) return Error{ErrorCode::kNotFound, name + ": " + child.error().message};
  return RunningCommand(name, command.limit, std::move(*child));
}

std::optional<Result<ExecReply>> RunningCommand::Step(Time now) {
  // Its end is looked for first, so that all that it has printed is read after it.
  const std::optional<ExitInfo> ended = child_.TryReap();
  if (out_) out_ = ReadMore(child_.stdout_fd(), reply_.out);
  if (log_) log_ = ReadMore(child_.stderr_fd(), reply_.log);
  KeepEnd(reply_.log);
  if (reply_.out.size() > kExecReplyBytesMax) {
    child_.Terminate(Duration::zero());
    return Error{ErrorCode::kResourceExhausted, name_ + " printed more than " +
                                                    std::to_string(kExecReplyBytesMax >> 20) +
                                                    " MiB and was ended"};
  }
  if (ended) {
    reply_.code = ended->signal != 0 ? 128 + ended->signal : ended->code;
    return std::move(reply_);
  }
  if (now < deadline_) return std::nullopt;
  child_.Terminate(Duration::zero());
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count();
  return Error{ErrorCode::kDeadlineExceeded,
               name_ + " did not answer within " + std::to_string(ms) + " ms and was killed" +
                   (reply_.log.empty() ? "" : "; it had said: " + reply_.log)};
}

void RunningCommand::Await(Duration limit) const {
  pollfd waiting[] = {{child_.pidfd(), POLLIN, 0},
                      {out_ ? child_.stdout_fd() : -1, POLLIN, 0},
                      {log_ ? child_.stderr_fd() : -1, POLLIN, 0}};
  const Duration left = std::min(limit, deadline_ - SteadyClock().Now());
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  (void)::poll(waiting, 3, static_cast<int>(std::clamp<int64_t>(ms, 0, 1000)));
}

CommandPool::~CommandPool() {
  for (Running& running : running_) running.command.Kill();
}

void CommandPool::Run(ExecCommand command, std::string input, ExecDone done) {
  waiting_.push_back({std::move(command), std::move(input), std::move(done)});
}

bool CommandPool::Step(Time now) {
  bool moved = false;
  for (auto it = running_.begin(); it != running_.end();) {
    std::optional<Result<ExecReply>> answer = it->command.Step(now);
    if (!answer) {
      ++it;
      continue;
    }
    const ExecDone done = std::move(it->done);
    it = running_.erase(it);
    moved = true;
    done(std::move(*answer));  // It may have more to run.
  }
  while (!waiting_.empty() &&
         (running_.size() < kExecRunningMax || waiting_.size() > kExecWaitingMax)) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    moved = true;
    if (running_.size() >= kExecRunningMax) {
      next.done(Error{ErrorCode::kBackpressure,
                      "too many requests wait for " + next.command.argv.front() + " to answer"});
      continue;
    }
    Result<RunningCommand> started = RunningCommand::Start(next.command, next.input);
    if (!started.ok()) {
      next.done(started.error());
    } else {
      running_.push_back({std::move(*started), next.done});
    }
  }
  return moved;
}

Result<ExecReply> RunExecCommand(const ExecCommand& command, std::string_view input) {
  Result<RunningCommand> running = RunningCommand::Start(command, input);
  if (!running.ok()) return running.error();
  for (;;) {
    running->Await(seconds(1));
    if (std::optional<Result<ExecReply>> answer = running->Step(SteadyClock().Now()))
      return std::move(*answer);
  }
}

}  // namespace troupe
