#include "benchmarks/recovery_member.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "daemons/client/worker_client.h"

namespace troupe::benchmarks {
namespace {

Page* MapPage() {
  const int fd = ::open(std::getenv("TROUPE_BENCH_PAGE"), O_RDWR | O_CLOEXEC);
  void* memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<Page*>(memory);
}

}  // namespace

int RunMember() {
  auto client = daemons::WorkerClient::FromEnvironment();
  if (!client.ok()) {
    std::cerr << client.error().ToString() << "\n";
    return 1;
  }
  daemons::WorkerClient& worker = **client;
  Page* page = MapPage();
  std::optional<Assignment> assignment;
  while (!assignment) {
    if (worker.released()) return 0;
    assignment = worker.WaitAssignment(seconds(1));
  }
  const size_t floats = std::strtoull(std::getenv("TROUPE_BENCH_FLOATS"), nullptr, 10);
  const size_t heap_bytes = std::strtoull(std::getenv("TROUPE_BENCH_HEAP"), nullptr, 10);
  std::vector<char> heap(heap_bytes,
                         1);  // Dirty pages that the kernel must tear down after a kill.
  groups::GroupAgent& group = *worker.group();
  std::vector<float> data(floats);
  uint64_t version = 0;
  const SteadyClock clock;
  while (!page->stop.load()) {
    group.Ready(version, version > 0);
    Result<groups::ActiveView> view = group.WaitActive(seconds(60));
    if (!view.ok()) {
      if (view.error().code == ErrorCode::kDrained) worker.Finish(true, "", seconds(10));
      return 0;
    }
    const groups::Topology& t = view->topology;
    EpochMarks& marks = page->epochs[view->view.epoch % kEpochsKept];
    const auto reduce = [&](float* values, size_t count) {
      std::fill_n(values, count, 1.0F);
      groups::ReduceArguments arguments;
      arguments.count = count;
      const auto handle = group.AllReduce({}, {{values, count * sizeof(float)}},
                                          {{values, count * sizeof(float)}}, arguments);
      return group.Wait(handle, seconds(60)).ok();
    };
    float one = 0;
    if (!reduce(&one, 1)) continue;
    marks.size.store(t.size);
    marks.pause_ns[t.rank].store(view->pause.count() + 1);
    marks.first_ns[t.rank].store(clock.Now().ns);
    bool first = true;
    for (;;) {
      if (!reduce(data.data(), data.size())) break;
      if (first) {
        marks.whole_ns[t.rank].store(clock.Now().ns);
        page->newest_epoch.store(view->view.epoch);
        first = false;
      }
      if (one != static_cast<float>(t.size) || data.front() != static_cast<float>(t.size) ||
          data.back() != static_cast<float>(t.size))
        ++page->wrong_sums;
      group.SetVersion(++version);
      Result<bool> stop = group.Boundary();
      if (!stop.ok() || *stop || page->stop.load()) break;
    }
  }
  worker.Finish(true, "done", seconds(10));
  return 0;
}

}  // namespace troupe::benchmarks
