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

Result<ExecReply> RunExecCommand(const ExecCommand& command, std::string_view input) {
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
  const SteadyClock clock;
  const Time deadline = clock.Now() + command.limit;
  ExecReply reply;
  bool out = true;
  bool log = true;
  std::optional<ExitInfo> ended;
  while (!ended) {
    const Duration left = deadline - clock.Now();
    if (left <= Duration::zero() || reply.out.size() > kExecReplyBytesMax) break;
    pollfd waiting[] = {{child->pidfd(), POLLIN, 0},
                        {out ? child->stdout_fd() : -1, POLLIN, 0},
                        {log ? child->stderr_fd() : -1, POLLIN, 0}};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    (void)::poll(waiting, 3, static_cast<int>(std::min<int64_t>(ms, 1000)));
    // Its end is looked for first, so that all that it has printed is read after it.
    ended = child->TryReap();
    if (out) out = ReadMore(child->stdout_fd(), reply.out);
    if (log) log = ReadMore(child->stderr_fd(), reply.log);
    KeepEnd(reply.log);
  }
  if (reply.out.size() > kExecReplyBytesMax) {
    child->Terminate(Duration::zero());
    return Error{ErrorCode::kResourceExhausted, name + " printed more than " +
                                                    std::to_string(kExecReplyBytesMax >> 20) +
                                                    " MiB and was ended"};
  }
  if (!ended) {
    child->Terminate(Duration::zero());
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(command.limit).count();
    return Error{ErrorCode::kDeadlineExceeded,
                 name + " did not answer within " + std::to_string(ms) + " ms and was killed" +
                     (reply.log.empty() ? "" : "; it had said: " + reply.log)};
  }
  reply.code = ended->signal != 0 ? 128 + ended->signal : ended->code;
  return reply;
}

}  // namespace troupe
