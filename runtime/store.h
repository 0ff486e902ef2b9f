// Store: the small durable key-value seam behind membership, rendezvous and control state.
//
// Semantics are those both forms (Redis, memory) pass in one conformance suite: single-key
// atomicity, compare-and-set, expiry, prefix listing. Values are binary. A call that fails with
// kUnavailable or kDeadlineExceeded may or may not have taken effect; every operation here is safe
// to repeat.
// Thread: calls block; each object belongs to one thread at a time (a BlockingLane in services).
// Limits: kStoreKeyBytesMax, kStoreValueBytesMax.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kStoreKeyBytesMax = 512;
inline constexpr size_t kStoreValueBytesMax = size_t{16} << 20;

class Store {
 public:
  static constexpr Duration kNoExpiry = Duration::zero();

  virtual ~Store() = default;

  // The value, or nullopt if the key is absent or expired.
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;
  // Writes unconditionally. A zero ttl never expires.
  virtual Status Put(std::string_view key, std::string_view value, Duration ttl = kNoExpiry) = 0;
  // Writes if the current value equals `expected` (nullopt: if absent). kConflict if it does not; a
  // repeat of a write that already happened (current value equals `value`) succeeds.
  virtual Status CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                               std::string_view value, Duration ttl = kNoExpiry) = 0;
  // Adds to an integer key (absent counts as 0) and returns the new value.
  virtual Result<int64_t> Increment(std::string_view key, int64_t by = 1) = 0;
  // Succeeds whether or not the key exists.
  virtual Status Delete(std::string_view key) = 0;
  // All live keys that start with `prefix`, with their values.
  virtual Result<std::map<std::string, std::string>> List(std::string_view prefix) = 0;
  // Deletes all keys that start with `prefix`; returns how many.
  virtual Result<size_t> DeletePrefix(std::string_view prefix) = 0;
};

// A store in this process; expiry follows `clock`. SetAvailable(false) makes every call fail with
// kUnavailable.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const Clock* clock);
  ~MemoryStore() override;
  Result<std::optional<std::string>> Get(std::string_view key) override;
  Status Put(std::string_view key, std::string_view value, Duration ttl) override;
  Status CompareAndSet(std::string_view key, const std::optional<std::string>& expected,
                       std::string_view value, Duration ttl) override;
  Result<int64_t> Increment(std::string_view key, int64_t by) override;
  Status Delete(std::string_view key) override;
  Result<std::map<std::string, std::string>> List(std::string_view prefix) override;
  Result<size_t> DeletePrefix(std::string_view prefix) override;
  void SetAvailable(bool available);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct RedisOptions {
  std::string host = "127.0.0.1";  // Ignored when unix_socket is set.
  int port = 6379;
  std::string unix_socket;
  std::string password;
  std::string key_prefix;  // Put before every key, so that clusters can share a server.
  Duration connect_timeout = seconds(2);
  Duration command_timeout = seconds(2);
};

// Connects lazily and again after any failure. Never blocks longer than connect_timeout +
// command_timeout.
std::unique_ptr<Store> MakeRedisStore(RedisOptions options);

}  // namespace troupe
