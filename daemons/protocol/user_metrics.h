// What user code counts in its process, and the head's answer.
//
// A process tells the values that have changed, since it began and not since the last word: a word
// that is lost, or comes twice, does no harm. The answer says which head has taken what.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

inline constexpr uint8_t kFrameUserMetrics = 27;
inline constexpr uint8_t kFrameUserMetricsTaken = 28;

enum class UserMetricKind : uint8_t { kCounter, kGauge, kHistogram };
constexpr UserMetricKind LastValue(UserMetricKind) { return UserMetricKind::kHistogram; }

struct UserSeries {
  UserMetricKind kind = UserMetricKind::kCounter;
  std::string name;
  std::string help;
  std::map<std::string, std::string> tags;
  std::vector<double> bounds;  // Of a histogram: upper ends of its buckets, ascending.
  // One value; of a histogram how many fell into each bucket and above the last, and their sum.
  std::vector<double> values;
  template <class A>
  void Fields(A& a) {
    a(kind, name, help, tags, bounds, values);
  }
};

struct UserMetrics {
  // Begins at 0. One that the head has taken for dead goes on as the next, and counts from there.
  uint64_t life = 0;
  uint64_t number = 0;  // Counts up in each life.
  std::vector<UserSeries> series;
  template <class A>
  void Fields(A& a) {
    a(life, number, series);
  }
};

struct UserMetricsTaken {
  std::string log;       // Which run of the head. Another one has nothing of what came before.
  uint64_t life = 0;     // As asked.
  uint64_t number = 0;   // The last that it has taken of this life.
  bool wanted = false;   // Somebody can read them; else nothing is kept.
  bool ended = false;    // This life was taken for dead.
  uint64_t refused = 0;  // Series that had no room or did not fit what others tell, in all.
  std::string reason;    // Of the last of these.
  template <class A>
  void Fields(A& a) {
    a(log, life, number, wanted, ended, refused, reason);
  }
};

}  // namespace troupe
