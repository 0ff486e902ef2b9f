#include "benchmarks/world.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime/clock.h"

namespace troupe::benchmarks {

using groups::Communicator;
using groups::CommunicatorOptions;
using groups::View;
using groups::ViewMember;

void World::Meet() {
  const int generation = page_->generation.load();
  if (page_->arrived.fetch_add(1) + 1 == size_) {
    page_->arrived.store(0);
    page_->generation.fetch_add(1);
    return;
  }
  for (int i = 0; page_->generation.load() == generation; ++i) {
    if (page_->failed.load() != 0) ::_exit(1);
    if (i > 1000) ::sched_yield();
  }
}

void World::Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "rank %d: %s\n", rank_, status.error().message.c_str());
  page_->failed.store(1);
  ::_exit(1);
}

std::unique_ptr<Communicator> World::Join(Kind kind, const std::string& address) {
  CommunicatorOptions options;
  options.gloo.bind_address = address;
  options.host = kind == kMemory ? "bench" : "";
  auto made = MakeCommunicator(options);
  Require(made.ok() ? Status::Ok() : Status(made.error()));
  std::unique_ptr<Communicator> communicator = std::move(*made);
  View view;
  view.group = "bench";
  view.epoch = 1;
  for (int peer = 0; peer < size_; ++peer) {
    ViewMember member;
    member.id = {"m" + std::to_string(peer), 1};
    member.slot = static_cast<uint32_t>(peer);
    member.memory = communicator->memory();
    view.members.push_back(member);
    if (peer == rank_) continue;
    const auto offer =
        communicator->Offer(static_cast<uint32_t>(rank_), member.slot, member.memory);
    Require(offer.ok() ? Status::Ok() : Status(offer.error()));
    auto& box = page_->addresses[kind][rank_][peer];
    std::memcpy(box.text, offer->data(), offer->size());
    box.bytes.store(static_cast<int>(offer->size()));
  }
  Meet();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto& box = page_->addresses[kind][peer][rank_];
    const std::string theirs(box.text, static_cast<size_t>(box.bytes.load()));
    Require(communicator->Link(static_cast<uint32_t>(peer), theirs));
  }
  Require(communicator->Begin(view, rank_, {}));
  Meet();
  return communicator;
}

double World::Time(const std::function<void()>& body) {
  Meet();
  const SteadyClock clock;
  const troupe::Time begin = clock.Now();
  body();
  page_->done_ns[rank_].store(clock.Now().ns);
  Meet();
  int64_t last = 0;
  for (int i = 0; i < size_; ++i) last = std::max(last, page_->done_ns[i].load());
  return static_cast<double>(last - begin.ns) / 1e3;
}

void* SharedMemory(size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
}

int RunWorld(int size, const std::function<void(World&)>& member) {
  std::signal(SIGPIPE, SIG_IGN);
  auto* page = static_cast<WorldPage*>(SharedMemory(sizeof(WorldPage)));
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      World world(page, rank, size);
      member(world);
      ::_exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status == 0) continue;
    page->failed.store(1);
    failed = 1;
  }
  return failed;
}

}  // namespace troupe::benchmarks
