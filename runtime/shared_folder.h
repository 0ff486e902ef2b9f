// SharedFolder: the folder of one cluster in the shared memory of this host, with the large buffers
// that its processes share.
//
// Two processes share it when both see the same shared memory, whatever their addresses are. So the
// folder has an identity: random digits in a file of it, written by the first who enters, and the
// boot of the kernel. Who reads the same identity sees the same files; a container with a /dev/shm
// of its own reads another.
// Everybody who is in it holds a lock that ends with the process, however that ends. Whoever starts
// or ends later removes the folders that nobody is in, and the files of those who have ended.
// Thread: any. Owns: the locks.
// Invariants: SF-1 a folder that somebody is in is not removed; SF-2 of two processes in one folder
// no two have the same name; SF-3 a folder of another user is neither used nor removed; SF-4 a file
// of a process that is in a folder is not removed from there.
// Limits: kEnterTries attempts to enter a folder that others make and remove meanwhile.
#pragma once

#include <memory>
#include <string>

#include "runtime/result.h"

namespace troupe {

inline constexpr int kEnterTries = 500;

class SharedFolder {
 public:
  // Of the cluster that is named so: by its head's public key, or its private directory.
  [[nodiscard]] static std::string PathOf(const std::string& cluster);
  // Makes it if it is not there. kPermissionDenied: it is another user's; kUnavailable: it cannot
  // be used at all.
  static Result<std::unique_ptr<SharedFolder>> Enter(const std::string& path);
  // Removes those of this user that nobody is in; of the others the files of who has ended.
  static void RemoveEnded();
  // Leaves it; the last one out removes it. In a forked child nothing happens.
  ~SharedFolder();
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& identity() const { return identity_; }
  // A folder on disk for what does not fit into memory, which goes with this one; empty: none.
  [[nodiscard]] const std::string& spill_path() const { return spill_path_; }
  // Of this process, as others see it: hexadecimal digits and '-'.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Removes the files of processes that have ended: those named NAME.*, of one of that name.
  void Sweep() const;

 private:
  SharedFolder(std::string path, std::string identity, int lock);
  Status TakeName();

  const std::string path_;
  const std::string identity_;
  const int pid_;  // A forked child is not in it.
  const int lock_;
  int life_ = -1;
  std::string spill_path_;
  std::string name_;
};

}  // namespace troupe
