#include "runtime/curve_key_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

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

constexpr size_t kKeyBytes = 40;  // In Z85.

std::string HeadFile(const std::string& path) { return path + ".head"; }

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// What a file says; a pair or key that it does not name is empty.
struct KeyText {
  CurveKeys client;
  CurveKeys head;
  bool shared = false;
};

Status Usable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{ErrorCode::kNotFound,
                 "no key file at " + path + "; copy it from the head's machine"};
  }
  if ((info.st_mode & 077) == 0) return Status::Ok();
  return Error{ErrorCode::kPermissionDenied,
               "key file " + path + " is readable by others; run: chmod 600 " + path};
}

// Lines "client PUBLIC SECRET" and "head PUBLIC [SECRET]"; of an earlier release one pair alone.
Result<KeyText> ReadKeyFile(const std::string& path) {
  if (Status s = Usable(path); !s.ok()) return s.error();
  std::ifstream in(path);
  KeyText keys;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    CurveKeys pair;
    fields >> name >> pair.public_key >> pair.secret_key;
    if (name == "client") keys.client = pair;
    if (name == "head") keys.head = pair;
    if (name.size() == kKeyBytes && !keys.shared) {
      (keys.client.public_key.empty() ? keys.client.public_key : keys.client.secret_key) = name;
      keys.shared = !keys.client.secret_key.empty();
      if (keys.shared) keys.head = keys.client;
    }
  }
  const auto good = [](const std::string& key) { return key.size() == kKeyBytes; };
  if (good(keys.client.public_key) && good(keys.client.secret_key) && good(keys.head.public_key) &&
      (keys.head.secret_key.empty() || good(keys.head.secret_key))) {
    return keys;
  }
  return Error{ErrorCode::kCorrupt, "key file " + path +
                                        " does not hold the keys of a cluster; copy it again "
                                        "from the head's machine"};
}

// Whatever is there by now, if somebody was quicker.
Status CreateUnlessThere(const std::string& path, const std::string& text) {
  Status created = CreateWhole(path, text);
  if (!created.ok() && created.error().code == ErrorCode::kInvalidArgument) return Status::Ok();
  return created;
}

}  // namespace

Result<ClientKeys> LoadClientKeys(const std::string& path) {
  const Result<KeyText> keys = ReadKeyFile(path);
  if (!keys.ok()) return keys.error();
  return ClientKeys{keys->client, keys->head.public_key};
}

// The head's file comes first and has all that the other one says, so that whoever makes them at
// the same time ends with the same two, and a kill in between costs nothing.
Result<HeadKeys> LoadOrCreateHeadKeys(const std::string& path) {
  const std::string head_file = HeadFile(path);
  // In this order: who finds the second file of a pair that is being made finds the first one too.
  if (Exists(path) && !Exists(head_file)) {
    const Result<KeyText> old = ReadKeyFile(path);
    if (!old.ok()) return old.error();
    if (old->shared) return HeadKeys{old->head, old->client, {}, true};
    return Error{ErrorCode::kNotFound,
                 "key file " + path + " is for nodes and programs; the head's own, " + head_file +
                     ", is not here: start the head where that was made, or name another "
                     "--key-file to begin a cluster of its own"};
  }
  if (!Exists(head_file)) {
    const Result<CurveKeys> head = GenerateCurveKeys();
    const Result<CurveKeys> client = GenerateCurveKeys();
    if (!head.ok() || !client.ok()) return head.ok() ? client.error() : head.error();
    const Status made = CreateUnlessThere(
        head_file, "head " + head->public_key + " " + head->secret_key + "\nclient " +
                       client->public_key + " " + client->secret_key + "\n");
    if (!made.ok()) return made.error();
  }
  const Result<KeyText> keys = ReadKeyFile(head_file);
  if (!keys.ok()) return keys.error();
  if (keys->head.secret_key.empty()) {
    return Error{ErrorCode::kCorrupt, "key file " + head_file + " has no secret key of the head"};
  }
  HeadKeys all{keys->head, keys->client, {keys->client.public_key}, false};
  const Status made = CreateUnlessThere(path, ClientKeyText(all));
  if (!made.ok()) return made.error();
  const Result<ClientKeys> given = LoadClientKeys(path);
  if (!given.ok()) return given.error();
  if (given->head_key != keys->head.public_key ||
      given->own.public_key != keys->client.public_key) {
    return Error{ErrorCode::kInvalidArgument,
                 "key files " + path + " and " + head_file +
                     " are of two clusters; remove the first one, it is written again"};
  }
  return all;
}

std::string ClientKeyText(const HeadKeys& keys) {
  return "client " + keys.client.public_key + " " + keys.client.secret_key + "\nhead " +
         keys.own.public_key + "\n";
}

Status WriteClientKeys(const std::string& path, const std::string& text) {
  if (const Status made = CreateUnlessThere(path, text); !made.ok()) return made;
  std::ifstream in(path);
  const std::string there{std::istreambuf_iterator<char>(in), {}};
  if (there == text) return Status::Ok();
  return Error{ErrorCode::kAlreadyExists,
               "key file " + path + " is of another cluster; remove it, or name another one"};
}

}  // namespace troupe
