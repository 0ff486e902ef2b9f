// All-reduce of float32 between processes of one host: Troupe's communicator through shared memory
// and over its links, raw Gloo (ring and halving-doubling), and the least that shared memory needs
// (inputs that lie there, one shared result), all interleaved in one run.
//
// Every round all processes meet at a barrier in shared memory and then reduce once; the figure is
// the time until the last one is through. Sums are checked. Prints one JSON line per way and size.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "collective_groups/communicator.h"

namespace {

using namespace troupe;
using namespace troupe::groups;

constexpr int kMembersMax = 16;
constexpr size_t kAddressMax = 200;

struct Page {
  std::atomic<int> arrived;
  std::atomic<int> generation;
  std::atomic<int> failed;
  std::atomic<int64_t> done_ns[kMembersMax];
  struct {
    std::atomic<int> bytes;
    char text[kAddressMax];
  } addresses[2][kMembersMax][kMembersMax];  // By kind of link, from, to.
};

struct Settings {
  int members = 2;
  double seconds = 0.5;  // Per way and size.
  std::vector<size_t> sizes = {1024, 4096, 65536, 1 << 20, 16 << 20, 102236160};
};

void Meet(Page* page, int n) {
  const int generation = page->generation.load();
  if (page->arrived.fetch_add(1) + 1 == n) {
    page->arrived.store(0);
    page->generation.fetch_add(1);
    return;
  }
  for (int i = 0; page->generation.load() == generation; ++i) {
    if (page->failed.load() != 0) ::_exit(1);
    if (i > 1000) ::sched_yield();
  }
}

void Require(Page* page, const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  page->failed.store(1);
  ::_exit(1);
}

std::unique_ptr<Communicator> Join(Page* page, int kind, int rank, int n) {
  const std::string host = kind == 0 ? "bench" : "";
  std::unique_ptr<Communicator> communicator = MakeCommunicator({{}, host}).value();
  View view;
  view.group = "bench";
  view.epoch = 1;
  for (int peer = 0; peer < n; ++peer) {
    ViewMember member;
    member.id = {"m" + std::to_string(peer), 1};
    member.slot = static_cast<uint32_t>(peer);
    member.memory = communicator->memory();
    view.members.push_back(member);
    if (peer == rank) continue;
    const auto offer = communicator->Offer(static_cast<uint32_t>(rank), member.slot, member.memory);
    auto& box = page->addresses[kind][rank][peer];
    std::memcpy(box.text, offer.value().data(), offer.value().size());
    box.bytes.store(static_cast<int>(offer.value().size()));
  }
  Meet(page, n);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == rank) continue;
    const auto& box = page->addresses[kind][peer][rank];
    const std::string address(box.text, static_cast<size_t>(box.bytes.load()));
    Require(page, communicator->Link(static_cast<uint32_t>(peer), address));
  }
  Require(page, communicator->Begin(view, rank, {}));
  Meet(page, n);
  return communicator;
}

class Member {
 public:
  Member(Page* page, char* shared, const Settings& settings, const std::string& folder, int rank)
      : page_(page), shared_(shared), settings_(settings), rank_(rank), n_(settings.members) {
    memory_ = Join(page, 0, rank, n_);
    links_ = Join(page, 1, rank, n_);
    gloo::rendezvous::FileStore store(folder);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, n_);
    context->connectFullMesh(store, device);
    gloo_ = context;
    Meet(page_, n_);
    if (rank_ == 0) std::filesystem::remove_all(folder);
  }

  void Run() {
    const size_t largest = *std::max_element(settings_.sizes.begin(), settings_.sizes.end());
    in_.assign(largest / sizeof(float), static_cast<float>(rank_ + 1));
    out_.resize(in_.size());
    static constexpr const char* kWays[] = {"memory", "links", "gloo_ring", "gloo_halving_doubling",
                                            "limit"};
    for (const size_t bytes : settings_.sizes) {
      std::vector<double> times[5];
      for (auto& cpu : cpu_us_) cpu.clear();
      // Equal numbers of rounds on all ranks, from rank 0's clock of the slowest way.
      const int rounds = Rounds(bytes);
      for (int round = 0; round < rounds + 2; ++round) {
        for (int way = 0; way < 5; ++way) {
          const double us = Once(way, bytes / sizeof(float));
          if (round >= 2) times[way].push_back(us);
        }
      }
      for (int way = 0; way < 5 && rank_ == 0; ++way)
        Print(kWays[way], bytes, times[way], cpu_us_[way]);
    }
  }

 private:
  int Rounds(size_t bytes) const {
    const double estimate = 2e-4 + static_cast<double>(bytes) * n_ / 0.4e9;
    return std::clamp(static_cast<int>(settings_.seconds / estimate), 5, 1000);
  }

  double Once(int way, size_t count) {
    Meet(page_, n_);
    const SteadyClock clock;
    const Time begin = clock.Now();
    const double cpu = CpuMicros();
    Reduce(way, count);
    cpu_us_[way].push_back(CpuMicros() - cpu);
    page_->done_ns[rank_].store(clock.Now().ns);
    const float* result = way == 4 ? reinterpret_cast<float*>(shared_) : out_.data();
    const auto expected = static_cast<float>(n_ * (n_ + 1)) / 2;
    const bool right = result[0] == expected && result[count - 1] == expected;
    if (!right) Require(page_, Error{ErrorCode::kInternal, "a wrong sum"});
    Meet(page_, n_);
    int64_t last = 0;
    for (int i = 0; i < n_; ++i) last = std::max(last, page_->done_ns[i].load());
    return static_cast<double>(last - begin.ns) / 1e3;
  }

  void Reduce(int way, size_t count) {
    const size_t bytes = count * sizeof(float);
    if (way <= 1) {
      ReduceArguments arguments;
      arguments.count = count;
      const ConstBuffer in{in_.data(), bytes};
      const MutableBuffer out{out_.data(), bytes};
      const Operation operation{0, count, "bench"};
      Communicator& communicator = way == 0 ? *memory_ : *links_;
      Require(page_, communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments));
    } else if (way <= 3) {
      std::memcpy(out_.data(), in_.data(), bytes);
      gloo::AllreduceOptions options(gloo_);
      options.setOutput(out_.data(), count);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      options.setAlgorithm(way == 2 ? gloo::AllreduceOptions::Algorithm::RING
                                    : gloo::AllreduceOptions::Algorithm::BCUBE);
      options.setTag(static_cast<uint32_t>(++tag_));
      gloo::allreduce(options);
    } else {
      Limit(count);
    }
  }

  // Inputs lie in shared memory behind the result; each rank adds up its part.
  void Limit(size_t count) {
    const size_t width = in_.size();
    auto* result = reinterpret_cast<float*>(shared_);
    float* mine = result + (static_cast<size_t>(rank_) + 1) * width;
    if (mine[0] == 0) std::fill_n(mine, width, static_cast<float>(rank_ + 1));
    Meet(page_, n_);
    const size_t begin = count * static_cast<size_t>(rank_) / static_cast<size_t>(n_);
    const size_t end = count * static_cast<size_t>(rank_ + 1) / static_cast<size_t>(n_);
    std::vector<const void*> inputs;
    for (int i = 1; i <= n_; ++i) inputs.push_back(result + static_cast<size_t>(i) * width + begin);
    GetReduceManyFunction(DataType::kFloat32, ReduceOp::kSum)(result + begin, inputs.data(),
                                                              inputs.size(), end - begin);
    Meet(page_, n_);
  }

  static double CpuMicros() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
  }

  void Print(const char* way, size_t bytes, std::vector<double>& us,
             std::vector<double>& cpu_us) const {
    std::sort(us.begin(), us.end());
    std::sort(cpu_us.begin(), cpu_us.end());
    std::printf(
        "{\"bench\": \"all_reduce\", \"way\": \"%s\", \"n\": %d, \"bytes\": %zu, \"min\": %.1f, "
        "\"p50\": "
        "%.1f, \"p99\": %.1f, \"max\": %.1f, \"unit\": \"us\", \"rounds\": %zu, "
        "\"cpu_us\": %.1f, \"gb_per_s\": %.3f}\n",
        way, n_, bytes, us[0], us[us.size() / 2], us[us.size() * 99 / 100], us.back(), us.size(),
        cpu_us[cpu_us.size() / 2], static_cast<double>(bytes) / us[us.size() / 2] / 1e3);
    std::fflush(stdout);
  }

  Page* const page_;
  char* const shared_;
  const Settings& settings_;
  const int rank_;
  const int n_;
  std::unique_ptr<Communicator> memory_;
  std::unique_ptr<Communicator> links_;
  std::shared_ptr<gloo::Context> gloo_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::vector<double> cpu_us_[5];  // Of this process, per operation.
  int tag_ = 0;
};

template <class T>
T* Shared(size_t bytes) {
  return static_cast<T*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("All-reduce between processes of one host, next to raw Gloo and to a bare minimum");
  app.add_option("-n,--members", settings.members)->check(CLI::Range(2, kMembersMax));
  app.add_option("--seconds", settings.seconds, "per way and size");
  app.add_option("--sizes", settings.sizes, "bytes")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  auto* page = Shared<Page>(sizeof(Page));
  const size_t largest = *std::max_element(settings.sizes.begin(), settings.sizes.end());
  char* shared = Shared<char>(largest * (static_cast<size_t>(settings.members) + 1));
  char folder[] = "/tmp/troupe-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < settings.members; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      Member(page, shared, settings, folder, rank).Run();
      ::_exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) {
      page->failed.store(1);
      failed = 1;
    }
  }
  std::filesystem::remove_all(folder);
  return failed;
}
