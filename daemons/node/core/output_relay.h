// OutputRelay: what a node tells the head of its workers' output, within bounds that nothing a
// worker prints can move.
//
// Each worker has a budget of bytes a second; so much waits for the head at most, and so much may
// be on its way there before the head has said that it took it. What is over is counted, not sent:
// the whole output is in the worker's log file, if the node keeps one. Of a line that is written
// over again and again with carriage returns, as progress bars are, the newest state is told once a
// kProgressPeriod, and the last one when the line ends.
// Pure: time is handed in. Thread: owner only.
// Invariants: OR-1 lines of a stream are told in order, each at most once, after the number of
// those dropped before. OR-2 lines told + lines dropped = lines taken, once a worker has ended.
// Limits: below.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemons/protocol/messages.h"
#include "runtime/clock.h"
#include "runtime/token_bucket.h"

namespace troupe::daemons {

inline constexpr size_t kOutputLineBytesMax = 16 << 10;
inline constexpr size_t kOutputLineCost = 32;               // What a line counts beside its bytes.
inline constexpr size_t kOutputBytesPerSecond = 256 << 10;  // Of one worker,
inline constexpr size_t kOutputBurstBytes = 1 << 20;        // after it has been silent.
inline constexpr size_t kOutputFrameBytes = 64 << 10;
inline constexpr size_t kOutputWaitingBytesMax = 1 << 20;  // Of all workers of a node.
inline constexpr size_t kOutputWindowBytes = 256 << 10;    // Sent, and not yet taken.
inline constexpr size_t kLastLinesKept = 20;
inline constexpr Duration kProgressPeriod = seconds(1);

class OutputRelay {
 public:
  // `file`: where all of its output is; empty: nowhere.
  void Begin(const std::string& process, const std::string& file);
  // What it has printed.
  void Add(Time now, const std::string& process, bool is_stderr, std::string_view bytes);
  // Its file lacks something.
  void NotInFile(const std::string& process);
  // What waits of it leaves now, the window or not: its end is told next. Returns the frames, and
  // the last lines of its stderr.
  std::pair<std::vector<WorkerOutput>, std::vector<std::string>> End(Time now,
                                                                     const std::string& process);
  // What is to be sent next; nothing while the window is full.
  std::optional<WorkerOutput> Next();
  // Lets what was dropped show, also of a worker that prints nothing more, and progress.
  void Tell(Time now);
  // The head has taken all up to this one, or it was lost.
  void Taken(uint64_t number);
  // The last that is on its way; 0: none is.
  [[nodiscard]] uint64_t on_the_way() const;
  [[nodiscard]] size_t waiting_bytes() const { return waiting_bytes_; }
  [[nodiscard]] uint64_t dropped() const { return dropped_; }  // Of all, since the beginning.

 private:
  struct Source {
    std::string file;
    TokenBucket budget{kOutputBytesPerSecond, kOutputBurstBytes};
    bool skipping = false;
    std::array<std::string, 2> partial;
    struct Progress {
      bool on = false;     // The line has been written over.
      std::string before;  // What was there last, if nothing has been written since.
      std::string told;
      Time told_at{};
      bool any = false;  // Was told, ever.
    };
    std::array<Progress, 2> progress;
    uint64_t dropped = 0;  // Not told yet.
    std::deque<std::string> last_lines;
  };
  struct Item {
    WorkerOutput output;
    size_t bytes = 0;
  };

  void Line(Time now, const std::string& process, Source& source, bool is_stderr,
            std::string_view line);
  // Takes what the line is now; it may be told, or written over.
  static std::string TakeState(Source& source, bool is_stderr);
  void TellProgress(Time now, const std::string& process, Source& source, bool is_stderr);
  void Skip(Source& source, bool is_stderr, std::string_view bytes);
  void Remember(Source& source, bool is_stderr, std::string_view line);
  void Drop(Source& source, uint64_t lines);
  [[nodiscard]] Item& Open(const std::string& process, Source& source, bool is_stderr);
  [[nodiscard]] WorkerOutput Send(Item item);

  std::map<std::string, Source> sources_;
  std::deque<Item> waiting_;
  size_t waiting_bytes_ = 0;
  std::deque<std::pair<uint64_t, size_t>> sent_;  // Number and bytes.
  size_t sent_bytes_ = 0;
  uint64_t next_ = 1;
  uint64_t dropped_ = 0;
};

}  // namespace troupe::daemons
