// The keys of a group in the store, by its name or CoordinatorOptions::keys: "group/<name>/record",
// "group/<name>/term", "group/<name>/epoch/<n>" (members and link addresses),
// "group/<name>/unreadable" (a record that could not be decoded, for people).
#pragma once

#include <string>
#include <string_view>

namespace troupe::groups {

inline constexpr const char* kGroupKeys = "group/";

// What all of them begin with.
[[nodiscard]] std::string KeysOfGroup(const std::string& name);
// The name in such a key; empty: it is none.
[[nodiscard]] std::string GroupOfKey(std::string_view key);

}  // namespace troupe::groups
