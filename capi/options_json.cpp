// Adapter of nlohmann-json for this folder.
#include "capi/internal/options_json.h"

#include <algorithm>
#include <concepts>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/api/option_names.h"

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

// What a value must be, for people.
const char* Wanted(bool) { return "true or false"; }
const char* Wanted(std::integral auto) { return "a whole number within its range"; }
const char* Wanted(const std::string&) { return "text"; }
const char* Wanted(const std::vector<std::string>&) { return "a list of texts"; }
const char* Wanted(const std::map<std::string, double>&) { return "an object of numbers"; }
const char* Wanted(const std::map<std::string, std::string>&) { return "an object of texts"; }
const char* Wanted(Duration) { return "a number of seconds, at most a year"; }
const char* Wanted(actors::Overflow) { return "\"wait\" or \"refuse\""; }

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
  template <class T>
  Object& Key(const char* key, T& to) {
    known_.emplace_back(key);
    if (!problem_.empty()) return *this;
    const auto it = object_.find(key);
    if (it == object_.end()) return *this;
    ++taken_;
    if (!Read(*it, to))
      problem_ = std::string("have ") + key + ": " + it->dump() + ", which must be " + Wanted(to);
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

}  // namespace

Result<InitOptions> ParseInitOptions(const char* text) {
  InitOptions o;
  Object object(text);
  object.Key("address", o.address)
      .Key("key_file", o.key_file)
      .Key("bin_dir", o.bin_dir)
      .Key("data_address", o.data_address)
      .Key("log_dir", o.log_dir)
      .Key("resources", o.resources)
      .Key("driver_silence_s", o.driver_silence)
      .Key("print_output", o.print_output);
  if (Status s = object.Finish("the options of troupe_init"); !s.ok()) return s.error();
  return o;
}

Result<ActorOptions> ParseActorOptions(const char* text) {
  ActorOptions o;
  Object object(text);
  VisitOptions(o, [&](const char* key, auto& field) { object.Key(key, field); });
  if (Status s = object.Finish("the options of the actor"); !s.ok()) return s.error();
  return o;
}

}  // namespace troupe::capi
