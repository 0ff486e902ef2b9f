#include "collective_groups/membership/group_keys.h"

namespace troupe::groups {
namespace {

constexpr std::string_view kEpochs = "/epoch";

}  // namespace

std::string KeysOfGroup(const std::string& name) { return kGroupKeys + name + "/"; }

std::string GroupOfKey(std::string_view key) {
  if (!key.starts_with(kGroupKeys)) return "";
  key.remove_prefix(std::string_view(kGroupKeys).size());
  const size_t end = key.rfind('/');
  if (end == std::string_view::npos) return "";
  const std::string_view leaf = key.substr(end + 1);
  key = key.substr(0, end);
  if (leaf == "record" || leaf == "term" || leaf == "unreadable") return std::string(key);
  return key.ends_with(kEpochs) ? std::string(key.substr(0, key.size() - kEpochs.size())) : "";
}

}  // namespace troupe::groups
