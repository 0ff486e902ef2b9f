// Handles: what C holds in its hands, as numbers that are never used twice.
//
// A number that is not in the table, because it was released or never given out, is found out and
// nothing more: a caller's mistake does not reach freed memory.
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/result.h"

namespace troupe::capi {

// `Opaque`: its type in C, which is never defined.
template <class Opaque, class T>
class Handles {
 public:
  // `kind`: below 16, another one for each table, so that one kind is not taken for another.
  Handles(const char* what, uint64_t kind) : what_(what), kind_(kind) {}

  [[nodiscard]] Opaque* Add(std::shared_ptr<T> object) {
    std::lock_guard lock(mu_);
    const uint64_t id = (next_++ << 4) | kind_;
    objects_.emplace(id, std::move(object));
    return reinterpret_cast<Opaque*>(id);
  }
  [[nodiscard]] std::shared_ptr<T> Find(const Opaque* handle) const {
    std::lock_guard lock(mu_);
    const auto it = objects_.find(reinterpret_cast<uint64_t>(handle));
    return it == objects_.end() ? nullptr : it->second;
  }
  [[nodiscard]] std::shared_ptr<T> Take(const Opaque* handle) {
    std::lock_guard lock(mu_);
    const auto it = objects_.find(reinterpret_cast<uint64_t>(handle));
    if (it == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  [[nodiscard]] Error Unknown(const Opaque* handle) const {
    return Error{
        ErrorCode::kInvalidArgument,
        std::string("this is no handle of ") + what_ +
            (handle == nullptr ? ": it is NULL" : ": it was released, or is of another kind")};
  }

 private:
  const char* const what_;
  const uint64_t kind_;
  mutable std::mutex mu_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace troupe::capi
