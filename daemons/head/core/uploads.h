// Uploads: large payloads of workers on their way to the head, which come in parts.
//
// Thread: owner only. Owns: nothing; the bytes are in the spool.
// Invariants: UP-1 what is taken is whole, each part once and in its place, whatever is repeated,
// lost or comes in another order. UP-2 of each process the newest upload counts, and an older one
// is forgotten.
// Limits: kUploadBytesMax each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "daemons/head/core/spool.h"
#include "daemons/protocol/messages.h"
#include "runtime/result.h"

namespace troupe::daemons {

class Uploads {
 public:
  explicit Uploads(Spool* spool) : spool_(spool) {}

  // How much of it is here now.
  [[nodiscard]] Result<uint64_t> Add(const WorkerPart& part);
  [[nodiscard]] uint64_t Have(const std::string& process, uint64_t upload) const;
  // Null if it is not all here.
  [[nodiscard]] std::shared_ptr<const SpoolFile> Take(const std::string& process, uint64_t upload);
  void Forget(const std::string& process) { uploads_.erase(process); }

 private:
  struct Upload {
    uint64_t number = 0;
    uint64_t total = 0;
    std::shared_ptr<SpoolFile> file;  // Null: it was taken.
  };
  Spool* const spool_;
  std::map<std::string, Upload> uploads_;  // By process.
};

}  // namespace troupe::daemons
