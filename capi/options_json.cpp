// Adapter of nlohmann-json for this folder.
#include "capi/internal/options_json.h"

#include <algorithm>
#include <concepts>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace troupe::capi {
namespace {

using nlohmann::json;

constexpr double kSecondsMax = 365.0 * 24 * 3600;

bool Read(const json& value, bool& to) {
  if (value.is_boolean()) to = value.get<bool>();
  return value.is_boolean();
}
bool Read(const json& value, std::string& to) {
  if (value.is_string()) to = value.get<std::string>();
  return value.is_string();
}
bool Read(const json& value, double& to) {
  if (value.is_number()) to = value.get<double>();
  return value.is_number();
}
template <std::integral T>
bool Read(const json& value, T& to) {
  // What is over the range of int64 is unsigned; no option is that large.
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<int64_t>() < 0))
    return false;
  const auto number = value.get<int64_t>();
  if (!std::in_range<T>(number)) return false;
  to = static_cast<T>(number);
  return true;
}
bool Read(const json& value, Duration& to) {  // In seconds.
  double number = 0;
  if (!Read(value, number) || !(number >= 0) || number > kSecondsMax) return false;
  to = Duration(static_cast<int64_t>(number * 1e9));
  return true;
}
bool Read(const json& value, actors::Overflow& to) {
  to = value == "refuse" ? actors::Overflow::kRefuse : actors::Overflow::kWait;
  return value == "refuse" || value == "wait";
}
template <class T>
bool Read(const json& value, std::vector<T>& to) {
  if (!value.is_array()) return false;
  to.clear();
  for (const json& element : value) {
    if (!Read(element, to.emplace_back())) return false;
  }
  return true;
}
template <class T>
bool Read(const json& value, std::map<std::string, T>& to) {
  if (!value.is_object()) return false;
  to.clear();
  for (const auto& [key, element] : value.items()) {
    if (!Read(element, to[key])) return false;
  }
  return true;
}

// An object whose keys are asked for one by one. The first problem is kept.
class Object {
 public:
  explicit Object(const char* text) {
    if (text == nullptr || *text == '\0') return;
    try {
      object_ = json::parse(text);
    } catch (const json::exception& e) {
      problem_ = std::string("are not JSON: ") + e.what();
      return;
    }
    if (!object_.is_object()) problem_ = "are no JSON object";
  }
  // `wanted`: what the value must be, for people.
  template <class T>
  Object& Key(const char* key, T& to, const char* wanted) {
    known_.emplace_back(key);
    if (!problem_.empty()) return *this;
    const auto it = object_.find(key);
    if (it == object_.end()) return *this;
    ++taken_;
    if (!Read(*it, to))
      problem_ = std::string("have ") + key + ": " + it->dump() + ", which must be " + wanted;
    return *this;
  }
  // After all keys.
  [[nodiscard]] Status Finish(const char* what) {
    if (problem_.empty() && taken_ < object_.size()) {
      std::string all;
      for (const std::string& key : known_) all += (all.empty() ? "" : ", ") + key;
      for (const auto& [key, value] : object_.items()) {
        if (std::find(known_.begin(), known_.end(), key) == known_.end())
          problem_ = "have an unknown key \"" + key + "\"; known are " + all;
      }
    }
    if (problem_.empty()) return Status::Ok();
    return Error{ErrorCode::kInvalidArgument, std::string(what) + " " + problem_};
  }

 private:
  json object_ = json::object();
  std::vector<std::string> known_;
  std::string problem_;
  size_t taken_ = 0;
};

constexpr const char* kText = "text";
constexpr const char* kTruth = "true or false";
constexpr const char* kNumbers = "an object of numbers";
constexpr const char* kTexts = "a list of texts";
constexpr const char* kTime = "a number of seconds, at most a year";
constexpr const char* kWhole = "a whole number within its range";

}  // namespace

Result<InitOptions> ParseInitOptions(const char* text) {
  InitOptions o;
  Object object(text);
  object.Key("address", o.address, kText)
      .Key("key_file", o.key_file, kText)
      .Key("bin_dir", o.bin_dir, kText)
      .Key("data_address", o.data_address, kText)
      .Key("log_dir", o.log_dir, kText)
      .Key("resources", o.resources, kNumbers)
      .Key("driver_silence_s", o.driver_silence, kTime)
      .Key("print_output", o.print_output, kTruth);
  if (Status s = object.Finish("the options of troupe_init"); !s.ok()) return s.error();
  return o;
}

Result<ActorOptions> ParseActorOptions(const char* text) {
  ActorOptions o;
  Object object(text);
  object.Key("name", o.name, kText)
      .Key("get_if_exists", o.get_if_exists, kTruth)
      .Key("detached", o.detached, kTruth)
      .Key("resources", o.resources, kNumbers)
      .Key("strategy", o.strategy, kText)
      .Key("labels", o.labels, kTexts)
      .Key("prefer", o.prefer, kTexts)
      .Key("node", o.node, kText)
      .Key("node_soft", o.node_soft, kTruth)
      .Key("placement_group", o.placement_group, kText)
      .Key("bundle", o.bundle, kWhole)
      .Key("priority", o.priority, kWhole)
      .Key("max_restarts", o.max_restarts, kWhole)
      .Key("backoff_s", o.backoff, kTime)
      .Key("backoff_most_s", o.backoff_most, kTime)
      .Key("timeout_s", o.timeout, kTime)
      .Key("env", o.env, "an object of texts")
      .Key("plugin", o.plugin, kText)
      .Key("program", o.program, kTexts)
      .Key("max_concurrency", o.max_concurrency, kWhole)
      .Key("threads", o.threads, "true or false")
      .Key("mailbox_depth", o.mailbox_depth, kWhole)
      .Key("mailbox_bytes", o.mailbox_bytes, kWhole)
      .Key("overflow", o.overflow, "\"wait\" or \"refuse\"");
  if (Status s = object.Finish("the options of the actor"); !s.ok()) return s.error();
  return o;
}

}  // namespace troupe::capi
