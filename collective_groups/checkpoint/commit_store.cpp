#include "collective_groups/checkpoint/commit_store.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <functional>
#include <utility>

#include "runtime/process.h"

namespace troupe::groups {
namespace {

constexpr char kComplete[] = "commit-";
constexpr char kWriting[] = ".writing-";
constexpr char kTorn[] = "torn-";
constexpr size_t kVersionDigits = 20;
constexpr uint64_t kMagic = 0x31544d4345505254;  // "TRPECMT1" as little-endian bytes.
constexpr uint64_t kEnd = 0x31444e4545505254;    // "TRPEEND1"

// Numbers are stored as the machine holds them; the magic tells another byte order.
struct Preamble {
  uint64_t magic = kMagic;
  uint64_t version = 0;
  uint64_t header_bytes = 0;
  uint64_t tensors = 0;
  uint64_t chunk_bytes = kCommitChunkBytes;
  uint64_t hash = 0;  // Of the sizes and the header.
};
struct Trailer {
  uint64_t chunks = 0;
  uint64_t digest = 0;  // Of the preamble and the chunks' hashes.
  uint64_t end = kEnd;
};

uint64_t HashOfStart(const std::vector<uint64_t>& sizes, const std::string& header) {
  const uint64_t seed = XXH3_64bits(sizes.data(), sizes.size() * sizeof(uint64_t));
  return XXH3_64bits_withSeed(header.data(), header.size(), seed);
}

uint64_t Digest(const Preamble& preamble, const std::vector<uint64_t>& hashes) {
  const uint64_t seed = XXH3_64bits(&preamble, sizeof preamble);
  return XXH3_64bits_withSeed(hashes.data(), hashes.size() * sizeof(uint64_t), seed);
}

// Calls `each(chunk)` for the chunks of all tensors in order; stops at the first failure.
Status ForChunks(std::span<const ConstBuffer> tensors,
                 const std::function<Status(const ConstBuffer&)>& each) {
  for (const ConstBuffer& tensor : tensors) {
    for (size_t at = 0; at < tensor.bytes; at += kCommitChunkBytes) {
      const ConstBuffer chunk{static_cast<const std::byte*>(tensor.data) + at,
                              std::min(kCommitChunkBytes, tensor.bytes - at)};
      if (Status s = each(chunk); !s.ok()) return s;
    }
  }
  return Status::Ok();
}

Error Torn(const std::string& path, const char* why) {
  return Error{ErrorCode::kCorrupt, path + " is not a whole commit: " + why};
}

// Closes on the way out.
class OpenFile {
 public:
  OpenFile(CommitFiles* files, int file) : files_(files), file_(file) {}
  ~OpenFile() { Close(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] int get() const { return file_; }
  void Close() {
    if (file_ >= 0) files_->Close(std::exchange(file_, -1));
  }

 private:
  CommitFiles* const files_;
  int file_;
};

}  // namespace

// ---- life ----

Result<std::unique_ptr<CommitStore>> CommitStore::Open(CommitStoreOptions options,
                                                       std::unique_ptr<CommitFiles> files) {
  if (options.directory.empty() || options.keep == 0) {
    return Error{ErrorCode::kInvalidArgument, "a commit store needs a directory, and keep >= 1"};
  }
  if (files == nullptr) files = MakeCommitFiles();
  if (Status s = files->MakeDirectory(options.directory); !s.ok()) return s.error();
  const Result<std::vector<std::string>> names = files->List(options.directory);
  if (!names.ok()) return names.error();
  for (const std::string& name : *names) {
    if (name.starts_with(kWriting)) files->RemoveAbandoned(options.directory + "/" + name);
  }
  return std::unique_ptr<CommitStore>(new CommitStore(std::move(options), std::move(files)));
}

CommitStore::CommitStore(CommitStoreOptions options, std::unique_ptr<CommitFiles> files)
    : options_(std::move(options)), files_(std::move(files)), lane_("commits") {}

CommitStore::~CommitStore() {
  closing_.store(true);
  lane_.Stop();
}

// ---- saving ----

CommitStore::Ticket CommitStore::Save(uint64_t version, std::string header,
                                      std::vector<ConstBuffer> tensors) {
  Ticket ticket = 0;
  {
    std::lock_guard lock(mu_);
    ticket = next_ticket_++;
    if (waiting_) ++stats_.superseded;
    waiting_ = Pending{ticket, version, std::move(header), std::move(tensors)};
    if (writing_ != 0) return ticket;  // The writer looks again when it is done.
  }
  // More than one task may be queued; who finds nothing waiting returns.
  if (Status s = lane_.Post([this] { WriteNext(); }); !s.ok()) {
    std::lock_guard lock(mu_);
    problem_ = s.error();
    waiting_.reset();
  }
  return ticket;
}

void CommitStore::WriteNext() {
  for (;;) {
    Pending commit;
    {
      std::lock_guard lock(mu_);
      if (!waiting_ || closing_.load()) {
        idle_.notify_all();
        return;
      }
      commit = std::move(*waiting_);
      waiting_.reset();
      writing_ = commit.ticket;
    }
    const Time begin = SteadyClock().Now();
    const Status status = Write(commit);
    const Duration took = SteadyClock().Now() - begin;
    const Status tidied = status.ok() ? RemoveOld() : Status::Ok();
    std::lock_guard lock(mu_);
    writing_ = 0;
    if (status.ok()) {
      ++stats_.written;
      stats_.writing += took;
      stats_.version = commit.version;
      for (const ConstBuffer& tensor : commit.tensors) stats_.bytes += tensor.bytes;
      stats_.bytes += commit.header.size();
      if (tidied.ok()) told_.clear();
    } else {
      ++stats_.failed;
    }
    const Status& worse = status.ok() ? tidied : status;
    if (!worse.ok()) {
      problem_ = worse.error().WithContext("commit " + std::to_string(commit.version));
    }
    idle_.notify_all();
  }
}

Status CommitStore::Write(const Pending& commit) {
  const std::string path = options_.directory + "/" + kWriting + RandomId();
  const Result<int> created = files_->Create(path);
  if (!created.ok()) return created.error();
  OpenFile file(files_.get(), *created);
  Status status = WriteFile(file.get(), commit, path);
  if (status.ok()) status = files_->Sync(file.get(), path);
  // Renamed while it is open and so locked: nobody takes it for an abandoned one.
  if (status.ok()) status = files_->Rename(path, Path(kComplete, commit.version));
  file.Close();
  if (!status.ok()) {
    (void)files_->Remove(path);  // After a failed sync its pages are in an unknown state.
    return status;
  }
  return files_->SyncDirectory(options_.directory);
}

Status CommitStore::WriteFile(int file, const Pending& commit, const std::string& path) {
  std::vector<uint64_t> sizes;
  for (const ConstBuffer& tensor : commit.tensors) sizes.push_back(tensor.bytes);
  Preamble preamble;
  preamble.version = commit.version;
  preamble.header_bytes = commit.header.size();
  preamble.tensors = sizes.size();
  preamble.hash = HashOfStart(sizes, commit.header);
  if (Status s = WriteAll(file, &preamble, sizeof preamble, path); !s.ok()) return s;
  if (Status s = WriteAll(file, sizes.data(), sizes.size() * sizeof(uint64_t), path); !s.ok())
    return s;
  if (Status s = WriteAll(file, commit.header.data(), commit.header.size(), path); !s.ok())
    return s;
  std::vector<uint64_t> hashes;
  Status status = ForChunks(commit.tensors, [&](const ConstBuffer& chunk) -> Status {
    if (closing_.load()) return Error{ErrorCode::kCancelled, "the store is being closed"};
    hashes.push_back(XXH3_64bits(chunk.data, chunk.bytes));
    return WriteAll(file, chunk.data, chunk.bytes, path);
  });
  if (!status.ok()) return status;
  const Trailer trailer{hashes.size(), Digest(preamble, hashes), kEnd};
  if (Status s = WriteAll(file, hashes.data(), hashes.size() * sizeof(uint64_t), path); !s.ok())
    return s;
  return WriteAll(file, &trailer, sizeof trailer, path);
}

Status CommitStore::WriteAll(int file, const void* data, size_t bytes, const std::string& path) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const Result<size_t> written = files_->Write(file, at, bytes, path);
    if (!written.ok()) return written.error();
    if (*written == 0)
      return Error{ErrorCode::kUnavailable, "cannot write " + path + ": no progress"};
    at += *written;
    bytes -= *written;
  }
  return Status::Ok();
}

Status CommitStore::RemoveOld() {
  Result<std::vector<uint64_t>> versions = Versions();
  if (!versions.ok()) return versions.error();
  for (size_t i = options_.keep; i < versions->size(); ++i) {
    Status removed = files_->Remove(Path(kComplete, (*versions)[i]));
    // Another process of this host may have been faster.
    if (!removed.ok() && removed.error().code != ErrorCode::kNotFound) return removed;
  }
  return Status::Ok();
}

CommitStore::State CommitStore::state() const {
  std::lock_guard lock(mu_);
  return {writing_, waiting_ ? waiting_->ticket : 0};
}

bool CommitStore::Withdraw() {
  std::lock_guard lock(mu_);
  if (!waiting_) return false;
  waiting_.reset();
  ++stats_.superseded;
  return true;
}

Status CommitStore::Flush(Duration limit) {
  std::unique_lock lock(mu_);
  if (idle_.wait_for(lock, limit, [this] { return writing_ == 0 && !waiting_; })) return {};
  return Error{ErrorCode::kDeadlineExceeded,
               "a commit is still being written to " + options_.directory};
}

std::optional<Error> CommitStore::TakeProblem() {
  std::lock_guard lock(mu_);
  std::optional<Error> problem = std::exchange(problem_, std::nullopt);
  if (!problem) return std::nullopt;
  // The reason without the version and the file's random name.
  const std::string reason = std::to_string(static_cast<int>(problem->code)) +
                             problem->message.substr(problem->message.rfind(':') + 1);
  if (reason == told_) return std::nullopt;
  told_ = reason;
  return problem;
}

CommitStoreStats CommitStore::stats() const {
  std::lock_guard lock(mu_);
  return stats_;
}

// ---- loading ----

std::string CommitStore::Path(const char* prefix, uint64_t version) const {
  std::string digits = std::to_string(version);
  digits.insert(0, kVersionDigits - digits.size(), '0');
  return options_.directory + "/" + prefix + digits;
}

Result<std::vector<uint64_t>> CommitStore::Versions() {
  const Result<std::vector<std::string>> names = files_->List(options_.directory);
  if (!names.ok()) return names.error();
  std::vector<uint64_t> versions;
  for (const std::string& name : *names) {
    if (!name.starts_with(kComplete)) continue;
    const char* begin = name.data() + std::strlen(kComplete);
    const char* end = name.data() + name.size();
    uint64_t version = 0;
    const auto parsed = std::from_chars(begin, end, version);
    if (parsed.ec == std::errc() && parsed.ptr == end) versions.push_back(version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

Result<std::optional<Commit>> CommitStore::Newest() {
  Result<std::vector<uint64_t>> versions = Versions();
  if (!versions.ok()) return versions.error();
  for (const uint64_t version : *versions) {
    Result<Commit> commit = Load(version);
    if (commit.ok()) return std::optional<Commit>(std::move(*commit));
    const ErrorCode code = commit.error().code;
    if (code == ErrorCode::kNotFound) continue;  // Removed meanwhile: newer ones are complete.
    if (code != ErrorCode::kCorrupt) return commit.error();
    // Out of the way, so that it does not count among those that are kept.
    (void)files_->Rename(Path(kComplete, version), Path(kTorn, version));
    std::lock_guard lock(mu_);
    problem_ = commit.error();
  }
  return std::optional<Commit>();
}

Result<Commit> CommitStore::Load(uint64_t version) {
  const std::string path = Path(kComplete, version);
  const Result<int> opened = files_->OpenToRead(path);
  if (!opened.ok()) return opened.error();
  const OpenFile file(files_.get(), *opened);
  return Read(file.get(), version, path);
}

Result<Commit> CommitStore::Read(int file, uint64_t version, const std::string& path) {
  const Result<uint64_t> size = files_->Size(file, path);
  if (!size.ok()) return size.error();
  Preamble preamble;
  if (Status s = files_->ReadExactly(file, &preamble, sizeof preamble, path); !s.ok())
    return s.error();
  if (preamble.magic != kMagic) return Torn(path, "it does not begin like one");
  if (preamble.version != version) return Torn(path, "it is of another version");
  if (preamble.chunk_bytes != kCommitChunkBytes || preamble.tensors > kCommitTensorsMax ||
      preamble.header_bytes > kCommitHeaderBytesMax || preamble.header_bytes > *size) {
    return Torn(path, "its sizes are out of bounds");
  }
  std::vector<uint64_t> sizes(preamble.tensors);
  Commit commit;
  commit.version = version;
  commit.header.resize(preamble.header_bytes);
  if (Status s = files_->ReadExactly(file, sizes.data(), sizes.size() * sizeof(uint64_t), path);
      !s.ok())
    return s.error();
  if (Status s = files_->ReadExactly(file, commit.header.data(), commit.header.size(), path);
      !s.ok())
    return s.error();
  if (HashOfStart(sizes, commit.header) != preamble.hash) return Torn(path, "a hash differs");
  uint64_t bytes = 0;
  uint64_t chunks = 0;
  for (const uint64_t tensor : sizes) {
    bytes += tensor;
    chunks += (tensor + kCommitChunkBytes - 1) / kCommitChunkBytes;
  }
  const uint64_t expected = sizeof preamble + sizes.size() * sizeof(uint64_t) +
                            preamble.header_bytes + bytes + chunks * sizeof(uint64_t) +
                            sizeof(Trailer);
  if (expected != *size) return Torn(path, "it has another length than it says");
  commit.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  if (Status s = files_->ReadExactly(file, commit.memory.get(), bytes, path); !s.ok())
    return s.error();
  std::vector<uint64_t> hashes(chunks);
  Trailer trailer;
  if (Status s = files_->ReadExactly(file, hashes.data(), chunks * sizeof(uint64_t), path); !s.ok())
    return s.error();
  if (Status s = files_->ReadExactly(file, &trailer, sizeof trailer, path); !s.ok())
    return s.error();
  if (trailer.end != kEnd || trailer.chunks != chunks || trailer.digest != Digest(preamble, hashes))
    return Torn(path, "a hash differs");
  uint64_t at = 0;
  for (const uint64_t tensor : sizes) {
    commit.tensors.push_back({commit.memory.get() + at, tensor});
    at += tensor;
  }
  size_t chunk = 0;
  Status status = ForChunks(commit.tensors, [&](const ConstBuffer& part) -> Status {
    if (XXH3_64bits(part.data, part.bytes) != hashes[chunk++]) return Torn(path, "a hash differs");
    return {};
  });
  if (!status.ok()) return status.error();
  commit.digest = trailer.digest;
  return commit;
}

}  // namespace troupe::groups
