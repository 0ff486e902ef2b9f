// Tracing: what a process did when, as Chrome trace events that Perfetto and chrome://tracing show.
//
// With TROUPE_TRACE_DIR=DIR every process writes DIR/<role>-<pid>.trace.json, one write per event,
// so that the file of a killed process holds all but the event it was killed in; `troupe trace DIR`
// merges them. Times are CLOCK_MONOTONIC in microseconds; the first event tells how that clock
// relates to the others'. Cost when off: one relaxed load. Arguments that allocate are for callers
// that asked On() before.
// Thread: any.
// Limits: kTraceBytesMax per process, then nothing more is written; kTracksMax tracks.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "runtime/clock.h"

namespace troupe::trace {

inline constexpr size_t kTraceBytesMax = size_t{64} << 20;
inline constexpr size_t kTracksMax = 64;

using Value = std::variant<int64_t, std::string>;
using Args = std::initializer_list<std::pair<const char*, Value>>;

namespace internal {
extern std::atomic<bool> on;
}
[[nodiscard]] inline bool On() { return internal::on.load(std::memory_order_relaxed); }

// Starts tracing if TROUPE_TRACE_DIR is set; the first role of a process counts. A folder or file
// that cannot be made is one warning, and the process goes on untraced.
void Start(std::string_view role);

// Something that has no length, on the calling thread.
void Instant(std::string_view name, Args args = {});
// Something that began at `begin` and ends now; on the calling thread, or on a named track.
void Complete(std::string_view name, Time begin, Args args = {}, std::string_view track = "");
// Ends what the named track shows, and begins `name`; an empty name only ends.
void Enter(std::string_view track, std::string_view name, Args args = {});
// Both ends of something that threads hand on; `id` tells it apart from others of its name.
void AsyncBegin(std::string_view name, uint64_t id, Args args = {});
void AsyncEnd(std::string_view name, uint64_t id, Args args = {});

// A scope of the calling thread.
class Span {
 public:
  explicit Span(const char* name) : name_(On() ? name : nullptr) {
    if (name_ != nullptr) begin_ = SteadyClock().Now();
  }
  ~Span() {
    if (name_ != nullptr) Complete(name_, begin_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* name_;
  Time begin_{};
};

}  // namespace troupe::trace
