// Numbers of one type in one piece, as they travel on the wire: little-endian, as in memory.
//
// An element type goes by the letter that Python's struct module has for it: 'b', 'h', 'i', 'q' for
// signed integers of 1, 2, 4 and 8 bytes, the same in capitals for unsigned ones, 'f' and 'd'.
// Thread: plain functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

namespace troupe::wire {

static_assert(std::endian::native == std::endian::little, "packed numbers are copied as they are");

// The letter of T; 0: vectors of it are not packed.
template <class T>
[[nodiscard]] constexpr char NumberCode() {
  if constexpr (std::is_same_v<T, float>) return 'f';
  if constexpr (std::is_same_v<T, double>) return 'd';
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8) {
    constexpr char kSigned[] = {0, 'b', 'h', 0, 'i', 0, 0, 0, 'q'};
    constexpr char kUnsigned[] = {0, 'B', 'H', 0, 'I', 0, 0, 0, 'Q'};
    return std::is_signed_v<T> ? kSigned[sizeof(T)] : kUnsigned[sizeof(T)];
  }
  return 0;
}

// Calls `f` with a value of the type that `code` stands for; false if it stands for none.
template <class F>
constexpr bool WithNumberType(char code, F&& f) {
  switch (code) {
    case 'b':
      return f(int8_t{}), true;
    case 'h':
      return f(int16_t{}), true;
    case 'i':
      return f(int32_t{}), true;
    case 'q':
      return f(int64_t{}), true;
    case 'B':
      return f(uint8_t{}), true;
    case 'H':
      return f(uint16_t{}), true;
    case 'I':
      return f(uint32_t{}), true;
    case 'Q':
      return f(uint64_t{}), true;
    case 'f':
      return f(float{}), true;
    case 'd':
      return f(double{}), true;
    default:
      return false;
  }
}

// Bytes of an element of type `code`; 0: it stands for none.
[[nodiscard]] constexpr size_t NumberBytes(char code) {
  size_t bytes = 0;
  WithNumberType(code, [&](auto number) { bytes = sizeof number; });
  return bytes;
}

// Whether To can hold the number: integers become floating point, but not the other way.
template <class To, class From>
[[nodiscard]] bool NumberFits(From number) {
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, double>) {
    return !std::isfinite(number) || std::abs(number) <= std::numeric_limits<float>::max();
  } else if constexpr (std::is_floating_point_v<To>) {
    return true;
  } else if constexpr (std::is_floating_point_v<From>) {
    return false;
  } else {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): an int8_t is a number, and no character.
    const auto to = static_cast<To>(number);
    return static_cast<From>(to) == number && (to < To{}) == (number < From{});
  }
}

template <class T>
[[nodiscard]] std::string_view NumbersInMemory(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// The numbers of type `code` in `bytes`, which are a whole number of them, at any alignment. False
// if one does not fit.
template <class T>
[[nodiscard]] bool ReadNumbers(char code, std::string_view bytes, std::vector<T>& to) {
  bool fits = true;
  WithNumberType(code, [&](auto type) {
    using From = decltype(type);
    to.resize(bytes.size() / sizeof(From));
    if (NumberCode<T>() == code) {
      if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
      return;
    }
    for (size_t i = 0; i < to.size() && fits; ++i) {
      From number;
      std::memcpy(&number, bytes.data() + i * sizeof(From), sizeof(From));
      fits = NumberFits<T>(number);
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): likewise.
      if (fits) to[i] = static_cast<T>(number);
    }
  });
  return fits;
}

}  // namespace troupe::wire
