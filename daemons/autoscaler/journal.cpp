#include "daemons/autoscaler/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;
using NoteJson = nlohmann::ordered_json;

std::string LineOf(double at_s, const std::string& life, const FleetNote& note) {
  NoteJson json;
  json["at"] = std::round(at_s * 1000) / 1000;
  json["life"] = life;
  json["kind"] = FleetNoteKindName(note.kind);
  const auto add = [&json](const char* name, const std::string& value) {
    if (!value.empty()) json[name] = value.substr(0, kNoteTextMax);
  };
  add("node", note.node);
  add("pool", note.pool);
  add("group", note.group);
  add("text", note.text);
  if (!note.figures.empty()) json["figures"] = NoteJson::parse(note.figures, nullptr, false);
  return json.dump(-1, ' ', false, NoteJson::error_handler_t::replace) + "\n";
}

}  // namespace

std::string DefaultJournalPath(const std::string& cluster) {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::string root;
  if (state != nullptr && state[0] == '/') {
    root = state;
  } else if (home != nullptr && home[0] == '/') {
    root = std::string(home) + "/.local/state";
  } else {
    return "";
  }
  return root + "/troupe/fleets/" + cluster + ".jsonl";
}

FleetJournal::FleetJournal(std::string path, std::string life,
                           std::function<void(const std::string&)> say, size_t bytes_max)
    : path_(std::move(path)), life_(std::move(life)), say_(std::move(say)), bytes_max_(bytes_max) {}

FleetJournal::~FleetJournal() {
  if (fd_ >= 0) ::close(fd_);
}

void FleetJournal::GiveUp(const std::string& why) {
  say_("no journal is kept, and `troupe why` will not know this cluster: " + path_ + ": " + why);
  path_.clear();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool FleetJournal::Open() {
  std::error_code error;
  const fs::path folder = fs::path(path_).parent_path();
  if (!folder.empty()) {
    // Only one of ours: --journal may name a file in a folder of everybody.
    if (fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat known {};
  if (fd_ < 0 || ::fstat(fd_, &known) != 0) {
    GiveUp(std::strerror(errno));
    return false;
  }
  if (!S_ISREG(known.st_mode)) {
    GiveUp("it is no file");
    return false;
  }
  bytes_ = static_cast<size_t>(known.st_size);
  return true;
}

void FleetJournal::Write(double at_s, const FleetNote& note) {
  if (path_.empty()) return;
  std::string line = LineOf(at_s, life_, note);
  if (note.kind == FleetNoteKind::kStart) start_ = line;
  if (fd_ < 0 && !Open()) return;
  if (bytes_ > 0 && bytes_ + line.size() > bytes_max_) {
    if (::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) return GiveUp(std::strerror(errno));
    ::close(std::exchange(fd_, -1));
    if (!Open()) return;
    if (note.kind != FleetNoteKind::kStart) line = start_ + line;
  }
  // One write: lines of two autoscalers on one file do not mix.
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()))
    return GiveUp(written < 0 ? std::strerror(errno) : "it is full");
  bytes_ += line.size();
}

}  // namespace troupe::daemons
