// Files of CURVE keys: a public and a secret one, in lines of their own, for their owner only.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/transport.h"

namespace troupe {
namespace {

// Writes a new file that appears under its name whole: others wait for it to be there, and read it
// at once. Errors: kInvalidArgument if somebody was quicker.
Status CreateWhole(const std::string& path, const std::string& text) {
  const auto failed = [&] {
    return Error{ErrorCode::kUnavailable,
                 "cannot create key file " + path + ": " + std::strerror(errno)};
  };
  // Nameless until it is whole, so that a kill in between leaves no secret behind; not every file
  // system can do so.
  const std::string folder = std::filesystem::absolute(path).parent_path();
  std::string draft;
  int fd = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
  std::string source = "/proc/self/fd/" + std::to_string(fd);
  if (fd < 0) {
    draft = path + ".XXXXXX";
    fd = ::mkostemp(draft.data(), O_CLOEXEC);  // Mode 0600.
    if (fd < 0) return failed();
    source = draft;
  }
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool linked =
      written && ::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
  const int problem = errno;
  if (!draft.empty()) ::unlink(draft.c_str());
  ::close(fd);
  if (linked) return Status::Ok();
  if (!written)
    return Error{ErrorCode::kResourceExhausted, "cannot write key file " + path + ": disk full?"};
  if (problem == EEXIST) return Error{ErrorCode::kInvalidArgument, path + " exists"};
  errno = problem;
  return failed();
}

}  // namespace

Result<CurveKeys> LoadCurveKeys(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{ErrorCode::kNotFound,
                 "no key file at " + path + "; copy it from the head's machine"};
  }
  if ((info.st_mode & 077) != 0) {
    return Error{ErrorCode::kPermissionDenied,
                 "key file " + path + " is readable by others; run: chmod 600 " + path};
  }
  std::ifstream in(path);
  CurveKeys keys;
  if (!(in >> keys.public_key >> keys.secret_key) || keys.public_key.size() != 40 ||
      keys.secret_key.size() != 40) {
    return Error{ErrorCode::kCorrupt, "key file " + path + " does not hold two 40-character keys"};
  }
  return keys;
}

Result<CurveKeys> LoadOrCreateCurveKeys(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return LoadCurveKeys(path);
  Result<CurveKeys> keys = GenerateCurveKeys();
  if (!keys.ok()) return keys;
  const Status created = CreateWhole(path, keys->public_key + "\n" + keys->secret_key + "\n");
  if (created.ok()) return keys;
  if (created.error().code == ErrorCode::kInvalidArgument) return LoadCurveKeys(path);
  return created.error();
}

}  // namespace troupe
