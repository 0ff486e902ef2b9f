#include <charconv>
#include <mutex>

#include "runtime/store.h"

namespace troupe {

struct MemoryStore::Impl {
  struct Entry {
    std::string value;
    Time expires = Time::Never();
  };

  const Clock* clock;
  std::mutex mu;
  std::map<std::string, Entry, std::less<>> entries;
  bool available = true;

  Entry* Find(std::string_view key) {
    const auto it = entries.find(key);
    if (it == entries.end()) return nullptr;
    if (it->second.expires <= clock->Now()) {
      entries.erase(it);
      return nullptr;
    }
    return &it->second;
  }

  void Write(std::string_view key, std::string_view value, Duration ttl) {
    Entry& entry = entries[std::string(key)];
    entry.value = std::string(value);
    entry.expires = ttl == kNoExpiry ? Time::Never() : clock->Now() + ttl;
  }

  [[nodiscard]] Status Check(std::string_view key, std::string_view value = {}) const {
    if (!available) return Error{ErrorCode::kUnavailable, "the store is out of reach"};
    if (key.empty() || key.size() > kStoreKeyBytesMax || value.size() > kStoreValueBytesMax) {
      return Error{ErrorCode::kInvalidArgument, "store key or value over its size limit"};
    }
    return Status::Ok();
  }
};

MemoryStore::MemoryStore(const Clock* clock) : impl_(std::make_unique<Impl>()) {
  impl_->clock = clock;
}
MemoryStore::~MemoryStore() = default;

Result<std::optional<std::string>> MemoryStore::Get(std::string_view key) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(key); !s.ok()) return s.error();
  const Impl::Entry* entry = impl_->Find(key);
  if (entry == nullptr) return std::optional<std::string>();
  return std::optional<std::string>(entry->value);
}

Status MemoryStore::Put(std::string_view key, std::string_view value, Duration ttl) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(key, value); !s.ok()) return s;
  impl_->Write(key, value, ttl);
  return Status::Ok();
}

Status MemoryStore::CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                                  std::string_view value, Duration ttl) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(key, value); !s.ok()) return s;
  const Impl::Entry* entry = impl_->Find(key);
  const bool done_before = entry != nullptr && entry->value == value;
  const bool matches =
      expected.has_value() ? entry != nullptr && entry->value == *expected : entry == nullptr;
  if (!matches && !done_before) return Error{ErrorCode::kConflict, "the value changed meanwhile"};
  impl_->Write(key, value, ttl);
  return Status::Ok();
}

Result<int64_t> MemoryStore::Increment(std::string_view key, int64_t by) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(key); !s.ok()) return s.error();
  const Impl::Entry* entry = impl_->Find(key);
  int64_t current = 0;
  if (entry != nullptr) {
    const char* const end = entry->value.data() + entry->value.size();
    const auto [rest, problem] = std::from_chars(entry->value.data(), end, current);
    if (problem != std::errc() || rest != end) {
      return Error{ErrorCode::kInvalidArgument, "the value is not an integer"};
    }
  }
  if (__builtin_add_overflow(current, by, &current)) {
    return Error{ErrorCode::kInvalidArgument, "the value would leave 64 bits"};
  }
  impl_->entries[std::string(key)].value = std::to_string(current);
  return current;
}

Status MemoryStore::Delete(std::string_view key) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(key); !s.ok()) return s;
  if (const auto it = impl_->entries.find(key); it != impl_->entries.end())
    impl_->entries.erase(it);
  return Status::Ok();
}

Result<std::map<std::string, std::string>> MemoryStore::List(std::string_view prefix) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(prefix); !s.ok()) return s.error();
  std::map<std::string, std::string> found;
  const Time now = impl_->clock->Now();
  for (auto it = impl_->entries.lower_bound(prefix);
       it != impl_->entries.end() && it->first.starts_with(prefix); ++it) {
    if (it->second.expires > now) found.emplace(it->first, it->second.value);
  }
  return found;
}

Result<size_t> MemoryStore::DeletePrefix(std::string_view prefix) {
  std::lock_guard lock(impl_->mu);
  if (Status s = impl_->Check(prefix); !s.ok()) return s.error();
  const Time now = impl_->clock->Now();
  size_t deleted = 0;
  auto it = impl_->entries.lower_bound(prefix);
  while (it != impl_->entries.end() && it->first.starts_with(prefix)) {
    if (it->second.expires > now) ++deleted;
    it = impl_->entries.erase(it);
  }
  return deleted;
}

void MemoryStore::SetAvailable(bool available) {
  std::lock_guard lock(impl_->mu);
  impl_->available = available;
}

}  // namespace troupe
