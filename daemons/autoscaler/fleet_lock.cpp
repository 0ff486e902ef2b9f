#include "daemons/autoscaler/fleet_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "daemons/autoscaler/journal.h"

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;
using HolderJson = nlohmann::json;

constexpr size_t kHolderBytesMax = 8192;

FleetHolder HolderIn(int fd) {
  std::array<char, kHolderBytesMax> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  const auto json = HolderJson::parse(
      std::string_view(text.data(), size > 0 ? static_cast<size_t>(size) : 0), nullptr, false);
  FleetHolder holder;
  if (!json.is_object()) return holder;  // Empty, or somebody has written into it.
  const auto word = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  holder.pid = static_cast<int64_t>(number("pid"));
  holder.since_s = number("since");
  holder.host = word("host");
  holder.life = word("life");
  holder.file = word("file");
  return holder;
}

std::string WhenText(double unix_s) {
  const auto seconds = static_cast<time_t>(unix_s);
  std::tm parts{};
  char text[32] = "";
  if (::localtime_r(&seconds, &parts) != nullptr)
    (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

Error Unlockable(const std::string& path) {
  return {ErrorCode::kUnavailable, path + ": " + std::strerror(errno)};
}

}  // namespace

FleetLock::~FleetLock() {
  if (fd_ >= 0) ::close(fd_);
}

FleetLock& FleetLock::operator=(FleetLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(before_, other.before_);
  return *this;
}

Result<FleetLock> FleetLock::Take(const std::string& path, const FleetHolder& mine) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  FleetLock lock;
  lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock.fd_ < 0) return Unlockable(path);
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Unlockable(path);
    const FleetHolder holder = HolderIn(lock.fd_);
    if (holder.pid == 0) return Error{ErrorCode::kAlreadyExists, "its holder is ending"};
    return Error{ErrorCode::kAlreadyExists,
                 "process " + std::to_string(holder.pid) + " of " + holder.host +
                     " holds it since " + WhenText(holder.since_s) + " (" + holder.file + ")" +
                     (holder.file == mine.file ? "" : "; `name` tells two clusters apart")};
  }
  lock.before_ = HolderIn(lock.fd_).life;
  const std::string text = HolderJson{
      {"pid", mine.pid},
      {"host", mine.host},
      {"life", mine.life.empty() ? lock.before_ : mine.life},
      {"file", mine.file},
      {"since", mine.since_s}}.dump(-1, ' ', false, HolderJson::error_handler_t::replace);
  if (::ftruncate(lock.fd_, 0) != 0 ||
      ::pwrite(lock.fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return Unlockable(path);
  return lock;
}

Result<FleetHolder> FleetLock::HolderOf(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return Error{ErrorCode::kNotFound, "no cluster is held here"};
  FleetHolder holder = HolderIn(fd);
  holder.held = ::flock(fd, LOCK_SH | LOCK_NB) != 0;
  ::close(fd);
  if (!holder.held && holder.life.empty())
    return Error{ErrorCode::kNotFound, "no cluster is held here"};
  return holder;
}

void FleetLock::LeaveNothing() {
  if (fd_ >= 0) (void)!::ftruncate(fd_, 0);
}

std::string FleetLockPath(const std::string& cluster) {
  const std::string journal = DefaultJournalPath(cluster);
  return journal.empty() ? "" : fs::path(journal).replace_extension(".lock").string();
}

}  // namespace troupe::daemons
