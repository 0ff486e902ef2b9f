// A daemon that hangs is found by who started it: systemd's protocol of watchdogs (sd_notify).
//
// The daemon's loop sends "WATCHDOG=1" to the socket that NOTIFY_SOCKET names, three times in the
// time that WATCHDOG_USEC gives. So a unit of systemd with WatchdogSec= watches a head or node as
// troupe-local does.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/clock.h"
#include "runtime/event_loop.h"
#include "runtime/result.h"

namespace troupe {

// Takes both variables out of the environment, so that what is started from here does not speak for
// this process. Nothing to do without them. Thread: main, before others start.
class WatchdogBeat {
 public:
  WatchdogBeat();
  ~WatchdogBeat();
  WatchdogBeat(const WatchdogBeat&) = delete;
  WatchdogBeat& operator=(const WatchdogBeat&) = delete;
  // Beats as long as the loop goes round, which outlives this or is stopped before.
  void Start(EventLoop& loop);

 private:
  struct Beating;
  std::shared_ptr<Beating> beating_;  // None: nobody watches.
};

// Where daemons on this host beat: a file in a private folder, which a cleaner of temporary files
// may take and which is then made anew. Thread: one.
class WatchdogSocket {
 public:
  static constexpr int kReadsMax = 64;  // At once; three beats come in a limit.

  // kUnavailable with the reason.
  [[nodiscard]] static Result<std::unique_ptr<WatchdogSocket>> Open(const std::string& path);
  ~WatchdogSocket();
  WatchdogSocket(const WatchdogSocket&) = delete;
  WatchdogSocket& operator=(const WatchdogSocket&) = delete;
  // The processes that have beaten since the last call, as the kernel names them. Nothing: it
  // cannot be told, because beats may have been lost.
  [[nodiscard]] std::optional<std::set<int>> Beaten();

 private:
  WatchdogSocket(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  const std::string path_;
};

// When a party that makes itself heard is to be given up. Pure. Thread: one.
class Watchdog {
 public:
  explicit Watchdog(Duration limit) : limit_(limit) {}  // Zero: never.
  void Begin(Time now);
  void Heard(Time now) {
    heard_ = now;
    told_ = false;
  }
  // True once per silence, when nothing was heard for the limit. Time in which this was not asked
  // for long does not count: then it is we who were stopped.
  [[nodiscard]] bool Expired(Time now);

 private:
  Duration limit_;
  Time heard_{};
  Time asked_{};
  bool told_ = false;
};

}  // namespace troupe
