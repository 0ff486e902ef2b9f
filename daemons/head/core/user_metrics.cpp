#include "daemons/head/core/user_metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <span>
#include <string_view>

namespace troupe::daemons {
namespace {

bool IsName(std::string_view text, bool colons) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) != 0) return false;
  return std::ranges::all_of(text, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || (colons && c == ':');
  });
}

size_t TextBytes(const UserSeries& series) {
  size_t bytes = series.name.size() + series.help.size();
  for (const auto& [key, value] : series.tags) bytes += key.size() + value.size();
  return bytes;
}

Error Refusal(const UserSeries& series, ErrorCode code, const std::string& why) {
  return Error{code, "metric " + series.name.substr(0, 200) + ": " + why};
}

}  // namespace

// The process has checked it; but this is what stands between a broken one and the exposition.
Status UserMetricSums::Check(const UserSeries& s) {
  const auto bad = [&](const std::string& why) {
    return Refusal(s, ErrorCode::kInvalidArgument, why);
  };
  if (!IsName(s.name, true) || s.name.starts_with("troupe_")) return bad("not a name for it");
  if (TextBytes(s) > kSeriesBytesMax)
    return bad("its texts take more than " + std::to_string(kSeriesBytesMax) + " bytes");
  for (const auto& [key, value] : s.tags) {
    if (!IsName(key, false) || key.starts_with("__") || key.starts_with("troupe_") || key == "le")
      return bad("a tag cannot be called '" + key + "'");
  }
  const bool histogram = s.kind == UserMetricKind::kHistogram;
  if (s.bounds.size() > kBoundsMax || (s.bounds.empty() == histogram) ||
      !std::ranges::is_sorted(s.bounds, std::less_equal<>()) ||
      !std::ranges::all_of(s.bounds, [](double b) { return std::isfinite(b); })) {
    return bad("unusable boundaries");
  }
  if (s.values.size() != (histogram ? s.bounds.size() + 2 : 1)) return bad("unusable values");
  const auto counts = std::span(s.values).first(s.values.size() - (histogram ? 1 : 0));
  const bool grows = std::ranges::all_of(counts, [](double v) { return v >= 0; });
  if (s.kind != UserMetricKind::kGauge && !grows) return bad("a count below zero");
  return Status::Ok();
}

Result<UserMetricSums::Index> UserMetricSums::Find(const UserSeries& s) {
  const auto family = families_.find(s.name);
  if (family != families_.end()) {
    if (family->second.kind != s.kind || family->second.bounds != s.bounds) {
      return Refusal(s, ErrorCode::kAlreadyExists,
                     "another process has one of this name of another kind or with other "
                     "boundaries; give one of them another name");
    }
    const auto known = family->second.series.find(s.tags);
    if (known != family->second.series.end()) return known->second;
  }
  if (Status usable = Check(s); !usable.ok()) return usable.error();
  if (series_.size() - free_.size() >= kSeriesMax || text_bytes_ + TextBytes(s) > kTextBytesMax) {
    return Refusal(s, ErrorCode::kResourceExhausted,
                   "the cluster has " + std::to_string(series_.size() - free_.size()) +
                       " series of metrics already; use tags with fewer values");
  }
  return Add(s);
}

UserMetricSums::Index UserMetricSums::Add(const UserSeries& s) {
  if (free_.empty()) {
    free_.push_back(static_cast<Index>(series_.size()));
    series_.emplace_back();
  }
  const Index index = free_.back();
  free_.pop_back();
  text_bytes_ += TextBytes(s);
  Family& into = families_[s.name];
  if (into.series.empty()) into.help = s.help;
  into.kind = s.kind;
  into.bounds = s.bounds;
  into.series.emplace(s.tags, index);
  series_[index] = {s.name, s.tags, std::vector<double>(s.values.size(), 0.0), {}};
  return index;
}

void UserMetricSums::Remove(Index index) {
  Series& series = series_[index];
  const auto family = families_.find(series.name);
  UserSeries gone;
  gone.name = series.name;
  gone.help = family->second.help;
  gone.tags = series.tags;
  text_bytes_ -= std::min(text_bytes_, TextBytes(gone));
  family->second.series.erase(series.tags);
  if (family->second.series.empty()) families_.erase(family);
  series = {};
  free_.push_back(index);
}

void UserMetricSums::Take(const std::string& name, Process& process, const UserSeries& s) {
  const auto refuse = [&](const std::string& why) {
    ++process.refused;
    process.reason = why;
  };
  const Result<Index> found = Find(s);
  if (!found.ok()) return refuse(found.error().message);
  Series& series = series_[*found];
  if (s.values.size() != series.sum.size()) return refuse("metric " + s.name + ": unusable values");
  auto told = process.told.find(*found);
  if (told == process.told.end()) {
    if (values_ + s.values.size() > kValuesMax) {
      return refuse("metric " + s.name + ": the cluster has " + std::to_string(values_) +
                    " values of metrics already; use fewer tags, or fewer processes");
    }
    values_ += s.values.size();
    told = process.told.emplace(*found, std::vector<double>(s.values.size(), 0.0)).first;
  }
  if (s.kind == UserMetricKind::kGauge) {
    series.gauge[name] = s.values[0];
    return;
  }
  const bool histogram = s.kind == UserMetricKind::kHistogram;
  for (size_t i = 0; i < s.values.size(); ++i) {
    const bool may_shrink = histogram && i + 1 == s.values.size();  // Its sum.
    const double more = s.values[i] - told->second[i];
    if (!may_shrink && !(more > 0)) continue;
    series.sum[i] += more;
    told->second[i] = s.values[i];
  }
}

UserMetricsTaken UserMetricSums::OnMetrics(Time now, const std::string& name,
                                           const UserMetrics& told) {
  UserMetricsTaken taken{log_, told.life, told.number, wanted_, false, 0, ""};
  if (!wanted_) return taken;
  if (const auto ended = ended_.find(name);
      ended != ended_.end() && told.life <= ended->second.first) {
    taken.ended = true;
    taken.number = ended->second.second;
    return taken;
  }
  Process& process = processes_[name];
  process.heard = now;
  if (told.life >= process.life && told.number > process.number) {
    process.life = told.life;
    process.number = told.number;
    for (const UserSeries& series : told.series) Take(name, process, series);
    changed_ |= !told.series.empty();
  }
  taken.number = process.number;
  taken.refused = process.refused;
  taken.reason = process.reason;
  return taken;
}

void UserMetricSums::OnEnded(const std::string& name) {
  const auto it = processes_.find(name);
  if (it == processes_.end()) return;
  for (const auto& [index, values] : it->second.told) {
    values_ -= values.size();
    if (series_[index].gauge.erase(name) > 0 && series_[index].gauge.empty()) Remove(index);
  }
  if (!ended_.contains(name)) ended_order_.push_back(name);
  ended_[name] = {it->second.life, it->second.number};
  if (ended_order_.size() > kEndedMax) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  processes_.erase(it);
  changed_ = true;
}

void UserMetricSums::OnTick(Time now) {
  std::vector<std::string> silent;
  for (const auto& [name, process] : processes_) {
    if (now >= process.heard + kSilence) silent.push_back(name);
  }
  for (const std::string& name : silent) OnEnded(name);
}

void UserMetricSums::OnStopped(Duration stopped) {
  for (auto& [name, process] : processes_) process.heard = process.heard + stopped;
}

std::vector<metrics::Family> UserMetricSums::Families() const {
  std::vector<metrics::Family> families;
  for (const auto& [name, family] : families_) {
    metrics::Family& into = families.emplace_back();
    into.name = name;
    into.help = family.help;
    into.kind = family.kind == UserMetricKind::kCounter ? metrics::Kind::kCounter
                : family.kind == UserMetricKind::kGauge ? metrics::Kind::kGauge
                                                        : metrics::Kind::kHistogram;
    into.bounds = family.bounds;
    for (const auto& [tags, index] : family.series) {
      const Series& series = series_[index];
      if (family.kind != UserMetricKind::kGauge) {
        into.samples.push_back({tags, series.sum});
        continue;
      }
      for (const auto& [process, value] : series.gauge) {
        metrics::Sample& sample = into.samples.emplace_back(metrics::Sample{tags, {value}});
        sample.labels[kProcessLabel] = process;
      }
    }
  }
  return families;
}

}  // namespace troupe::daemons
