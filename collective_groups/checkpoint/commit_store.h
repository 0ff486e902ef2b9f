// CommitStore: the newest commits of one run in a directory, written behind the training.
//
//   commit-<version>   complete: written under another name, synced, then renamed
//   .writing-<random>  being written; what a killed writer left is removed at the next Open
//   torn-<version>     failed its hashes when it was read; kept for inspection, never loaded
//
// A file holds a preamble (version, sizes), an opaque header, the tensors' bytes, and an xxh3 hash
// of each chunk; all lengths follow from the preamble, so a file that was cut short is seen.
//
// Save hands a commit over and returns. While one is being written another may wait; a newer one
// takes its place, so a slow disk costs commits and never time. The buffers stay the caller's: they
// must not change while state() names their ticket.
// Thread: any. Several processes may use one directory, also for the same versions.
// Owns: a writer thread. The destructor gives up what is being written, between two chunks.
// Invariants: a commit is removed only when `keep` newer ones are complete. What Newest returns has
// passed its hashes.
// Limits: one commit being written and one waiting; kCommitHeaderBytesMax, kCommitTensorsMax.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective_groups/checkpoint/commit_files.h"
#include "collective_groups/collectives/algorithms.h"
#include "runtime/blocking_lane.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr size_t kCommitChunkBytes = size_t{4} << 20;
inline constexpr uint64_t kCommitHeaderBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kCommitTensorsMax = 10'000'000;

struct CommitStoreOptions {
  std::string directory;
  uint32_t keep = 2;  // Complete commits that stay; at least 1.
};

// A commit that was read back and has passed its hashes.
struct Commit {
  uint64_t version = 0;
  uint64_t digest = 0;  // Of all its bytes: equal commits have equal digests.
  std::string header;
  std::vector<ConstBuffer> tensors;  // In `memory`.
  std::unique_ptr<std::byte[]> memory;
};

struct CommitStoreStats {
  uint64_t written = 0;     // Commits that are complete.
  uint64_t superseded = 0;  // Commits a newer one took the place of before they were begun.
  uint64_t failed = 0;
  uint64_t bytes = 0;    // Of the written ones.
  Duration writing{};    // Time that writing those took.
  uint64_t version = 0;  // The newest written one.
};

class CommitStore {
 public:
  using Ticket = uint64_t;
  struct State {
    Ticket writing = 0;  // 0: none.
    Ticket waiting = 0;
  };

  // Makes the directory. kInvalidArgument, or why the directory cannot be used.
  static Result<std::unique_ptr<CommitStore>> Open(CommitStoreOptions options,
                                                   std::unique_ptr<CommitFiles> files = nullptr);
  ~CommitStore();

  // Tickets grow. Errors of writing come out of TakeProblem.
  Ticket Save(uint64_t version, std::string header, std::vector<ConstBuffer> tensors);
  [[nodiscard]] State state() const;
  // Takes the waiting commit back; false if none waits (any more).
  bool Withdraw();
  // Waits until nothing is being written or waits; kDeadlineExceeded.
  Status Flush(Duration limit);
  // Why the newest attempt to write failed, told once for as long as the reason stays the same.
  std::optional<Error> TakeProblem();
  [[nodiscard]] CommitStoreStats stats() const;

  // The newest commit that is whole; older ones are tried in turn. nullopt if there is none.
  // Another error than kCorrupt (no right to read, a failing disk) is returned, not passed over.
  Result<std::optional<Commit>> Newest();
  // kNotFound; kCorrupt if it fails its hashes.
  Result<Commit> Load(uint64_t version);

 private:
  struct Pending {
    Ticket ticket = 0;
    uint64_t version = 0;
    std::string header;
    std::vector<ConstBuffer> tensors;
  };
  CommitStore(CommitStoreOptions options, std::unique_ptr<CommitFiles> files);
  void WriteNext();
  Status Write(const Pending& commit);
  Status WriteFile(int file, const Pending& commit, const std::string& path);
  Status WriteAll(int file, const void* data, size_t bytes, const std::string& path);
  Status RemoveOld();
  Result<Commit> Read(int file, uint64_t version, const std::string& path);
  Result<std::vector<uint64_t>> Versions();  // Newest first.
  [[nodiscard]] std::string Path(const char* prefix, uint64_t version) const;

  const CommitStoreOptions options_;
  const std::unique_ptr<CommitFiles> files_;
  std::atomic<bool> closing_{false};

  // Guarded by mu_.
  mutable std::mutex mu_;
  std::condition_variable idle_;
  Ticket next_ticket_ = 1;
  Ticket writing_ = 0;
  std::optional<Pending> waiting_;
  std::optional<Error> problem_;
  std::string told_;
  CommitStoreStats stats_;

  BlockingLane lane_;
};

}  // namespace troupe::groups
