// Looking into JSON of others, where anything may be missing or of another type.
//
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe {

using LooseJson = nlohmann::json;

// Null if there is none.
inline const LooseJson& At(const LooseJson& json, const char* key) {
  static const LooseJson kNone;
  if (!json.is_object()) return kNone;
  const auto found = json.find(key);
  return found == json.end() ? kNone : *found;
}

inline std::string TextAt(const LooseJson& json, const char* key) {
  const LooseJson& found = At(json, key);
  return found.is_string() ? found.get<std::string>() : "";
}

inline int64_t NumberAt(const LooseJson& json, const char* key, int64_t otherwise = 0) {
  const LooseJson& found = At(json, key);
  return found.is_number_integer() ? found.get<int64_t>() : otherwise;
}

inline bool FlagAt(const LooseJson& json, const char* key) {
  const LooseJson& found = At(json, key);
  return found.is_boolean() && found.get<bool>();
}

// Empty if it is no list.
inline const std::vector<LooseJson>& ListAt(const LooseJson& json, const char* key) {
  static const std::vector<LooseJson> kEmpty;
  const LooseJson& found = At(json, key);
  return found.is_array() ? found.get_ref<const LooseJson::array_t&>() : kEmpty;
}

inline std::map<std::string, std::string> WordsAt(const LooseJson& json, const char* key) {
  std::map<std::string, std::string> words;
  const LooseJson& found = At(json, key);
  if (!found.is_object()) return words;
  for (const auto& [name, value] : found.items()) {
    if (value.is_string()) words[name] = value.get<std::string>();
  }
  return words;
}

// Null if it is no JSON.
inline LooseJson ParseJson(std::string_view text) {
  LooseJson json = LooseJson::parse(text, nullptr, false);
  return json.is_discarded() ? LooseJson() : json;
}

}  // namespace troupe
