#include "runtime/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace troupe {

Status CheckPrivateFolder(const std::string& path, const std::string& what) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return Status::Ok();
    return Error{ErrorCode::kUnavailable,
                 "cannot use the " + what + " " + path + ": " + std::strerror(errno)};
  }
  if (!S_ISDIR(info.st_mode)) {
    return Error{ErrorCode::kUnavailable, "the " + what + " " + path + " is not a directory"};
  }
  const bool ours = info.st_uid == ::geteuid() || info.st_uid == 0;
  const bool alone = (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (ours && alone) return Status::Ok();
  return Error{ErrorCode::kPermissionDenied,
               "the " + what + " " + path + " must be yours, and nobody else's to write to: " +
                   (ours ? "others may write to it; run: chmod 700 " + path + ", or choose another"
                         : "user " + std::to_string(info.st_uid) + " owns it; choose another")};
}

Status MakePrivateFolder(const std::string& path, const std::string& what) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  // With its mode from the first moment on, so that nobody is quicker.
  if (!error && ::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    error = std::error_code(errno, std::generic_category());
  if (error) {
    return Error{ErrorCode::kUnavailable,
                 "cannot make the " + what + " " + path + ": " + error.message()};
  }
  return CheckPrivateFolder(path, what);
}

}  // namespace troupe
