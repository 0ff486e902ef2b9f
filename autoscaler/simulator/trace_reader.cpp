#include "autoscaler/simulator/trace_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace troupe::simulator {
namespace {

namespace fs = std::filesystem;
using TraceJson = nlohmann::json;

constexpr double kGapMaxS = 30.0 * 86400;
constexpr double kTimeMaxS = 10.0 * 365 * 86400;
constexpr int64_t kNodesMax = 1'000'000;

// What is wrong with a file and where; never leaves this file.
class BadTrace : public std::runtime_error {
 public:
  BadTrace(const std::string& path, size_t line, const std::string& what)
      : std::runtime_error(path + (line > 0 ? ":" + std::to_string(line) : "") + ": " + what) {}
};

Duration FromSeconds(double s) { return Duration(static_cast<int64_t>(std::llround(s * 1e9))); }

double NumberOf(const TraceJson& object, const std::string& key, double most,
                const std::string& path, size_t line) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number())
    throw BadTrace(path, line, "expected a number \"" + key + "\"");
  const auto value = found->get<double>();
  if (!(value >= 0 && value <= most))
    throw BadTrace(path, line, "\"" + key + "\" is out of range: " + found->dump());
  return value;
}

std::vector<Trace> ParseSpotTrace(const std::string& text, const std::string& path) {
  TraceJson json;
  try {
    json = TraceJson::parse(text);
  } catch (const TraceJson::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const auto line = static_cast<size_t>(std::count(text.begin(), end, '\n')) + 1;
    throw BadTrace(path, line, "is not JSON");
  }
  if (!json.is_object() || !json.contains("metadata") || !json["metadata"].is_object())
    throw BadTrace(path, 1, "expected an object with \"metadata\" and \"data\"");
  const double gap = NumberOf(json["metadata"], "gap_seconds", kGapMaxS, path, 1);
  if (gap <= 0) throw BadTrace(path, 1, "\"gap_seconds\" is 0");
  if (!json.contains("data") || !json["data"].is_array() || json["data"].empty())
    throw BadTrace(path, 1, "expected a list \"data\" of counts");
  Trace trace;
  const TraceJson& data = json["data"];
  if (data.size() > kOffersMax) throw BadTrace(path, 1, "has more than 2000000 counts");
  for (size_t i = 0; i < data.size(); ++i) {
    if (!data[i].is_number_unsigned() || data[i].get<uint64_t>() > kNodesMax)
      throw BadTrace(path, 1,
                     "data[" + std::to_string(i) + "]: expected a count, got " + data[i].dump());
    trace.offers.push_back({FromSeconds(gap * static_cast<double>(i)), data[i].get<int>(), -1});
  }
  trace.length = FromSeconds(gap * static_cast<double>(data.size()));
  return {std::move(trace)};
}

void Put(Trace& trace, const Offer& offer) {
  if (!trace.offers.empty() && trace.offers.back().at == offer.at) {
    trace.offers.back() = offer;
  } else {
    trace.offers.push_back(offer);
  }
  trace.length = std::max(trace.length, offer.at);
}

std::vector<Trace> ParseBamboo(const std::string& text, const std::string& path) {
  Trace trace;
  std::istringstream lines(text);
  std::string line;
  std::set<std::string> up;
  double last_ms = 0;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const size_t first = line.find(',');
    const size_t second = first == std::string::npos ? first : line.find(',', first + 1);
    if (second == std::string::npos || second + 1 == line.size())
      throw BadTrace(path, number, "expected milliseconds,add|remove,node");
    double ms = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + first, ms);
    if (error != std::errc() || end != line.data() + first || !(ms >= 0 && ms <= kTimeMaxS * 1e3))
      throw BadTrace(path, number, "expected milliseconds, got \"" + line.substr(0, first) + "\"");
    if (ms < last_ms) throw BadTrace(path, number, "goes back in time");
    const std::string verb = line.substr(first + 1, second - first - 1);
    const std::string node = line.substr(second + 1);
    if (verb == "add") {
      if (!up.insert(node).second) throw BadTrace(path, number, "adds " + node + " again");
    } else if (verb != "remove") {
      throw BadTrace(path, number, "expected add or remove, got \"" + verb + "\"");
    } else if (up.erase(node) == 0) {
      throw BadTrace(path, number, "removes " + node + ", which is not there");
    }
    last_ms = ms;
    if (trace.offers.size() >= kOffersMax) throw BadTrace(path, number, "is too long");
    Put(trace, {FromSeconds(ms / 1e3), static_cast<int>(up.size()), -1});
  }
  if (trace.offers.empty()) throw BadTrace(path, 1, "has no event");
  return {std::move(trace)};
}

std::vector<Trace> ParseLines(const std::string& text, const std::string& path) {
  std::map<std::string, Trace> traces;
  std::istringstream lines(text);
  std::string line;
  Duration length = Duration::zero();
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    const TraceJson json = TraceJson::parse(line, nullptr, false);
    if (!json.is_object()) throw BadTrace(path, number, "is not a JSON object");
    const auto offering = json.find("offering");
    if (offering == json.end() || !offering->is_string())
      throw BadTrace(path, number, "expected a string \"offering\"");
    Offer offer;
    offer.at = FromSeconds(NumberOf(json, "t", kTimeMaxS, path, number));
    const double nodes = NumberOf(json, "capacity", kNodesMax, path, number);
    if (nodes != std::floor(nodes)) throw BadTrace(path, number, "\"capacity\" is no whole number");
    offer.nodes = static_cast<int>(nodes);
    offer.price_per_hour = json.contains("price") ? NumberOf(json, "price", 1e6, path, number) : -1;
    Trace& trace = traces[offering->get<std::string>()];
    if (!trace.offers.empty() && offer.at < trace.offers.back().at)
      throw BadTrace(path, number, "goes back in time");
    if (trace.offers.size() >= kOffersMax) throw BadTrace(path, number, "is too long");
    Put(trace, offer);
    length = std::max(length, offer.at);
  }
  if (traces.empty()) throw BadTrace(path, 1, "has no line");
  std::vector<Trace> all;
  for (auto& [name, trace] : traces) {
    trace.name = name;
    trace.length = length;  // They were recorded together.
    all.push_back(std::move(trace));
  }
  return all;
}

std::string ReadFile(const fs::path& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) throw BadTrace(path.string(), 0, "cannot be read: " + error.message());
  if (bytes > kTraceBytesMax) throw BadTrace(path.string(), 0, "is larger than 256 MiB");
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.good()) throw BadTrace(path.string(), 0, "cannot be read");
  return text.str();
}

std::vector<Trace> ParseAny(const std::string& text, const fs::path& path) {
  const std::string kind = path.extension().string();
  std::vector<Trace> traces;
  if (kind == ".json") {
    traces = ParseSpotTrace(text, path.string());
  } else if (kind == ".csv") {
    traces = ParseBamboo(text, path.string());
  } else if (kind == ".jsonl") {
    traces = ParseLines(text, path.string());
  } else {
    throw BadTrace(path.string(), 0, "expected a .json, .csv or .jsonl file");
  }
  for (Trace& trace : traces) {
    if (trace.name.empty()) trace.name = path.stem().string();
  }
  return traces;
}

// The files that "PATH" stands for.
std::vector<fs::path> FilesOf(const fs::path& path) {
  if (!fs::exists(path)) throw BadTrace(path.string(), 0, "there is no such file or folder");
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string kind = entry.path().extension().string();
    if (kind == ".json" || kind == ".csv" || kind == ".jsonl") files.push_back(entry.path());
  }
  if (files.empty())
    throw BadTrace(path.string(), 0, "the folder has no .json, .csv or .jsonl file");
  std::sort(files.begin(), files.end());
  return files;
}

bool IsCalled(const std::string& trace, const std::string& word) {
  if (word.empty()) return false;
  if (trace == word || trace.starts_with(word + "_")) return true;
  std::istringstream parts(trace);
  std::string part;
  while (std::getline(parts, part, '/')) {
    if (part == word) return true;
  }
  return false;
}

// Under which pools the trace lies.
std::vector<const PoolLimits*> PoolsOf(const std::string& trace,
                                       const std::vector<PoolLimits>& pools) {
  std::vector<const PoolLimits*> named;
  std::vector<const PoolLimits*> of_zone;
  for (const PoolLimits& pool : pools) {
    if (IsCalled(trace, pool.name)) named.push_back(&pool);
    if (pool.market == Market::kSpot && IsCalled(trace, pool.zone)) of_zone.push_back(&pool);
  }
  return named.empty() ? of_zone : named;
}

void Lay(const Trace& trace, const std::string& file, const std::vector<PoolLimits>& pools,
         MarketHistory& market) {
  const std::vector<const PoolLimits*> under = PoolsOf(trace.name, pools);
  if (under.empty())
    throw BadTrace(file, 0,
                   "no pool has the name or the zone \"" + trace.name + "\"; say NAME=" + file +
                       " with the name or the zone of one");
  for (const PoolLimits* pool : under) {
    OfferHistory offers = trace.offers;
    for (Offer& offer : offers) {
      if (offer.price_per_hour < 0) offer.price_per_hour = pool->price_per_hour;
    }
    if (!market.pools.emplace(pool->name, Compact(offers)).second)
      throw BadTrace(file, 0, "pool " + pool->name + " has another trace already");
  }
  market.length =
      market.length == Duration::zero() ? trace.length : std::min(market.length, trace.length);
}

}  // namespace

Result<std::vector<Trace>> ParseTrace(const std::string& text, const std::string& path) {
  try {
    return ParseAny(text, path);
  } catch (const BadTrace& bad) {
    return Error{ErrorCode::kInvalidArgument, bad.what()};
  }
}

Result<MarketHistory> ReadMarket(const std::vector<std::string>& traces,
                                 const std::vector<PoolLimits>& pools) {
  MarketHistory market;
  try {
    for (const std::string& trace : traces) {
      const size_t equals = trace.find('=');
      const bool named = equals != std::string::npos && !fs::exists(trace);
      for (const fs::path& file : FilesOf(named ? trace.substr(equals + 1) : trace)) {
        for (Trace& read : ParseAny(ReadFile(file), file)) {
          if (named) read.name = trace.substr(0, equals);
          Lay(read, file.string(), pools, market);
        }
      }
    }
  } catch (const BadTrace& bad) {
    return Error{ErrorCode::kInvalidArgument, bad.what()};
  } catch (const fs::filesystem_error& error) {
    return Error{ErrorCode::kInvalidArgument, error.what()};
  }
  for (const PoolLimits& pool : pools) {
    if (pool.market == Market::kSpot && !market.pools.contains(pool.name))
      return Error{ErrorCode::kInvalidArgument,
                   "spot pool " + pool.name + " has no trace; its name" +
                       (pool.zone.empty() ? "" : " or its zone, " + pool.zone + ",") +
                       " would call one"};
  }
  if (market.length <= Duration::zero())
    return Error{ErrorCode::kInvalidArgument, "the traces last no time"};
  return market;
}

}  // namespace troupe::simulator
