// Time as the rest of the system sees it: a monotonic instant in nanoseconds, and a clock that can
// be faked.
//
// Pure cores never read a clock; they are handed a Time. Shells read it from a Clock so that tests
// can move it.
// Thread: any.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>
#include <mutex>

namespace troupe {

using Duration = std::chrono::nanoseconds;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Nanoseconds since an arbitrary start that is the same for all processes of one machine
// (CLOCK_MONOTONIC).
struct Time {
  int64_t ns = 0;

  static constexpr Time Never() { return Time{std::numeric_limits<int64_t>::max()}; }
  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Time operator+(Time t, Duration d) {
    return t == Never() ? t : Time{t.ns + d.count()};
  }
  friend constexpr Time operator-(Time t, Duration d) {
    return t == Never() ? t : Time{t.ns - d.count()};
  }
  friend constexpr Duration operator-(Time a, Time b) { return Duration(a.ns - b.ns); }
};

constexpr double ToMilliseconds(Duration d) { return static_cast<double>(d.count()) / 1e6; }
constexpr double ToSeconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual Time Now() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] Time Now() const override {
    return Time{
        std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count()};
  }
};

// A clock that stands still until a test moves it.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(Time start = Time{1'000'000'000}) : now_(start) {}
  [[nodiscard]] Time Now() const override {
    std::lock_guard lock(mu_);
    return now_;
  }
  void Advance(Duration d) {
    std::lock_guard lock(mu_);
    now_ = now_ + d;
  }

 private:
  mutable std::mutex mu_;
  Time now_;
};

}  // namespace troupe
