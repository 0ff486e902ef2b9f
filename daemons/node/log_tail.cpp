#include "daemons/node/log_tail.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace troupe::daemons {

Result<std::string> LogPath(const std::string& log_dir, const std::string& log) {
  // It becomes a part of a path: nothing may lead out of the directory.
  const bool plain = !log.empty() && log.size() <= 128 && std::ranges::all_of(log, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  });
  if (!plain) return Error{ErrorCode::kInvalidArgument, "\"" + log + "\" is no name of a log"};
  if (log_dir.empty()) {
    return Error{ErrorCode::kNotFound,
                 "this node keeps no logs: it was started without --log-dir (`troupe start` "
                 "gives it one)"};
  }
  return log_dir + "/" + log + ".log";
}

namespace {

// The end of one file, `bytes_max` of it at most; nothing if there is none.
std::optional<std::string> ReadEnd(const std::string& path, size_t bytes_max) {
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return std::nullopt;
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t from = std::max<int64_t>(0, size - static_cast<int64_t>(bytes_max));
  std::string text(static_cast<size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

}  // namespace

Result<std::string> ReadTail(const std::string& path, size_t lines) {
  std::optional<std::string> found = ReadEnd(path, kLogTailBytesMax);
  if (!found) {
    return Error{ErrorCode::kNotFound, "cannot read the log " + path + ": " + std::strerror(errno)};
  }
  std::string text = std::move(*found);
  if (text.size() < kLogTailBytesMax) {  // What was before it began anew (LogFile).
    text.insert(0, ReadEnd(path + ".1", kLogTailBytesMax - text.size()).value_or(""));
  }
  size_t begin = text.size();  // Of the lines that stay.
  for (; lines > 0 && begin > 0; --lines) {
    // The byte before it ends the line before, or is the last of a file without an end of line.
    const size_t mark = begin < 2 ? std::string::npos : text.rfind('\n', begin - 2);
    begin = mark == std::string::npos ? 0 : mark + 1;
  }
  text.erase(0, begin);
  return text;
}

}  // namespace troupe::daemons
