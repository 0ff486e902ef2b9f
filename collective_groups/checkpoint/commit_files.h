// CommitFiles: what CommitStore asks of the file system; tests put one there that fails.
//
// Paths are absolute or relative to the process. Errors name the path and the system's reason:
// kResourceExhausted for a full disk or quota, kPermissionDenied for a read-only file system or
// missing rights, kNotFound for what is not there, else kUnavailable.
// Thread: any; one thread per file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace troupe::groups {

class CommitFiles {
 public:
  virtual ~CommitFiles() = default;

  // With its parents; success if it is there already.
  virtual Status MakeDirectory(const std::string& path) = 0;
  // Names, in no order.
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;
  // A new file to write to, locked for as long as it is open.
  virtual Result<int> Create(const std::string& path) = 0;
  // May write less than it was given, as write(2).
  virtual Result<size_t> Write(int file, const void* data, size_t bytes,
                               const std::string& path) = 0;
  // Returns when the file's bytes are on stable storage.
  virtual Status Sync(int file, const std::string& path) = 0;
  virtual void Close(int file) = 0;
  // Replaces `to` in one step.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Returns when renames and removals in the directory are on stable storage.
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual Status Remove(const std::string& path) = 0;
  // Removes a file of Create whose writer is gone; leaves one that is still open.
  virtual void RemoveAbandoned(const std::string& path) = 0;

  virtual Result<int> OpenToRead(const std::string& path) = 0;
  // Reads exactly `bytes`; kCorrupt if the file ends before.
  virtual Status ReadExactly(int file, void* data, size_t bytes, const std::string& path) = 0;
  virtual Result<uint64_t> Size(int file, const std::string& path) = 0;
};

[[nodiscard]] std::unique_ptr<CommitFiles> MakeCommitFiles();

}  // namespace troupe::groups
