// ReadRecord: what the store has, as a value.
// Thread: that of the queue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "daemons/head/core/head_queue.h"
#include "runtime/wire.h"

namespace troupe::daemons {

// A record of this release, an earlier or a later one. Nothing, told in the log, if it cannot be
// read; it stays in the store then.
template <class T>
[[nodiscard]] std::optional<T> ReadRecord(HeadQueue& queue, uint8_t type, const std::string& key,
                                          const std::string& bytes) {
  Result<T> record = wire::DecodeRecord<T>(type, bytes);
  if (record.ok()) return std::move(*record);
  queue.Warn("the record ", key, " cannot be read and is passed over: ", record.error().message);
  return std::nullopt;
}

}  // namespace troupe::daemons
