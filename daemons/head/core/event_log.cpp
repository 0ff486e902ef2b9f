#include "daemons/head/core/event_log.h"

#include <algorithm>
#include <utility>

namespace troupe::daemons {
namespace {

constexpr size_t kEventCost = 128;  // What an event counts beside its bytes.

}  // namespace

size_t EventLog::SizeOf(const RunEvent& event) {
  return event.json.size() + event.payload.size() + kEventCost;
}

uint64_t EventLog::At(const Place& place) const {
  if (place.next >= end()) return total_;
  const uint64_t i = place.next < first_ ? 0 : place.next - first_;
  return entries_[i].begin + (place.next < first_ ? 0 : place.offset);
}

uint64_t EventLog::unseen_bytes() const { return unattended_ ? 0 : total_ - At(driver_.seen); }

void EventLog::Push(RunEvent event, bool output, std::shared_ptr<const SpoolFile> file) {
  const size_t size = SizeOf(event);
  const uint64_t apart = file ? file->size() : 0;
  entries_.push_back({std::move(event), total_, output, std::move(file)});
  total_ += size + apart;
  bytes_ += size;
  file_bytes_ += apart;
  if (output) output_bytes_ += size;
  Trim();
}

void EventLog::Add(RunEvent event, std::shared_ptr<const SpoolFile> file) {
  Push(std::move(event), false, std::move(file));
}

bool EventLog::AddOutput(RunEvent event, uint64_t lines) {
  if (!unattended_ && output_bytes_ + SizeOf(event) > kRunOutputBytesMax) {
    dropped_ += lines;
    return false;
  }
  Push(std::move(event), true, nullptr);
  return true;
}

// Half of it has to be free, so that gaps are few and long.
uint64_t EventLog::TakeDropped() {
  return output_bytes_ > kRunOutputBytesMax / 2 ? 0 : std::exchange(dropped_, 0);
}

bool EventLog::MayGo(const Entry& oldest) const {
  if (entries_.size() > kRunEventsMax) return true;
  if (unattended_) {
    const bool much = bytes_ > kRunEventsBytesMax || file_bytes_ > kUnattendedFileBytesMax;
    return much && oldest.event.kind != "result" && oldest.event.kind != "done";
  }
  return first_ < driver_.seen.next && bytes_ > kRunEventsBytesMax;
}

void EventLog::Trim() {
  while (!entries_.empty() && MayGo(entries_.front())) {
    const Entry& oldest = entries_.front();
    bytes_ -= SizeOf(oldest.event);
    if (oldest.file) file_bytes_ -= oldest.file->size();
    if (oldest.output && first_ >= driver_.seen.next) output_bytes_ -= SizeOf(oldest.event);
    entries_.pop_front();
    ++first_;
  }
}

void EventLog::MovePlace(Reader& reader, Time now, const Subscribe& subscribe, bool anew) {
  const Place place{subscribe.next, subscribe.offset};
  if (place != reader.seen) reader.progress_at = now;
  const bool late = reader.sent > place && now > reader.progress_at + kEventsRepeat;
  if (late) reader.progress_at = now;
  if (anew || late || subscribe.lost || place < reader.seen || reader.sent < place)
    reader.sent = place;
  reader.seen = place;
  reader.room = std::min<uint64_t>(subscribe.room, kEventWindowBytes);
  reader.heard = now;
}

void EventLog::Seen(Time now, const Subscribe& subscribe, bool anew) {
  const uint64_t before = driver_.seen.next;
  MovePlace(driver_, now, subscribe, anew);
  CountOutput(before);
  Trim();
}

// The driver stood at `before`: what it had not seen then and has now counts no more, or again.
void EventLog::CountOutput(uint64_t before) {
  const uint64_t now = driver_.seen.next;
  for (uint64_t i = std::max(first_, std::min(now, before));
       i < std::min(end(), std::max(now, before)); ++i) {
    const Entry& entry = entries_[i - first_];
    if (!entry.output) continue;
    if (i < now) {
      output_bytes_ -= SizeOf(entry.event);
    } else {
      output_bytes_ += SizeOf(entry.event);
    }
  }
}

void EventLog::Watch(Time now, const Subscribe& subscribe, bool anew) {
  const auto it = watchers_.find(subscribe.driver);
  if (it == watchers_.end() && Watchers(now).size() >= kWatchersMax) return;
  MovePlace(watchers_[subscribe.driver], now, subscribe, anew);
}

std::vector<std::string> EventLog::Watchers(Time now) {
  std::erase_if(watchers_,
                [&](const auto& entry) { return now > entry.second.heard + kWatcherLease; });
  std::vector<std::string> names;
  for (const auto& [name, reader] : watchers_) names.push_back(name);
  return names;
}

void EventLog::Promote(const std::string& watcher) {
  const uint64_t before = driver_.seen.next;
  const auto it = watchers_.find(watcher);
  driver_ = it == watchers_.end() ? Reader{} : it->second;
  watchers_.erase(watcher);
  CountOutput(before);
}

void EventLog::SetUnattended(bool unattended) {
  unattended_ = unattended;
  Trim();
}

std::optional<RunEvents> EventLog::Next() { return NextFor(driver_); }

std::optional<RunEvents> EventLog::NextOf(const std::string& watcher) {
  const auto it = watchers_.find(watcher);
  return it == watchers_.end() ? std::nullopt : NextFor(it->second);
}

std::optional<RunEvents> EventLog::NextFor(Reader& reader) {
  Place& sent = reader.sent;
  if (sent.next < first_) sent = {first_, 0};
  if (sent.next >= end() || At(sent) >= At(reader.seen) + reader.room) return std::nullopt;
  RunEvents batch;
  batch.first = sent.next;
  batch.offset = sent.offset;
  batch.oldest = first_;
  size_t bytes = 0;
  while (sent.next < end() && bytes < kEventPartBytes) {
    const Entry& entry = entries_[sent.next - first_];
    const RunEvent& event = entry.event;
    sent.offset = std::min(sent.offset, entry.payload_bytes());  // It is a driver's.
    const size_t part = std::min<uint64_t>(entry.payload_bytes() - sent.offset, kEventPartBytes);
    const uint64_t rest = entry.payload_bytes() - sent.offset - part;
    batch.events.push_back(
        {event.kind, event.json,
         entry.file ? entry.file->Read(sent.offset, part) : event.payload.substr(sent.offset, part),
         rest});
    bytes += part + event.json.size() + kEventCost;
    sent = rest > 0 ? Place{sent.next, sent.offset + part} : Place{sent.next + 1, 0};
    if (rest > 0) break;
  }
  return batch;
}

}  // namespace troupe::daemons
