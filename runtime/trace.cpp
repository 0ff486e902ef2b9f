#include "runtime/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "runtime/log.h"
#include "runtime/process.h"

namespace troupe::trace {

std::atomic<bool> internal::on{false};

namespace {

using Json = nlohmann::json;

// Above every thread id, so that a track is never taken for a thread.
constexpr int64_t kFirstTrackId = 1'000'000'000;

double Microseconds(Time t) { return static_cast<double>(t.ns) / 1e3; }

std::string FirstLine(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

class Writer {
 public:
  Writer(int fd, std::string_view role) : fd_(fd), pid_(::getpid()) {
    const auto unix_ns = std::chrono::duration_cast<nanoseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const Time now = SteadyClock().Now();
    Metadata(0, "process_name",
             {{"name", std::string(role) + " " + std::to_string(pid_)}, {"host", HostName()}});
    // Files of one boot share a clock; those of others are brought together by the time of day.
    Metadata(0, "troupe_clock",
             {{"boot", FirstLine("/proc/sys/kernel/random/boot_id")},
              {"unix_us", static_cast<double>(unix_ns.count()) / 1e3},
              {"ts_us", Microseconds(now)}});
  }

  void Write(Json event) {
    thread_local bool named = false;
    const bool on_thread = !event.contains("tid");
    if (on_thread) event["tid"] = ::gettid();
    event["pid"] = pid_;
    std::lock_guard lock(mu_);
    if (on_thread && !named) {
      named = true;
      char name[16] = {};
      (void)pthread_getname_np(pthread_self(), name, sizeof name);
      Metadata(::gettid(), "thread_name", {{"name", name}});
    }
    Append(event);
  }

  // Ends what the track shows and begins `event`, if it has a name.
  void Enter(std::string_view track, Json event) {
    std::lock_guard lock(mu_);
    Track& state = Find(track);
    if (state.open) {
      Append({{"ph", "E"}, {"pid", pid_}, {"tid", state.id}, {"ts", event["ts"]}});
    }
    state.open = event.contains("name");
    if (!state.open) return;
    event["pid"] = pid_;
    event["tid"] = state.id;
    Append(event);
  }

  int64_t TrackId(std::string_view track) {
    std::lock_guard lock(mu_);
    return Find(track).id;
  }

 private:
  struct Track {
    int64_t id = 0;
    bool open = false;
  };

  Track& Find(std::string_view name) {
    const auto known = tracks_.find(name);
    if (known != tracks_.end()) return known->second;
    if (tracks_.size() >= kTracksMax) return tracks_.begin()->second;
    const int64_t id = kFirstTrackId + int64_t{pid_} * static_cast<int64_t>(kTracksMax) +
                       static_cast<int64_t>(tracks_.size());
    Metadata(id, "thread_name", {{"name", name}});
    return tracks_.emplace(std::string(name), Track{id, false}).first->second;
  }

  void Metadata(int64_t tid, const char* what, Json args) {
    Append({{"ph", "M"}, {"pid", pid_}, {"tid", tid}, {"name", what}, {"args", std::move(args)}});
  }

  // One write per event: whatever ends the process, what was written is a list that readers accept
  // without its closing bracket.
  void Append(const Json& event) {
    const std::string text = (written_ == 0 ? "[\n" : ",\n") +
                             event.dump(-1, ' ', false, Json::error_handler_t::replace);
    const bool fits = written_ + text.size() <= kTraceBytesMax;
    if (!fits || ::write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      internal::on.store(false);
      LogWarning("tracing ends: ", fits ? std::strerror(errno) : "the file is at its limit");
      return;
    }
    written_ += text.size();
  }

  const int fd_;
  const int pid_;
  std::mutex mu_;
  size_t written_ = 0;
  std::map<std::string, Track, std::less<>> tracks_;
};

// Lives to the end of the process: threads may trace until then.
Writer* writer = nullptr;

Json Event(const char* phase, std::string_view name, Time at, Args args) {
  Json event{{"ph", phase}, {"name", name}, {"cat", "troupe"}, {"ts", Microseconds(at)}};
  for (const auto& [key, value] : args) {
    std::visit([&, key = key](const auto& v) { event["args"][key] = v; }, value);
  }
  return event;
}

}  // namespace

void Start(std::string_view role) {
  static std::once_flag once;
  std::call_once(once, [&] {
    const char* dir = std::getenv("TROUPE_TRACE_DIR");
    if (dir == nullptr || *dir == '\0') return;
    std::error_code ignored;
    std::filesystem::create_directories(dir, ignored);
    const std::string path = std::string(dir) + "/" + std::string(role) + "-" +
                             std::to_string(::getpid()) + ".trace.json";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) {
      LogWarning("no trace: cannot write ", path, ": ", std::strerror(errno),
                 "; set TROUPE_TRACE_DIR to a writable folder");
      return;
    }
    writer = new Writer(fd, role);
    internal::on.store(true, std::memory_order_release);
  });
}

void Instant(std::string_view name, Args args) {
  if (!internal::on.load(std::memory_order_acquire)) return;
  Json event = Event("i", name, SteadyClock().Now(), args);
  event["s"] = "t";
  writer->Write(std::move(event));
}

void Complete(std::string_view name, Time begin, Args args, std::string_view track) {
  if (!internal::on.load(std::memory_order_acquire)) return;
  Json event = Event("X", name, begin, args);
  event["dur"] = static_cast<double>((SteadyClock().Now() - begin).count()) / 1e3;
  if (!track.empty()) event["tid"] = writer->TrackId(track);
  writer->Write(std::move(event));
}

void Enter(std::string_view track, std::string_view name, Args args) {
  if (!internal::on.load(std::memory_order_acquire)) return;
  Json event = Event("B", name, SteadyClock().Now(), args);
  if (name.empty()) event.erase("name");
  writer->Enter(track, std::move(event));
}

void AsyncBegin(std::string_view name, uint64_t id, Args args) {
  if (!internal::on.load(std::memory_order_acquire)) return;
  Json event = Event("b", name, SteadyClock().Now(), args);
  event["id2"] = {{"local", id}};  // Of this process; `id` would be shared by all.
  writer->Write(std::move(event));
}

void AsyncEnd(std::string_view name, uint64_t id, Args args) {
  if (!internal::on.load(std::memory_order_acquire)) return;
  Json event = Event("e", name, SteadyClock().Now(), args);
  event["id2"] = {{"local", id}};  // Of this process; `id` would be shared by all.
  writer->Write(std::move(event));
}

}  // namespace troupe::trace
