// All-reduce of float32 between processes: Troupe's communicator through shared memory and over its
// links, raw Gloo (ring and halving-doubling), and the least that shared memory needs (inputs that
// lie there, one shared result), all interleaved in one run.
//
// Every round all processes meet at a barrier in shared memory and then reduce once; the figure is
// the time until the last one is through. Sums are checked. Prints one JSON line per way and size.
//
// --namespaces PREFIX --subnet A.B.C: member r lives in the network namespace PREFIXr, where it has
// the address A.B.C.(r + 2): the links then cross a virtual network, as between hosts
// (benchmarks/between_hosts.py makes one).
#include <fcntl.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "benchmarks/world.h"

namespace {

using namespace troupe;
using namespace troupe::groups;
using benchmarks::World;

constexpr const char* kWays[] = {"memory", "links", "gloo_ring", "gloo_halving_doubling", "limit"};
constexpr int kWayCount = 5;

struct Settings {
  int members = 2;
  double seconds = 0.5;  // Per way and size.
  std::vector<size_t> sizes = {1024, 4096, 65536, 1 << 20, 16 << 20, 102236160};
  std::string namespaces;
  std::string subnet;
};

class Member {
 public:
  Member(World* world, char* shared, const Settings& settings, const std::string& folder)
      : world_(world),
        shared_(shared),
        settings_(settings),
        rank_(world->rank()),
        n_(world->size()) {
    std::string address = "127.0.0.1";
    if (!settings.namespaces.empty()) {
      Enter("/run/netns/" + settings.namespaces + std::to_string(rank_));
      address = settings.subnet + "." + std::to_string(rank_ + 2);
    }
    memory_ = world->Join(World::kMemory, address);
    links_ = world->Join(World::kLinks, address);
    gloo::rendezvous::FileStore store(folder);
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, n_);
    context->connectFullMesh(store, device);
    gloo_ = context;
    world->Meet();
    if (rank_ == 0) std::filesystem::remove_all(folder);
  }

  void Run() {
    const size_t largest = *std::max_element(settings_.sizes.begin(), settings_.sizes.end());
    in_.assign(largest / sizeof(float), static_cast<float>(rank_ + 1));
    out_.resize(in_.size());
    for (const size_t bytes : settings_.sizes) {
      std::vector<double> times[kWayCount];
      for (auto& cpu : cpu_us_) cpu.clear();
      const int rounds = Rounds(bytes);  // Equal on all ranks.
      for (int round = 0; round < rounds + 2; ++round) {
        for (int way = 0; way < kWayCount; ++way) {
          const double us = Once(way, bytes / sizeof(float));
          if (round >= 2) times[way].push_back(us);
        }
      }
      for (int way = 0; way < kWayCount && rank_ == 0; ++way)
        Print(kWays[way], bytes, times[way], cpu_us_[way]);
    }
  }

 private:
  void Enter(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) {
      world_->Require(
          Error{ErrorCode::kUnavailable, "cannot enter " + path + ": " + std::strerror(errno)});
    }
    ::close(fd);
  }

  int Rounds(size_t bytes) const {
    const double estimate = 2e-4 + static_cast<double>(bytes) * n_ / 0.4e9;
    return std::clamp(static_cast<int>(settings_.seconds / estimate), 5, 1000);
  }

  double Once(int way, size_t count) {
    const double us = world_->Time([&] {
      const double cpu = CpuMicros();
      Reduce(way, count);
      cpu_us_[way].push_back(CpuMicros() - cpu);
    });
    const float* result = way == 4 ? reinterpret_cast<float*>(shared_) : out_.data();
    const auto expected = static_cast<float>(n_ * (n_ + 1)) / 2;
    const bool right = result[0] == expected && result[count - 1] == expected;
    if (!right) world_->Require(Error{ErrorCode::kInternal, "a wrong sum"});
    return us;
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
      world_->Require(communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments));
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
    world_->Meet();
    const size_t begin = count * static_cast<size_t>(rank_) / static_cast<size_t>(n_);
    const size_t end = count * static_cast<size_t>(rank_ + 1) / static_cast<size_t>(n_);
    std::vector<const void*> inputs;
    for (int i = 1; i <= n_; ++i) inputs.push_back(result + static_cast<size_t>(i) * width + begin);
    GetReduceManyFunction(DataType::kFloat32, ReduceOp::kSum)(result + begin, inputs.data(),
                                                              inputs.size(), end - begin);
    world_->Meet();
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
        "{\"bench\": \"all_reduce\", \"way\": \"%s\", \"net\": \"%s\", \"n\": %d, \"bytes\": %zu, "
        "\"min\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f, \"unit\": \"us\", "
        "\"rounds\": %zu, \"cpu_us\": %.1f, \"gb_per_s\": %.3f}\n",
        way, settings_.namespaces.empty() ? "loopback" : "virtual", n_, bytes, us[0],
        us[us.size() / 2], us[us.size() * 99 / 100], us.back(), us.size(),
        cpu_us[cpu_us.size() / 2], static_cast<double>(bytes) / us[us.size() / 2] / 1e3);
    std::fflush(stdout);
  }

  World* const world_;
  char* const shared_;
  const Settings& settings_;
  const int rank_;
  const int n_;
  std::unique_ptr<Communicator> memory_;
  std::unique_ptr<Communicator> links_;
  std::shared_ptr<gloo::Context> gloo_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::vector<double> cpu_us_[kWayCount];  // Of this process, per operation.
  int tag_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("All-reduce between processes of one host, next to raw Gloo and to a bare minimum");
  app.add_option("-n,--members", settings.members)->check(CLI::Range(2, benchmarks::kWorldMax));
  app.add_option("--seconds", settings.seconds, "per way and size");
  app.add_option("--sizes", settings.sizes, "bytes")->delimiter(',');
  auto* spaces = app.add_option("--namespaces", settings.namespaces, "prefix of their names");
  app.add_option("--subnet", settings.subnet, "such as 10.9.8")->needs(spaces);
  CLI11_PARSE(app, argc, argv);
  const size_t largest = *std::max_element(settings.sizes.begin(), settings.sizes.end());
  auto* shared = static_cast<char*>(
      benchmarks::SharedMemory(largest * (static_cast<size_t>(settings.members) + 1)));
  char folder[] = "/tmp/troupe-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const int failed = benchmarks::RunWorld(
      settings.members, [&](World& world) { Member(&world, shared, settings, folder).Run(); });
  std::filesystem::remove_all(folder);
  return failed;
}
