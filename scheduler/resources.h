// Amounts of named resources: CPU, GPU, memory (bytes) and whatever a user names.
//
// Amounts are fixed point, in units of 1/10000, so that fractions of a GPU add up exactly and a
// resource that was taken and given back is the same as before. A resource that is absent has
// amount 0, and 0 is never stored.
// Thread: a value type.
// Invariants: no amount is negative.
// Limits: kResourceNamesMax names of at most kResourceNameBytesMax bytes, amounts up to
// kResourceAmountMax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/result.h"

namespace troupe {

inline constexpr int64_t kResourceUnitsPerOne = 10'000;
inline constexpr size_t kResourceNamesMax = 64;
inline constexpr size_t kResourceNameBytesMax = 64;
inline constexpr double kResourceAmountMax = 1e14;  // 90 TiB, when it is memory.

class ResourceSet {
 public:
  ResourceSet() = default;
  // Refuses negative, infinite and not-a-number amounts, amounts over the limit or finer than a
  // unit, and names that are not letters, digits and _ . : / -. "cpu", "gpu" and "Memory" mean CPU,
  // GPU and memory.
  static Result<ResourceSet> FromMap(const std::map<std::string, double>& amounts);

  // From amounts in units of 1/10000, which must be positive, by canonical names.
  static ResourceSet FromUnits(std::map<std::string, int64_t, std::less<>> units);

  [[nodiscard]] std::map<std::string, double> ToMap() const;
  [[nodiscard]] const std::map<std::string, int64_t, std::less<>>& units() const { return units_; }
  [[nodiscard]] double Get(std::string_view name) const;
  [[nodiscard]] bool empty() const { return units_.empty(); }
  // Whether every amount of `need` is there.
  [[nodiscard]] bool Covers(const ResourceSet& need) const;
  // What of `need` is not there: need - this, where that is positive.
  [[nodiscard]] ResourceSet Missing(const ResourceSet& need) const;
  void Add(const ResourceSet& other);
  // Requires Covers(other).
  void Subtract(const ResourceSet& other);
  // "CPU 2, GPU 0.5, memory 4GiB"; "nothing" when empty.
  [[nodiscard]] std::string ToString() const;

  friend bool operator==(const ResourceSet&, const ResourceSet&) = default;

 private:
  std::map<std::string, int64_t, std::less<>> units_;
};

// One amount for people: "1.5", or for memory "4GiB".
[[nodiscard]] std::string ShowAmount(std::string_view name, double amount);

}  // namespace troupe
