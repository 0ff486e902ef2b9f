#include "daemons/node/core/output_relay.h"

#include <algorithm>

namespace troupe::daemons {
namespace {

// A budget that has run dry is used again when so much is in it: gaps are few and long.
constexpr size_t kResumeBytes = kOutputBurstBytes / 8;

bool IsBlank(std::string_view text) { return text.find_first_not_of(' ') == std::string::npos; }

}  // namespace

void OutputRelay::Begin(const std::string& process, const std::string& file) {
  sources_[process].file = file;
}

void OutputRelay::NotInFile(const std::string& process) {
  if (const auto it = sources_.find(process); it != sources_.end()) it->second.file.clear();
}

void OutputRelay::Add(Time now, const std::string& process, bool is_stderr,
                      std::string_view bytes) {
  const auto it = sources_.find(process);
  if (it == sources_.end()) return;
  Source& source = it->second;
  if (source.skipping) {
    source.skipping =
        source.budget.Available(now) < kResumeBytes || waiting_bytes_ > kOutputWaitingBytesMax / 2;
  }
  std::string& partial = source.partial[is_stderr ? 1 : 0];
  while (!bytes.empty()) {
    if (source.skipping) return Skip(source, is_stderr, bytes);
    const size_t room = kOutputLineBytesMax - partial.size();
    const size_t end = bytes.substr(0, room + 1).find_first_of("\r\n");
    const size_t taken = end != std::string_view::npos ? end : std::min(room, bytes.size());
    partial.append(bytes.substr(0, taken));
    const bool whole = end != std::string_view::npos || bytes.size() > room;
    const bool over = end != std::string_view::npos && bytes[end] == '\r';
    bytes.remove_prefix(taken + (end != std::string_view::npos ? 1 : 0));
    if (!whole) return;
    if (over) {
      Source::Progress& progress = source.progress[is_stderr ? 1 : 0];
      progress.on = true;
      progress.before = TakeState(source, is_stderr);
      if (IsBlank(progress.before)) progress.before.clear();
    } else {
      Line(now, process, source, is_stderr, TakeState(source, is_stderr));
      source.progress[is_stderr ? 1 : 0].on = false;
    }
  }
}

std::string OutputRelay::TakeState(Source& source, bool is_stderr) {
  std::string before = std::exchange(source.progress[is_stderr ? 1 : 0].before, "");
  std::string now = std::exchange(source.partial[is_stderr ? 1 : 0], "");
  // What blanks a line out is no news.
  return IsBlank(now) && !before.empty() ? before : now;
}

void OutputRelay::TellProgress(Time now, const std::string& process, Source& source,
                               bool is_stderr) {
  Source::Progress& progress = source.progress[is_stderr ? 1 : 0];
  const std::string& partial = source.partial[is_stderr ? 1 : 0];
  if (!progress.on || source.skipping) return;
  if (progress.any && now < progress.told_at + kProgressPeriod) return;
  const std::string& state = partial.empty() ? progress.before : partial;
  if (state == progress.told || IsBlank(state)) return;
  progress.told = state;
  progress.told_at = now;
  progress.any = true;
  Line(now, process, source, is_stderr, progress.told);
}

void OutputRelay::Line(Time now, const std::string& process, Source& source, bool is_stderr,
                       std::string_view line) {
  Remember(source, is_stderr, line);
  const size_t cost = line.size() + kOutputLineCost;
  if (source.budget.Available(now) < cost || waiting_bytes_ + cost > kOutputWaitingBytesMax) {
    source.skipping = true;
    return Drop(source, 1);
  }
  source.budget.Take(now, cost);
  Item& item = Open(process, source, is_stderr);
  item.output.lines.emplace_back(line);
  item.bytes += cost;
  waiting_bytes_ += cost;
}

// The lines of all of it are only counted, and the last few of stderr kept.
void OutputRelay::Skip(Source& source, bool is_stderr, std::string_view bytes) {
  std::string& partial = source.partial[is_stderr ? 1 : 0];
  const size_t last = bytes.rfind('\n');
  if (last == std::string_view::npos) {  // A line without end is cut as it always is.
    const size_t room = kOutputLineBytesMax - partial.size();
    if (bytes.size() > room) Drop(source, 1);
    if (bytes.size() > room) partial.clear();
    partial.append(bytes.substr(0, kOutputLineBytesMax - partial.size()));
    return;
  }
  const std::string_view lines = bytes.substr(0, last);
  Drop(source, static_cast<uint64_t>(std::count(lines.begin(), lines.end(), '\n')) + 1);
  if (is_stderr) {
    size_t begin = last;
    for (size_t i = 0; i < kLastLinesKept && begin != std::string_view::npos; ++i)
      begin = begin == 0 ? std::string_view::npos : bytes.rfind('\n', begin - 1);
    std::string_view rest = bytes.substr(begin == std::string_view::npos ? 0 : begin + 1,
                                         last - (begin == std::string_view::npos ? 0 : begin + 1));
    if (begin == std::string_view::npos) rest = lines;
    while (true) {
      const size_t end = rest.find('\n');
      Remember(source, true, rest.substr(0, std::min(end, kOutputLineBytesMax)));
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
    }
  }
  partial.assign(bytes.substr(last + 1, kOutputLineBytesMax));
}

void OutputRelay::Remember(Source& source, bool is_stderr, std::string_view line) {
  if (!is_stderr) return;
  source.last_lines.emplace_back(line);
  if (source.last_lines.size() > kLastLinesKept) source.last_lines.pop_front();
}

void OutputRelay::Drop(Source& source, uint64_t lines) {
  source.dropped += lines;
  dropped_ += lines;
}

// What the next line of this stream is added to.
OutputRelay::Item& OutputRelay::Open(const std::string& process, Source& source, bool is_stderr) {
  const bool fits =
      !waiting_.empty() && source.dropped == 0 && waiting_.back().output.process == process &&
      waiting_.back().output.is_stderr == is_stderr && waiting_.back().bytes < kOutputFrameBytes;
  if (!fits) {
    waiting_.emplace_back();
    Item& item = waiting_.back();
    item.output.process = process;
    item.output.is_stderr = is_stderr;
    item.output.dropped = std::exchange(source.dropped, 0);
    item.output.file = source.file;
    item.bytes = kOutputLineCost + process.size() + source.file.size();
    waiting_bytes_ += item.bytes;
  }
  return waiting_.back();
}

void OutputRelay::Tell(Time now) {
  for (auto& [process, source] : sources_) {
    for (const bool is_stderr : {false, true}) TellProgress(now, process, source, is_stderr);
    if (source.dropped > 0 && source.budget.Available(now) >= kResumeBytes &&
        waiting_bytes_ < kOutputWaitingBytesMax)
      (void)Open(process, source, true);
  }
}

WorkerOutput OutputRelay::Send(Item item) {
  waiting_bytes_ -= item.bytes;
  sent_bytes_ += item.bytes;
  item.output.number = next_++;
  sent_.emplace_back(item.output.number, item.bytes);
  return std::move(item.output);
}

std::optional<WorkerOutput> OutputRelay::Next() {
  if (waiting_.empty() || sent_bytes_ >= kOutputWindowBytes) return std::nullopt;
  Item item = std::move(waiting_.front());
  waiting_.pop_front();
  return Send(std::move(item));
}

void OutputRelay::Taken(uint64_t number) {
  while (!sent_.empty() && sent_.front().first <= number) {
    sent_bytes_ -= sent_.front().second;
    sent_.pop_front();
  }
}

uint64_t OutputRelay::on_the_way() const { return sent_.empty() ? 0 : sent_.back().first; }

std::pair<std::vector<WorkerOutput>, std::vector<std::string>> OutputRelay::End(
    Time now, const std::string& process) {
  std::vector<WorkerOutput> rest;
  const auto it = sources_.find(process);
  if (it == sources_.end()) return {};
  Source& source = it->second;
  for (const bool is_stderr : {false, true}) {
    const std::string state = TakeState(source, is_stderr);
    const Source::Progress& progress = source.progress[is_stderr ? 1 : 0];
    if (!state.empty() && (!progress.on || state != progress.told))
      Line(now, process, source, is_stderr, state);
  }
  if (source.dropped > 0) (void)Open(process, source, true);
  // The head does not answer: nobody is there to be told.
  const bool deaf = sent_bytes_ > kOutputWindowBytes + kOutputWaitingBytesMax;
  std::deque<Item> others;
  for (Item& item : waiting_) {
    if (item.output.process != process) {
      others.push_back(std::move(item));
    } else if (deaf) {
      waiting_bytes_ -= item.bytes;
      dropped_ += item.output.lines.size();
    } else {
      rest.push_back(Send(std::move(item)));
    }
  }
  waiting_ = std::move(others);
  std::vector<std::string> last(source.last_lines.begin(), source.last_lines.end());
  sources_.erase(it);
  return {std::move(rest), std::move(last)};
}

}  // namespace troupe::daemons
