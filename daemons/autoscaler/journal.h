// FleetJournal: what an autoscaler did and why, as lines of JSON in a file that outlives it.
// `troupe why` reads it.
//
// A file holds the lives of one cluster name, one after the other; the fields of a line are
// "at" (seconds since 1970), "life", "kind", and "node", "pool", "group", "text" and "figures" (an
// object) where they say something. It is for its owner only.
// Thread: one. Nothing waits for it: what cannot be written is given up, and said once.
// Limits: kJournalBytesMax per file, and one file before it (".1"); kNoteTextMax per text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "autoscaler/fleet_note.h"

namespace troupe::daemons {

inline constexpr size_t kJournalBytesMax = 16 << 20;
inline constexpr size_t kNoteTextMax = 2048;

// Of a cluster of that name: in $XDG_STATE_HOME or ~/.local/state, "troupe/fleets/NAME.jsonl".
[[nodiscard]] std::string DefaultJournalPath(const std::string& cluster);

class FleetJournal {
 public:
  // Empty path: nothing is kept. `say` is told of trouble.
  FleetJournal(std::string path, std::string life, std::function<void(const std::string&)> say,
               size_t bytes_max = kJournalBytesMax);
  ~FleetJournal();
  FleetJournal(const FleetJournal&) = delete;
  FleetJournal& operator=(const FleetJournal&) = delete;

  // `at_s`: since 1970.
  void Write(double at_s, const FleetNote& note);

 private:
  bool Open();
  void GiveUp(const std::string& why);

  std::string path_;
  const std::string life_;
  const std::function<void(const std::string&)> say_;
  const size_t bytes_max_;
  int fd_ = -1;
  size_t bytes_ = 0;   // In the file.
  std::string start_;  // The line that began this life; a new file begins with it.
};

}  // namespace troupe::daemons
