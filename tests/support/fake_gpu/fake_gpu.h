// A CUDA driver and an NCCL for tests: one shared library with the functions of both, as the real
// headers declare them, over host memory. Ranks are threads of one process.
//
// Streams are threads, so that work is asynchronous; memory is the host's, but only its owner's:
// `device memory` that was not allocated here, or reaches past its end, is a broken rule. The rules
// of NCCL are checked: nothing but queries and aborts while something is in progress, each unique
// id for one communicator, no use after abort, no second thread inside a call, equal arguments on
// all ranks.
// Thread: any.
#pragma once

#include <cstddef>
#include <string>

namespace troupe::fake_gpu {

inline constexpr int kDevices = 64;

// What goes wrong. Ranks and operations count from 0; -1: never.
struct Faults {
  int version = 23102;    // Functions that came later refuse.
  int polls_to_form = 3;  // Queries of a communicator until it is formed.
  bool init_never_ends = false;
  int init_fails_on = -1;  // The rank where forming from an id fails.
  bool shrink_fails = false;
  bool grow_fails = false;
  int break_operation = -1;  // This operation (counted per rank, since SetFaults) ...
  int break_on = -1;         // ... ends with an asynchronous error on this rank.
  bool same_device = false;  // All devices have one identity.
  bool stuck_abort = false;  // An abort does not end before this is over.
};

// What is alive, and what has been done since ClearCounts.
struct Counts {
  int communicators = 0;
  int streams = 0;
  int events = 0;
  int allocations = 0;
  int inits = 0;
  int shrinks = 0;
  int shrinks_with_abort = 0;
  int grows = 0;
  int revokes = 0;
  int aborts = 0;
  int operations = 0;
  int most_scaled_sums = 0;  // That one communicator had at once.
  int host_copies = 0;       // Between memory of the host and of a device.
  int held_queries = 0;      // Of events that a HeldStream holds back.
};

#define FAKE_GPU_API __attribute__((visibility("default")))
FAKE_GPU_API void SetFaults(const Faults& faults);
FAKE_GPU_API Counts Count();
FAKE_GPU_API void ClearCounts();  // Of what has been done.
// The first rule that was broken; empty if none.
FAKE_GPU_API std::string BrokenRule();
FAKE_GPU_API void ForgetBrokenRule();
// Of the calling thread; -1: none.
FAKE_GPU_API int CurrentDevice();
// Device memory of a test's own.
FAKE_GPU_API void* Allocate(size_t bytes);
FAKE_GPU_API void Free(void* memory);
// A stream whose first piece of work does not end before it is opened.
class FAKE_GPU_API HeldStream {
 public:
  HeldStream();
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void Open();
  [[nodiscard]] void* stream() const { return stream_; }

 private:
  void* stream_;
  bool open_ = false;
};
// The library's file, for TROUPE_CUDA_LIBRARY and TROUPE_NCCL_LIBRARY.
FAKE_GPU_API std::string LibraryPath();

}  // namespace troupe::fake_gpu
