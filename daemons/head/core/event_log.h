// EventLog: the events of one run on their way to its driver, as fast as that takes them.
//
// The driver says what it has seen and how much more it wants; so much is sent and no more, large
// payloads in parts. Output that does not fit any more is counted, and told as one line when there
// is room again. No other event is dropped for its sake.
// Others may look on; nothing waits for them, and what they are too slow for they miss. While
// nobody reads a log that is kept for later, the newest of it is kept, and all results.
// Pure: time is handed in. Thread: owner only.
// Limits: below, of one run.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemons/head/core/spool.h"
#include "daemons/protocol/messages.h"
#include "runtime/clock.h"

namespace troupe::daemons {

inline constexpr size_t kRunEventsMax = 50'000;                // Then the oldest go, seen or not.
inline constexpr size_t kRunEventsBytesMax = size_t{4} << 20;  // Then those that were seen go.
inline constexpr size_t kRunOutputBytesMax = size_t{2} << 20;  // Of output not seen yet.
inline constexpr size_t kEventWindowBytes = 512 << 10;         // Sent, and not yet seen.
inline constexpr size_t kEventPartBytes = 128 << 10;           // Of one frame.
inline constexpr Duration kEventsRepeat = seconds(1);          // Without a word that more was seen.
inline constexpr uint64_t kUnattendedFileBytesMax = uint64_t{256} << 20;  // But for results.
inline constexpr size_t kWatchersMax = 16;
inline constexpr Duration kWatcherLease = seconds(15);  // Who is silent so long does not look on.

class EventLog {
 public:
  // With the payload in `file`, if there is one.
  void Add(RunEvent event, std::shared_ptr<const SpoolFile> file = nullptr);
  // `lines` of output that make this event. False: there is no room, and they are counted.
  bool AddOutput(RunEvent event, uint64_t lines);
  // Lines of output that found no room since the last call; zero while there still is none.
  [[nodiscard]] uint64_t TakeDropped();
  // What a driver says. `anew`: whatever was sent before is as if it had not been.
  void Seen(Time now, const Subscribe& subscribe, bool anew);
  // What is to be sent now; run and log are the caller's to add.
  std::optional<RunEvents> Next();
  // The same for one that looks on, by the name in `subscribe`. No more than kWatchersMax do.
  void Watch(Time now, const Subscribe& subscribe, bool anew);
  std::optional<RunEvents> NextOf(const std::string& watcher);
  [[nodiscard]] std::vector<std::string> Watchers(Time now);
  // One that has looked on takes the place of the driver.
  void Promote(const std::string& watcher);
  // Nobody reads it: the newest is kept for who comes, and no sender waits.
  void SetUnattended(bool unattended);
  [[nodiscard]] uint64_t first() const { return first_; }
  [[nodiscard]] uint64_t end() const { return first_ + entries_.size(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] bool all_seen() const { return driver_.seen.next >= end(); }
  [[nodiscard]] uint64_t unseen_bytes() const;  // Those in files included.

 private:
  struct Place {
    uint64_t next = 0;
    uint64_t offset = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Reader {
    Place seen;
    Place sent;
    uint64_t room = kEventWindowBytes;
    Time progress_at{};
    Time heard{};
  };
  struct Entry {
    RunEvent event;
    uint64_t begin = 0;  // Where it would be if all events were one stream of bytes.
    bool output = false;
    std::shared_ptr<const SpoolFile> file;
    [[nodiscard]] uint64_t payload_bytes() const {
      return file ? file->size() : event.payload.size();
    }
  };

  void Push(RunEvent event, bool output, std::shared_ptr<const SpoolFile> file);
  void Trim();
  [[nodiscard]] bool MayGo(const Entry& oldest) const;
  static void MovePlace(Reader& reader, Time now, const Subscribe& subscribe, bool anew);
  std::optional<RunEvents> NextFor(Reader& reader);
  void CountOutput(uint64_t before);
  [[nodiscard]] uint64_t At(const Place& place) const;
  [[nodiscard]] static size_t SizeOf(const RunEvent& event);

  std::deque<Entry> entries_;
  uint64_t first_ = 0;
  uint64_t total_ = 0;  // Bytes of all there ever were.
  size_t bytes_ = 0;
  size_t output_bytes_ = 0;  // Not seen yet.
  uint64_t dropped_ = 0;
  uint64_t file_bytes_ = 0;
  bool unattended_ = false;
  Reader driver_;
  std::map<std::string, Reader> watchers_;
};

}  // namespace troupe::daemons
