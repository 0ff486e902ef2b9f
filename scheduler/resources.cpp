#include "scheduler/resources.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <utility>

namespace troupe {
namespace {

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.:/-").find(c) != std::string_view::npos;
}

// The name under which a resource is kept: the three well-known ones in any case.
std::string Canonical(const std::string& name) {
  std::string lower = name;
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (lower == "cpu") return "CPU";
  if (lower == "gpu") return "GPU";
  if (lower == "memory") return "memory";
  return name;
}

Error Refused(const std::string& name, const std::string& why) {
  return Error{ErrorCode::kInvalidArgument, "resource \"" + name + "\": " + why};
}

}  // namespace

Result<ResourceSet> ResourceSet::FromMap(const std::map<std::string, double>& amounts) {
  if (amounts.size() > kResourceNamesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "at most " + std::to_string(kResourceNamesMax) + " resources may be named"};
  }
  ResourceSet set;
  for (const auto& [name, amount] : amounts) {
    if (name.empty() || name.size() > kResourceNameBytesMax ||
        !std::all_of(name.begin(), name.end(), IsNameCharacter)) {
      return Refused(name.substr(0, kResourceNameBytesMax),
                     "a name has 1 to 64 letters, digits or any of _ . : / -");
    }
    if (!std::isfinite(amount)) return Refused(name, "the amount is not a finite number");
    if (amount < 0) return Refused(name, "the amount is negative");
    if (amount > kResourceAmountMax) return Refused(name, "the amount is over 1e14");
    const auto units = static_cast<int64_t>(std::llround(amount * kResourceUnitsPerOne));
    if (units == 0 && amount > 0) return Refused(name, "the amount is finer than 0.0001");
    if (units == 0) continue;
    if (!set.units_.emplace(Canonical(name), units).second) {
      return Refused(name, "given twice, in different spelling");
    }
  }
  return set;
}

ResourceSet ResourceSet::FromUnits(std::map<std::string, int64_t, std::less<>> units) {
  ResourceSet set;
  for (const auto& [name, amount] : units) {
    TROUPE_ASSERT(amount > 0, "an amount in units must be positive");
  }
  set.units_ = std::move(units);
  return set;
}

std::map<std::string, double> ResourceSet::ToMap() const {
  std::map<std::string, double> amounts;
  for (const auto& [name, units] : units_) amounts[name] = Get(name);
  return amounts;
}

double ResourceSet::Get(std::string_view name) const {
  const auto found = units_.find(name);
  return found == units_.end() ? 0 : static_cast<double>(found->second) / kResourceUnitsPerOne;
}

bool ResourceSet::Covers(const ResourceSet& need) const { return Missing(need).empty(); }

ResourceSet ResourceSet::Missing(const ResourceSet& need) const {
  ResourceSet missing;
  for (const auto& [name, units] : need.units_) {
    const auto found = units_.find(name);
    const int64_t have = found == units_.end() ? 0 : found->second;
    if (have < units) missing.units_[name] = units - have;
  }
  return missing;
}

void ResourceSet::Add(const ResourceSet& other) {
  for (const auto& [name, units] : other.units_) units_[name] += units;
}

void ResourceSet::Subtract(const ResourceSet& other) {
  TROUPE_ASSERT(Covers(other), "more is subtracted than there is");
  for (const auto& [name, units] : other.units_) {
    const auto found = units_.find(name);
    found->second -= units;
    if (found->second == 0) units_.erase(found);
  }
}

std::string ResourceSet::ToString() const {
  if (units_.empty()) return "nothing";
  std::string text;
  for (const auto& [name, units] : units_) {
    if (!text.empty()) text += ", ";
    text += name + " " + ShowAmount(name, Get(name));
  }
  return text;
}

std::string ShowAmount(std::string_view name, double amount) {
  std::ostringstream out;
  if (name == "memory") {
    constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (amount >= 1024 && unit + 1 < kUnits.size()) {
      amount /= 1024;
      ++unit;
    }
    out.precision(4);
    out << amount << kUnits[unit];
  } else {
    out.precision(10);
    out << amount;
  }
  return out.str();
}

}  // namespace troupe
