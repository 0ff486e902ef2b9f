// One rank of a group on a real GPU, as a process. Prints "ok", or what was wrong.
//   nccl-gpu-rank FOLDER RANK SIZE DEVICE [nccl]
// Ranks leave their addresses in the folder for each other. The last rank ends in the middle, and
// the others go on without it. With `nccl` it is an error if the operations do not go over NCCL.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "collective_groups/collectives/collectives.h"
#include "collective_groups/gpu/cuda_driver.h"
#include "collective_groups/gpu/device_communicator.h"

namespace troupe::groups {
namespace {

constexpr Duration kFileLimit = seconds(60);
constexpr size_t kCount = 1 << 20;

void Require(const Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.error().message);
}
template <class T>
T Require(Result<T> result, const std::string& what) {
  if (!result.ok()) throw std::runtime_error(what + ": " + result.error().message);
  return std::move(*result);
}

class Rank {
 public:
  Rank(std::filesystem::path folder, int rank, int size, int device)
      : folder_(std::move(folder)), rank_(rank), size_(size), device_(device) {
    cuda_ = Require(LoadCudaDriver(), "driver");
    Require(cuda_->Use(device), "device");
    stream_ = Require(cuda_->NewStream(), "stream");
    done_ = Require(cuda_->NewEvent(), "event");
    memory_ = static_cast<char*>(Require(cuda_->Allocate(2 * kCount * sizeof(float)), "memory"));
    communicator_ = Require(MakeCommunicator({{}, ""}), "communicator");
  }
  ~Rank() {
    communicator_.reset();
    cuda_->Free(memory_);
    cuda_->FreeEvent(done_);
    cuda_->FreeStream(stream_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void Link() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto slot = static_cast<uint32_t>(peer);
      Write(Name(rank_, peer),
            Require(communicator_->Offer(static_cast<uint32_t>(rank_), slot, ""), "offer"));
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      Require(communicator_->Link(static_cast<uint32_t>(peer), Read(Name(peer, rank_))), "link");
    }
  }
  void Begin(Epoch epoch, int size) {
    View view;
    view.epoch = epoch;
    for (int i = 0; i < size; ++i) {
      ViewMember member;
      member.id = {"w" + std::to_string(i), 1};
      member.slot = static_cast<uint32_t>(i);
      view.members.push_back(member);
    }
    Require(communicator_->Begin(view, rank_, {}), "begin");
  }
  Status Sum(float value) {
    const std::vector<float> in(kCount, value);
    Copy(memory_, in.data(), kCount * sizeof(float));
    const ConstBuffer source{memory_, kCount * sizeof(float)};
    const MutableBuffer target{memory_ + kCount * sizeof(float), kCount * sizeof(float)};
    ReduceArguments arguments;
    arguments.count = kCount;
    return communicator_->AllReduce(On(), {&source, 1}, {&target, 1}, arguments);
  }
  void ExpectSum(float value, float expected) {
    Require(Sum(value), "sum");
    std::vector<float> out(kCount);
    Copy(out.data(), memory_ + kCount * sizeof(float), kCount * sizeof(float));
    for (const float got : out) {
      if (got != expected) {
        throw std::runtime_error("a sum of " + std::to_string(got) + " instead of " +
                                 std::to_string(expected));
      }
    }
  }
  // Rank r gives r + 1 bytes of 'a' + r.
  void ExpectGather() {
    std::string expected;
    std::vector<size_t> sizes;
    for (int r = 0; r < size_; ++r) {
      sizes.push_back(static_cast<size_t>(r + 1));
      expected.append(sizes.back(), static_cast<char>('a' + r));
    }
    const std::string mine(sizes[static_cast<size_t>(rank_)], static_cast<char>('a' + rank_));
    Copy(memory_, mine.data(), mine.size());
    Require(AllGather(*communicator_, On(), memory_, memory_ + kCount, sizes), "gather");
    std::string got(expected.size(), '-');
    Copy(got.data(), memory_ + kCount, got.size());
    if (got != expected) throw std::runtime_error("gathered '" + got + "', not '" + expected + "'");
  }
  Communicator& communicator() { return *communicator_; }

  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path unfinished = folder_ / (name + ".new");
    std::ofstream(unfinished, std::ios::binary) << text;
    std::filesystem::rename(unfinished, folder_ / name);
  }
  std::string Read(const std::string& name) {
    const SteadyClock clock;
    const Time end = clock.Now() + kFileLimit;
    while (!std::filesystem::exists(folder_ / name)) {
      if (clock.Now() >= end) throw std::runtime_error("no file " + name);
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(folder_ / name, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  static std::string Name(int from, int to) {
    return "from" + std::to_string(from) + "to" + std::to_string(to);
  }
  Operation On() { return {0, 0, "", Require(communicator_->Mark(device_, stream_), "mark")}; }
  void Copy(void* to, const void* from, size_t bytes) {
    Require(cuda_->Copy(to, from, bytes, stream_), "copy");
    Require(cuda_->Record(done_, stream_), "record");
    while (!Require(cuda_->Came(done_), "copy")) std::this_thread::yield();
  }

  const std::filesystem::path folder_;
  const int rank_;
  const int size_;
  const int device_;
  std::shared_ptr<CudaDriver> cuda_;
  CudaDriver::Stream stream_ = nullptr;
  CudaDriver::Event done_ = nullptr;
  char* memory_ = nullptr;
  std::unique_ptr<Communicator> communicator_;
};

void Play(Rank& rank, int me, int size) {
  rank.Link();
  rank.Begin(1, size);
  const auto all = static_cast<float>((1 << size) - 1);
  rank.ExpectSum(static_cast<float>(1 << me), all);
  rank.ExpectGather();
  for (int i = 0; i < 20; ++i) rank.ExpectSum(static_cast<float>(1 << me), all);
  rank.Begin(2, size);
  rank.ExpectSum(static_cast<float>(1 << me), all);
  if (size == 1) return;
  const std::string gone = "gone";
  if (me == size - 1) {
    rank.Write(gone, "");
    std::cout << "ok" << std::endl;
    std::_Exit(0);
  }
  std::thread aborter([&] {
    (void)rank.Read(gone);
    rank.communicator().Abort(2);
  });
  const Status ended = rank.Sum(1.0F);
  aborter.join();
  if (ended.ok()) throw std::runtime_error("a sum without the one that has gone");
  if (size > 2) return;  // Links of a broken epoch would have to be made afresh.
  rank.Begin(3, size - 1);
  rank.ExpectSum(2.0F, 2.0F);
}

}  // namespace
}  // namespace troupe::groups

int main(int argc, char** argv) {
  using namespace troupe::groups;
  if (argc < 5) return 2;
  try {
    const bool nccl = argc > 5;
    if (const auto library = LoadNccl(); nccl && !library.ok()) {
      throw std::runtime_error(library.error().message);
    }
    const int me = std::atoi(argv[2]);
    const int size = std::atoi(argv[3]);
    Rank rank(argv[1], me, size, std::atoi(argv[4]));
    Play(rank, me, size);
    std::cout << "ok" << std::endl;
    return 0;
  } catch (const std::exception& e) {
    std::cout << e.what() << std::endl;
    return 1;
  }
}
