// troupe-guard [--spare] PROGRAM ARG...: between a node and one worker. When the worker ends, or
// the node, however that comes, it ends whatever the worker has started, then itself like the
// worker. `troupe-guard --adopt PID FD` has the worker already: a fork server has made both (see
// runtime/fork_server.h), and FD leads to the worker's stdin.
//
// It is a child subreaper: forks, sessions and double forks of the worker do not escape it. Its
// stdin is a socket of the node (see GuardedProcess): it tells the worker's pid there, takes
// signals for the worker, and reads the node's end from its close. What comes there for a spare is
// written to the spare's stdin, once.
// It includes nothing but libc, runtime/descendants.cpp and runtime/guarded_child.cpp: there is one
// per worker.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/descendants.h"
#include "runtime/guarded_child.h"

namespace {

constexpr troupe::Duration kEndLimit = troupe::seconds(5);
constexpr int kNode = 0;
constexpr int kNoProgram = 127;
constexpr const char* kSpareFlag = "--spare";
constexpr const char* kAdoptFlag = "--adopt";
constexpr size_t kWorkBytesMax = 1 << 15;  // A pipe takes them at once.

[[noreturn]] void RunWorker(char** argv, int guard, int input) {
  std::signal(SIGPIPE, SIG_DFL);
  if (!troupe::PrepareWorker(guard, input)) ::_exit(kNoProgram);
  ::execvp(argv[0], argv);
  std::fprintf(stderr, "cannot start %s: %s\n", argv[0], std::strerror(errno));
  std::fflush(stderr);
  ::_exit(kNoProgram);
}

bool HasEnded(int worker) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(worker), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == worker;
}

int Number(const char* text) {
  int number = -1;
  (void)std::from_chars(text, text + std::strlen(text), number);
  return number;
}

// The worker is not reaped yet, so the numbers are still its own.
void Signal(int worker, int signal) {
  (void)::kill(worker, signal);
  (void)::kill(-worker, signal);
}

// Orphans that ended while the worker lives.
void Reap(int worker) {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         info.si_pid != worker) {
    (void)::waitpid(info.si_pid, nullptr, WNOHANG);
    info.si_pid = 0;
  }
}

// One byte is a signal, more are what a spare waits for at the other end of `input`.
void Pass(int worker, int& input, const char* bytes, size_t count) {
  if (count == 1) return Signal(worker, static_cast<unsigned char>(bytes[0]));
  if (input < 0) return;
  (void)!::write(input, bytes, count);
  ::close(input);
  input = -1;
}

// Until the worker has ended, or the node.
void Watch(int worker, int signals, int input) {
  while (!HasEnded(worker)) {
    Reap(worker);
    pollfd items[2] = {{signals, POLLIN, 0}, {kNode, POLLIN, 0}};
    (void)::poll(items, 2, -1);
    if ((items[0].revents & POLLIN) != 0) {
      signalfd_siginfo info{};
      if (::read(signals, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD)
        Signal(worker, static_cast<int>(info.ssi_signo));
    }
    if (items[1].revents == 0) continue;
    static char bytes[kWorkBytesMax];
    const ssize_t got = ::recv(kNode, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) Pass(worker, input, bytes, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
  }
}

int EndLike(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  const int signal = WTERMSIG(status);
  (void)::prctl(PR_SET_DUMPABLE, 0);
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  (void)::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  (void)::raise(signal);
  return 128 + signal;
}

// Returns the worker's pid, or -1. `input` is then the write end of a spare's stdin, else -1.
int Start(char** program, bool spare, int& input) {
  int ends[2] = {-1, -1};
  if (spare && ::pipe2(ends, O_CLOEXEC) != 0) return -1;
  const int self = ::getpid();
  const int worker = ::fork();
  if (worker == 0) RunWorker(program, self, ends[0]);
  if (spare) ::close(ends[0]);
  input = ends[1];
  return worker;
}

}  // namespace

int main(int argc, char** argv) {
  const auto first = [&](const char* flag) { return argc > 1 && std::strcmp(argv[1], flag) == 0; };
  const bool spare = first(kSpareFlag);
  const bool adopts = first(kAdoptFlag);
  if (argc < (adopts ? 4 : spare ? 3 : 2)) {
    std::fputs("troupe-guard is started by troupe-node\n", stderr);
    return 2;
  }
  troupe::PrepareGuard();
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  (void)::sigprocmask(SIG_BLOCK, nullptr, &set);
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  int input = -1;
  int worker = -1;
  if (adopts) {
    worker = Number(argv[2]);
    input = Number(argv[3]);
  } else if (signals >= 0) {
    worker = Start(argv + (spare ? 2 : 1), spare, input);
  }
  if (worker < 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", argv[spare ? 2 : 1], std::strerror(errno));
    return kNoProgram;
  }
  (void)::send(kNode, &worker, sizeof worker, MSG_NOSIGNAL);
  Watch(worker, signals, input);
  int status = SIGKILL;  // As wait(2) gives it, if the node is gone.
  if (HasEnded(worker)) {
    Signal(worker, SIGKILL);  // Its group, before the number is free.
    (void)::waitpid(worker, &status, 0);
  }
  (void)troupe::EndDescendants(kEndLimit);
  return EndLike(status);
}
