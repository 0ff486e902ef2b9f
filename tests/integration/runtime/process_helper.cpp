// A process for tests of processes. Commands:
//   parent PDEATHSIG       starts a child that waits for ever, prints its pid, waits for ever
//   hold PATH SLOT         takes a death-watch slot, prints "held", lets go at the end of stdin
//   hold-exit PATH SLOT    the same, but ends by _exit at the end of stdin
//   listen DESCRIPTORS     listens on tcp with so many descriptors, prints "ENDPOINT PUBLIC-KEY
//                          SECRET-KEY", answers every frame with itself, for ever
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "runtime/death_watch.h"
#include "runtime/process.h"
#include "runtime/transport.h"

namespace {

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}
void WaitForEndOfInput() {
  for (std::string line; std::getline(std::cin, line);) {
  }
}

int Parent(int signal) {
  troupe::SpawnOptions options;
  options.argv = {"sh", "-c", "echo ready; exec tail -f /dev/null"};
  options.parent_death_signal = signal;
  options.capture_output = true;
  troupe::Result<troupe::ChildProcess> child = troupe::Spawn(options);
  if (!child.ok()) return 1;
  // Its first word means that the wish to die with us has been made.
  pollfd first_word{child->stdout_fd(), POLLIN, 0};
  if (::poll(&first_word, 1, 20'000) != 1) return 1;
  Say(std::to_string(child->pid()));
  ::pause();
  return 0;
}

int Hold(const char* path, uint32_t slot, uint64_t turn, bool orderly) {
  troupe::Result<std::unique_ptr<troupe::DeathWatch>> watch = troupe::DeathWatch::Open(path);
  if (!watch.ok() || !(*watch)->Hold(slot, turn).ok()) return 1;
  Say("held");
  WaitForEndOfInput();
  if (!orderly) ::_exit(0);
  watch->reset();
  Say("let go");
  ::pause();
  return 0;
}

int Listen(rlim_t descriptors) {
  const rlimit limit{descriptors, descriptors};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  const troupe::Result<troupe::CurveKeys> keys = troupe::GenerateCurveKeys();
  troupe::ZmqTransportOptions options;
  options.name = "server";
  if (keys.ok()) options.keys = *keys;
  auto transport = troupe::MakeZmqTransport(options);
  if (!transport.ok()) return 1;
  (*transport)->SetHandler([&](const std::string& from, std::string frame) {
    (void)(*transport)->Send(from, std::move(frame));
  });
  const troupe::Result<troupe::PeerAddress> address = (*transport)->Listen("tcp://127.0.0.1:*");
  if (!address.ok()) return 1;
  Say(address->endpoint + " " + options.keys.public_key + " " + options.keys.secret_key);
  ::pause();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "parent" && argc == 3) return Parent(std::stoi(argv[2]));
  if (command == "hold" && argc == 5)
    return Hold(argv[2], std::stoul(argv[3]), std::stoull(argv[4]), true);
  if (command == "hold-exit" && argc == 5)
    return Hold(argv[2], std::stoul(argv[3]), std::stoull(argv[4]), false);
  if (command == "listen" && argc == 3) return Listen(std::stoul(argv[2]));
  return 2;
}
