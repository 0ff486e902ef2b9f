// State to a joiner: Communicator::Transfer through shared memory and over links, from one source
// and from two, next to one raw TCP stream over loopback (no hashes, 1 MiB per call).
//
// The last rank receives. The state is one tensor after the other, 64 MiB each; every byte that
// arrived is compared in the first round. Prints one JSON line per way.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "benchmarks/world.h"

namespace {

using namespace troupe;
using namespace troupe::groups;
using benchmarks::World;

constexpr int kRanks = 3;  // Two sources, the joiner.
constexpr size_t kTensorBytes = size_t{64} << 20;
constexpr size_t kCallBytes = size_t{1} << 20;

class Member {
 public:
  Member(World* world, size_t bytes, int rounds, std::atomic<int>* port)
      : world_(world), rounds_(rounds), port_(port), bytes_(bytes), state_(bytes) {
    memory_ = world->Join(World::kMemory);
    links_ = world->Join(World::kLinks);
    Connect();
  }
  ~Member() { ::close(stream_); }

  void Run() {
    const struct {
      const char* name;
      std::function<void()> body;
    } ways[] = {{"memory", [this] { Send(*memory_, {0}); }},
                {"links", [this] { Send(*links_, {0}); }},
                {"links_two_sources",
                 [this] {
                   Send(*links_, {0, 1});
                 }},
                {"raw_stream", [this] { Stream(); }}};
    std::vector<std::vector<double>> times(std::size(ways));
    for (int round = 0; round < rounds_; ++round) {
      for (size_t way = 0; way < std::size(ways); ++way) {
        const bool joiner = world_->rank() == kRanks - 1;
        if (round == 0) Fill(joiner ? 0 : way + 1);
        times[way].push_back(world_->Time(ways[way].body) / 1e3);
        if (round == 0 && joiner) Check(way + 1);
      }
    }
    for (size_t way = 0; way < std::size(ways) && world_->rank() == 0; ++way) {
      std::vector<double>& ms = times[way];
      std::sort(ms.begin(), ms.end());
      std::printf(
          "{\"bench\": \"state_transfer\", \"way\": \"%s\", \"bytes\": %zu, \"trials\": %zu, "
          "\"p50\": %.1f, \"max\": %.1f, \"unit\": \"ms\", \"gb_per_s\": %.2f}\n",
          ways[way].name, bytes_, ms.size(), ms[ms.size() / 2], ms.back(),
          static_cast<double>(bytes_) / ms[ms.size() / 2] / 1e6);
      std::fflush(stdout);
    }
  }

 private:
  static char Pattern(size_t at, size_t salt) {
    return salt == 0 ? '\0' : static_cast<char>((at * 31 + at / kCallBytes + salt * 7) & 0x7f);
  }
  void Fill(size_t salt) {
    for (size_t i = 0; i < bytes_; ++i) state_[i] = Pattern(i, salt);
  }
  void Check(size_t salt) {
    for (size_t i = 0; i < bytes_; ++i) {
      if (state_[i] != Pattern(i, salt))
        world_->Require(Error{ErrorCode::kCorrupt, "wrong byte at " + std::to_string(i)});
    }
  }

  void Send(Communicator& communicator, const std::vector<int>& sources) {
    const bool source = std::find(sources.begin(), sources.end(), world_->rank()) != sources.end();
    if (!source && world_->rank() != kRanks - 1) return;
    std::vector<MutableBuffer> tensors;
    for (size_t at = 0; at < bytes_; at += kTensorBytes)
      tensors.push_back({state_.data() + at, std::min(kTensorBytes, bytes_ - at)});
    const std::vector<int> receivers{kRanks - 1};
    const Result<uint64_t> sent = communicator.Transfer(sources, receivers, tensors);
    world_->Require(sent.ok() ? Status::Ok() : Status(sent.error()));
  }

  // One connection from rank 0 to the joiner.
  void Connect() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    int listener = -1;
    bool good = true;
    if (world_->rank() == kRanks - 1) {
      listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      good = listener >= 0 && ::bind(listener, raw, length) == 0 && ::listen(listener, 1) == 0 &&
             ::getsockname(listener, raw, &length) == 0;
      port_->store(ntohs(address.sin_port));
    }
    world_->Meet();
    if (world_->rank() == 0) {
      address.sin_port = htons(static_cast<uint16_t>(port_->load()));
      stream_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      good = stream_ >= 0 && ::connect(stream_, raw, length) == 0;
    } else if (listener >= 0 && good) {
      stream_ = ::accept(listener, nullptr, nullptr);
      good = stream_ >= 0;
    }
    if (listener >= 0) ::close(listener);
    if (!good) world_->Require(Error{ErrorCode::kUnavailable, std::strerror(errno)});
  }

  void Stream() {
    const bool sends = world_->rank() == 0;
    if (!sends && world_->rank() != kRanks - 1) return;
    for (size_t at = 0; at < bytes_;) {
      const size_t most = std::min(kCallBytes, bytes_ - at);
      const ssize_t done = sends ? ::send(stream_, state_.data() + at, most, MSG_NOSIGNAL)
                                 : ::recv(stream_, state_.data() + at, most, 0);
      if (done <= 0) world_->Require(Error{ErrorCode::kPeerGone, "the raw stream broke"});
      at += static_cast<size_t>(done);
    }
  }

  World* const world_;
  const int rounds_;
  std::atomic<int>* const port_;
  const size_t bytes_;
  std::vector<char> state_;
  std::unique_ptr<Communicator> memory_;
  std::unique_ptr<Communicator> links_;
  int stream_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  size_t mib = 1024;
  int rounds = 7;
  CLI::App app("State to a joiner, next to a raw TCP stream");
  app.add_option("--mib", mib)->check(CLI::Range(1, 4096));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 100));
  CLI11_PARSE(app, argc, argv);
  auto* port = static_cast<std::atomic<int>*>(benchmarks::SharedMemory(sizeof(std::atomic<int>)));
  return benchmarks::RunWorld(kRanks,
                              [&](World& world) { Member(&world, mib << 20, rounds, port).Run(); });
}
