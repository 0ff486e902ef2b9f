#include "daemons/head/core/uploads.h"

#include <utility>

#include "daemons/protocol/payload_parts.h"

namespace troupe::daemons {

Result<uint64_t> Uploads::Add(const WorkerPart& part) {
  if (part.total > kUploadBytesMax || part.upload == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "a payload has at most " + std::to_string(kUploadBytesMax) + " bytes"};
  }
  Upload& upload = uploads_[part.process];
  if (upload.number != part.upload) {
    if (part.offset > 0) return uint64_t{0};  // Its beginning went to another head.
    Result<std::shared_ptr<SpoolFile>> file = spool_->Create();
    if (!file.ok()) return file.error();
    upload = {part.upload, part.total, std::move(*file)};
  }
  const uint64_t have = Have(part.process, part.upload);
  if (part.offset == have && upload.file && have + part.bytes.size() <= upload.total) {
    if (const Status s = upload.file->Append(part.bytes); !s.ok()) return s.error();
  }
  return Have(part.process, part.upload);
}

uint64_t Uploads::Have(const std::string& process, uint64_t upload) const {
  const auto it = uploads_.find(process);
  if (it == uploads_.end() || it->second.number != upload) return 0;
  return it->second.file ? it->second.file->size() : it->second.total;
}

std::shared_ptr<const SpoolFile> Uploads::Take(const std::string& process, uint64_t upload) {
  const auto it = uploads_.find(process);
  if (it == uploads_.end() || it->second.number != upload || !it->second.file ||
      it->second.file->size() != it->second.total)
    return nullptr;
  return std::exchange(it->second.file, nullptr);
}

}  // namespace troupe::daemons
