#include "runtime/shared_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "runtime/process.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemory = "/dev/shm";
constexpr uint64_t kMemoryBytesMin = uint64_t{1} << 30;  // A container's is 64 MiB at first.
constexpr const char* kPrefix = "troupe-";
constexpr const char* kLock = "/host";
constexpr std::array kParts = {"objects", "fresh", "free", "copies", "lives"};
constexpr const char* kLives = "/lives/";
constexpr const char* kSpill = "/spill";
constexpr useconds_t kRetry_us = 10'000;

Error Cannot(const std::string& path, const std::string& why) {
  return {ErrorCode::kUnavailable, "cannot use " + path + " for shared buffers: " + why};
}

std::string Temp() {
  std::error_code error;
  const fs::path temp = fs::temp_directory_path(error);
  return error ? "/tmp" : temp.string();
}

// Where the folders are: every process of a host has to come to the same answer.
std::string Root() {
  struct statvfs info {};
  const bool usable = ::statvfs(kMemory, &info) == 0 && ::access(kMemory, W_OK | X_OK) == 0 &&
                      info.f_blocks * info.f_frsize >= kMemoryBytesMin;
  return usable ? kMemory : Temp();
}

// FNV-1a: names of folders, on which no more depends than that clusters differ.
std::string Digits(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::array<char, 17> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%016llx",
                      static_cast<unsigned long long>(hash));
  return digits.data();
}

std::string Boot() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Those of another boot are on a disk that another host may use just now.
std::string OwnPrefix() {
  return kPrefix + std::to_string(::geteuid()) + "-" + Digits(Boot()).substr(0, 8) + "-";
}

std::string SpillPrefix() { return OwnPrefix() + "spill-"; }

// A folder, no link to one, of this user, and of nobody else's to write to.
Status CheckOwn(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Cannot(path, std::strerror(errno));
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0)
    return Status::Ok();
  return Error{ErrorCode::kPermissionDenied,
               path + " must be a directory of this user alone, and is not; remove it"};
}

// Whether `fd` is still what has this path.
bool IsAt(int fd, const std::string& path) {
  struct stat open {};
  struct stat there {};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         open.st_ino == there.st_ino && open.st_dev == there.st_dev;
}

// Where a folder in memory says that it has put files aside; empty: nowhere, or not as we do.
std::string SpillOf(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path + kSpill, error);
  return error || !target.filename().string().starts_with(SpillPrefix()) ? "" : target.string();
}

// A place on disk for what does not fit; empty if there is none.
std::string MakeSpill(const std::string& path) {
  std::string spill = SpillOf(path);
  if (spill.empty()) {
    spill = Temp() + "/" + SpillPrefix() + "XXXXXX";
    if (::mkdtemp(spill.data()) == nullptr) return "";
    if (::symlink(spill.c_str(), (path + kSpill).c_str()) != 0) {
      ::rmdir(spill.c_str());  // Somebody was quicker.
      spill = SpillOf(path);
    }
  }
  // A cleaner of old files may have taken it.
  if (::mkdir(spill.c_str(), S_IRWXU) != 0 && errno != EEXIST) return "";
  return CheckOwn(spill).ok() ? spill : "";
}

// Nobody is in it: its lock is held alone.
void RemoveLocked(const std::string& path) {
  std::error_code ignored;
  if (const std::string spill = SpillOf(path); CheckOwn(spill).ok()) fs::remove_all(spill, ignored);
  for (const char* file : {kSpill, "/room"}) ::unlink((path + file).c_str());
  for (const char* part : kParts) fs::remove_all(path + "/" + part, ignored);
  ::unlink((path + kLock).c_str());
  ::rmdir(path.c_str());
}

// Whether nobody was in it.
bool RemoveIfEnded(const std::string& path) {
  const int fd = ::open((path + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    if (errno == ENOENT) ::rmdir(path.c_str());  // Made, and not entered: only if it is empty.
    return errno == ENOENT;
  }
  const bool ended = ::flock(fd, LOCK_EX | LOCK_NB) == 0 && IsAt(fd, path + kLock);
  if (ended) RemoveLocked(path);
  ::close(fd);
  return ended;
}

// Whether nobody of this name is in the folder; the lock of one that was goes.
bool NobodyIs(const std::string& path, const std::string& name) {
  const std::string life = path + kLives + name;
  const int fd = ::open(life.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno == ENOENT;
  const bool ended = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (ended) ::unlink(life.c_str());
  ::close(fd);
  return ended;
}

// A file is its owner's, whose name stands in front of its first '.'; one that is written just now
// has a '.' before that.
void RemoveFilesOfEnded(const std::string& path) {
  std::map<std::string, bool> ended;
  const std::string spill = SpillOf(path);
  for (const std::string& folder : {path + "/objects", path + "/fresh", spill}) {
    std::error_code error;
    if (folder.empty() || !CheckOwn(folder).ok()) continue;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const size_t begin = std::min(name.find_first_not_of('.'), name.size());
      const std::string owner = name.substr(begin, name.find('.', begin) - begin);
      const auto [known, is_new] = ended.try_emplace(owner, false);
      if (is_new) known->second = NobodyIs(path, owner);
      if (known->second) ::unlink(it->path().c_str());
    }
  }
  std::error_code error;
  for (fs::directory_iterator it(path + kLives, error), end; !error && it != end;
       it.increment(error)) {
    // One that has no name yet is about to be locked.
    if (const std::string name = it->path().filename().string(); !name.starts_with('.'))
      (void)NobodyIs(path, name);
  }
}

// The random digits in it; empty if nobody has written them yet.
std::string TokenIn(int fd) {
  std::array<char, 64> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  return got > 0 ? std::string(text.data(), static_cast<size_t>(got)) : "";
}

// The lock of a folder, shared with all who are in it, or -1: to be tried again.
Result<int> Lock(const std::string& path) {
  const std::string lock = path + kLock;
  if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return Cannot(path, std::strerror(errno));
  if (const Status own = CheckOwn(path); !own.ok()) {
    if (own.error().code == ErrorCode::kUnavailable) return -1;  // It was removed meanwhile.
    return own.error();
  }
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == ENOENT) return -1;
  if (fd < 0) return Cannot(path, std::strerror(errno));
  if (TokenIn(fd).empty() && ::flock(fd, LOCK_EX | LOCK_NB) == 0 && TokenIn(fd).empty()) {
    const std::string token = RandomId() + RandomId();
    if (::pwrite(fd, token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
      const std::string why = std::strerror(errno);
      ::close(fd);
      return Cannot(path, why);
    }
  }
  if (::flock(fd, LOCK_SH | LOCK_NB) == 0 && IsAt(fd, lock) && !TokenIn(fd).empty()) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

std::string SharedFolder::PathOf(const std::string& cluster) {
  return Root() + "/" + OwnPrefix() + Digits(cluster);
}

Result<std::unique_ptr<SharedFolder>> SharedFolder::Enter(const std::string& path) {
  for (int i = 0; i < kEnterTries; ++i) {
    const Result<int> lock = Lock(path);
    if (!lock.ok()) return lock.error();
    if (*lock < 0) {
      ::usleep(kRetry_us);  // Somebody makes it, or removes it, just now.
      continue;
    }
    (void)CloseOnFork(*lock);
    std::unique_ptr<SharedFolder> folder(
        new SharedFolder(path, TokenIn(*lock) + Digits(Boot()), *lock));
    for (const char* part : kParts) {
      if (::mkdir((path + "/" + part).c_str(), S_IRWXU) != 0 && errno != EEXIST)
        return Cannot(path, std::strerror(errno));
    }
    folder->spill_path_ = MakeSpill(path);
    if (const Status named = folder->TakeName(); !named.ok()) return named.error();
    return folder;
  }
  return Cannot(path, "others make and remove it all the time");
}

// A lock is there under its name only while it is held.
Status SharedFolder::TakeName() {
  const std::string lives = path_ + kLives;
  const std::string fresh = lives + ".new-" + RandomId();
  life_ = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (life_ < 0 || ::flock(life_, LOCK_EX | LOCK_NB) != 0)
    return Cannot(path_, std::strerror(errno));
  (void)CloseOnFork(life_);
  name_ = std::to_string(::getpid()) + "-" + RandomId();
  if (::rename(fresh.c_str(), (lives + name_).c_str()) != 0)
    return Cannot(path_, std::strerror(errno));
  return Status::Ok();
}

void SharedFolder::Sweep() const { RemoveFilesOfEnded(path_); }

void SharedFolder::RemoveEnded() {
  std::error_code error;
  std::vector<std::string> found;
  for (const std::string& root : {std::string(kMemory), Root()}) {
    for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const std::string prefix = OwnPrefix();
      // As PathOf makes them, and nothing else of this user.
      if (name.starts_with(prefix) && name.size() == prefix.size() + 16 &&
          name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos)
        found.push_back(it->path().string());
    }
  }
  for (const std::string& path : found) {
    if (CheckOwn(path).ok() && !RemoveIfEnded(path)) RemoveFilesOfEnded(path);
  }
}

SharedFolder::SharedFolder(std::string path, std::string identity, int lock)
    : path_(std::move(path)), identity_(std::move(identity)), pid_(::getpid()), lock_(lock) {}

SharedFolder::~SharedFolder() {
  if (::getpid() != pid_) return;  // Its copies were closed on fork.
  if (life_ >= 0) {
    ::unlink((path_ + kLives + name_).c_str());
    ForgetOnFork(life_);
    ::close(life_);
  }
  ForgetOnFork(lock_);
  ::close(lock_);
  (void)RemoveIfEnded(path_);
}

}  // namespace troupe
