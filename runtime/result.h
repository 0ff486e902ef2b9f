// Result<T>: a value or an Error; Status: success or an Error.
//
// Used on every path inside the libraries; exceptions stay at public edges and inside adapters of
// third-party packages. Asking a failed Result for its value is a bug of the caller: it prints the
// error that nobody has looked at, and aborts.
// Thread: as its T.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "runtime/assert.h"
#include "runtime/error.h"

namespace troupe {

// Prints the error, and where its value was asked for (null: not known), and aborts.
[[noreturn]] void ValueOfFailed(const Error& error, const char* file, int line);

template <class T>
class [[nodiscard]] Result {
 public:
  // Both conversions are implicit by design: `return value;` and `return Error{...};` read alike.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Where the caller is gets printed if there is no value. Operators cannot tell.
  [[nodiscard]] T& value(const char* file = __builtin_FILE(), int line = __builtin_LINE()) & {
    Demand(file, line);
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value(const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) const& {
    Demand(file, line);
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value(const char* file = __builtin_FILE(), int line = __builtin_LINE()) && {
    Demand(file, line);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(nullptr, 0); }
  const T& operator*() const& { return value(nullptr, 0); }
  T* operator->() { return &value(nullptr, 0); }
  const T* operator->() const { return &value(nullptr, 0); }

  [[nodiscard]] const Error& error() const {
    TROUPE_ASSERT(!ok(), "error() of a successful Result");
    return std::get<1>(state_);
  }

 private:
  void Demand(const char* file, int line) const {
    if (!ok()) [[unlikely]]
      ValueOfFailed(std::get<1>(state_), file, line);
  }

  std::variant<T, Error> state_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design
  static Status Ok() { return {}; }

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    TROUPE_ASSERT(!ok(), "error() of a successful Status");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace troupe
