// Processes of one host that measure something together: they fork, meet at barriers in shared
// memory, and form communicators without a head.
//
// A member that fails says so on stderr and ends; the others notice at the next barrier. Members
// die with their parent.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "collective_groups/collectives/communicator.h"

namespace troupe::benchmarks {

inline constexpr int kWorldMax = 16;
inline constexpr size_t kWorldAddressMax = 200;

// What all members share.
struct WorldPage {
  std::atomic<int> arrived;
  std::atomic<int> generation;
  std::atomic<int> failed;
  std::atomic<int64_t> done_ns[kWorldMax];
  struct {
    std::atomic<int> bytes;
    char text[kWorldAddressMax];
  } addresses[2][kWorldMax][kWorldMax];  // By kind of link, from, to.
};

class World {
 public:
  enum Kind { kMemory = 0, kLinks = 1 };

  World(WorldPage* page, int rank, int size) : page_(page), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Returns when all members have called it.
  void Meet();
  // Ends this process if it is an error.
  void Require(const Status& status);
  // All together; over links the data plane binds to `address`.
  std::unique_ptr<groups::Communicator> Join(Kind kind, const std::string& address = "127.0.0.1");
  // All together: runs `body` and returns the microseconds until the last one was through.
  double Time(const std::function<void()>& body);

 private:
  WorldPage* const page_;
  const int rank_;
  const int size_;
};

// Memory that forked members share.
void* SharedMemory(size_t bytes);
// Forks `size` members and waits for them; 0 if all went well.
int RunWorld(int size, const std::function<void(World&)>& member);

}  // namespace troupe::benchmarks
