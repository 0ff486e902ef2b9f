// The wire format: MessagePack arrays with limits, arity and version checks.
//
// A message is one MessagePack array [version, type, field...]. A struct takes part by a member
// template
//   template <class A> void Fields(A& a) { a(first, second, ...); }
// that names its fields once for both directions. Field types: bool, integers, floating point,
// std::string (binary safe), enums with a uint8_t base, structs with Fields, std::vector and
// std::map<std::string, T> of those. An enum E beside which `constexpr E LastValue(E)` stands
// accepts no greater value.
//
// Values of users are written with Numbers::kPacked: a std::vector of numbers (not of bool or long
// double) is one MessagePack ext then, whose type and content runtime/wire_numbers.h describes. Its
// length is limited by the frame's alone. Readers take both forms and convert numbers that fit.
//
// Decoding never trusts its input: a wrong type, a wrong arity, a value out of range, trailing
// bytes, or anything over the limits below is Error{kCorrupt}, which names the message type, what
// is wrong and where, as indices from the envelope inwards: "expected bytes at [2][0]".
// Thread: a Writer or Reader belongs to one thread.
// Limits: kWireFrameBytesMax, kWireElementsMax, kWireDepthMax.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/result.h"
#include "runtime/wire_numbers.h"

namespace troupe::wire {

inline constexpr uint32_t kWireVersion = 1;
// Of what is kept in a store; see DecodeRecord. Raised when an older release must not read it.
inline constexpr uint32_t kRecordFormat = 1;
inline constexpr size_t kWireFrameBytesMax = size_t{256} << 20;  // One frame, payload included.
inline constexpr size_t kWireElementsMax = 1'000'000;            // Elements of one array or map.
inline constexpr size_t kWireDepthMax = 16;                      // Nesting of arrays and maps.

// How a vector of numbers is written. Messages of the cluster and records keep arrays, which
// earlier releases read, too.
enum class Numbers : uint8_t { kElements, kPacked };

class Writer {
 public:
  explicit Writer(Numbers numbers = Numbers::kElements);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Array(size_t elements);
  void Map(size_t elements);
  void Bool(bool value);
  void Int(int64_t value);
  void Uint(uint64_t value);
  void Double(double value);
  void Bytes(std::string_view value);
  // Elements of type `code`, in this host's memory.
  void Packed(char code, std::string_view elements);
  [[nodiscard]] Numbers numbers() const { return numbers_; }
  [[nodiscard]] std::string Take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Numbers numbers_;
};

// Reads in the order of writing. The first problem is kept; later reads return defaults.
class Reader {
 public:
  // `lenient`: a struct may have fewer fields, or more, than it has here.
  explicit Reader(std::string_view bytes, bool lenient = false);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  size_t Array();  // Elements of the array entered.
  size_t Map();
  bool Bool();
  int64_t Int();
  uint64_t Uint();
  double Double();
  std::string Bytes();
  struct PackedNumbers {
    char code = 'b';
    std::string_view elements;  // A whole number of them, in the frame, at any alignment.
  };
  PackedNumbers Packed();
  // What the next value is, for who does not know what to expect; kNone: there is none.
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kUint,
    kDouble,
    kBytes,
    kArray,
    kMap,
    kPacked,
    kOther
  };
  [[nodiscard]] Kind Peek() const;
  void Leave();      // Ends the array or map entered last; anything unread in it is an error,
  void LeaveRest();  // or is passed over.
  void Fail(std::string_view why);
  [[nodiscard]] bool failed() const;
  [[nodiscard]] bool lenient() const { return lenient_; }
  // Success if everything was read and nothing failed.
  [[nodiscard]] Status Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool lenient_;
};

namespace internal {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsStringMap : std::false_type {};
template <class T>
struct IsStringMap<std::map<std::string, T>> : std::true_type {};

struct CountFields {
  size_t count = 0;
  template <class... T>
  void operator()(T&...) {
    count += sizeof...(T);
  }
};

template <class T>
void WriteValue(Writer& w, const T& value);
template <class T>
void ReadValue(Reader& r, T& value);

struct WriteFields {
  Writer& w;
  template <class... T>
  void operator()(const T&... fields) {
    (WriteValue(w, fields), ...);
  }
};
struct ReadFields {
  Reader& r;
  size_t left;  // Fields that are there; the others keep their defaults.
  template <class... T>
  void operator()(T&... fields) {
    ((left > 0 ? (--left, ReadValue(r, fields)) : void()), ...);
  }
};

template <class T>
void WriteValue(Writer& w, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    w.Bool(value);
  } else if constexpr (std::is_enum_v<T>) {
    w.Uint(static_cast<uint64_t>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    w.Double(value);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    w.Int(value);
  } else if constexpr (std::is_integral_v<T>) {
    w.Uint(value);
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    w.Bytes(value);
  } else if constexpr (IsVector<T>::value) {
    if constexpr (NumberCode<typename T::value_type>() != 0) {
      if (w.numbers() == Numbers::kPacked)
        return w.Packed(NumberCode<typename T::value_type>(), NumbersInMemory(value));
    }
    w.Array(value.size());
    for (const auto& element : value) WriteValue(w, element);
  } else if constexpr (IsStringMap<T>::value) {
    w.Map(value.size());
    for (const auto& [key, element] : value) {
      w.Bytes(key);
      WriteValue(w, element);
    }
  } else {
    auto& fields =
        const_cast<T&>(value);  // Fields() serves both directions; writing does not modify.
    CountFields count;
    fields.Fields(count);
    w.Array(count.count);
    WriteFields write{w};
    fields.Fields(write);
  }
}

template <class T>
void ReadPacked(Reader& r, std::vector<T>& value) {
  const Reader::PackedNumbers packed = r.Packed();
  if (!ReadNumbers(packed.code, packed.elements, value)) r.Fail("number out of range");
}

template <class T>
void ReadValue(Reader& r, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = r.Bool();
  } else if constexpr (std::is_enum_v<T>) {
    const uint64_t raw = r.Uint();
    uint64_t last = 255;
    if constexpr (requires { LastValue(T{}); }) last = static_cast<uint64_t>(LastValue(T{}));
    if (raw > last) return r.Fail("enum value over " + std::to_string(last));
    value = static_cast<T>(raw);
  } else if constexpr (std::is_floating_point_v<T>) {
    const double raw = r.Double();
    if (std::abs(raw) > std::numeric_limits<T>::max() && !std::isinf(raw)) {
      return r.Fail("number out of range");  // The cast would be undefined.
    }
    value = static_cast<T>(raw);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    const int64_t raw = r.Int();
    value = static_cast<T>(raw);
    if (value != raw) r.Fail("integer out of range");
  } else if constexpr (std::is_integral_v<T>) {
    const uint64_t raw = r.Uint();
    value = static_cast<T>(raw);
    if (value != raw) r.Fail("integer out of range");
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = r.Bytes();
  } else if constexpr (IsVector<T>::value) {
    if constexpr (NumberCode<typename T::value_type>() != 0) {
      if (r.Peek() == Reader::Kind::kPacked) return ReadPacked(r, value);
    }
    if constexpr (NumberCode<typename T::value_type>() == 'B') {
      if (r.Peek() == Reader::Kind::kBytes) {  // As bytes of other languages come.
        const std::string bytes = r.Bytes();
        value.assign(bytes.begin(), bytes.end());
        return;
      }
    }
    const size_t size = r.Array();
    value.clear();
    for (size_t i = 0; i < size && !r.failed(); ++i) ReadValue(r, value.emplace_back());
    r.Leave();
  } else if constexpr (IsStringMap<T>::value) {
    const size_t size = r.Map();
    value.clear();
    for (size_t i = 0; i < size && !r.failed(); ++i) {
      std::string key = r.Bytes();
      ReadValue(r, value[std::move(key)]);
    }
    r.Leave();
  } else {
    CountFields count;
    value.Fields(count);
    const size_t there = r.Array();
    if (there != count.count && !r.lenient()) r.Fail("wrong number of fields");
    ReadFields read{r, there};
    value.Fields(read);
    r.lenient() ? r.LeaveRest() : r.Leave();
  }
}

}  // namespace internal

// Encodes one struct as [version, type, [fields...]].
template <class T>
[[nodiscard]] std::string Encode(uint8_t type, const T& message,
                                 Numbers numbers = Numbers::kElements) {
  Writer w(numbers);
  w.Array(3);
  w.Uint(kWireVersion);
  w.Uint(type);
  internal::WriteValue(w, message);
  return w.Take();
}

// The type of an encoded message, or Error{kCorrupt} if the envelope or the version is wrong.
[[nodiscard]] Result<uint8_t> PeekType(std::string_view bytes);

// Decodes what Encode made in this release, an earlier or a later one: structs gain fields at their
// end only, and those that are not there keep their defaults. kCorrupt names a newer format.
template <class T>
[[nodiscard]] Result<T> DecodeRecord(uint8_t type, std::string_view bytes) {
  Reader r(bytes, /*lenient=*/true);
  if (r.Array() != 3) r.Fail("envelope is not [format, type, fields]");
  if (const uint64_t format = r.Uint(); format > kRecordFormat) {
    r.Fail("written by a newer release, in format " + std::to_string(format) +
           "; this one reads up to " + std::to_string(kRecordFormat));
  }
  if (r.Uint() != type) r.Fail("unexpected record type");
  T record{};
  if (!r.failed()) internal::ReadValue(r, record);
  r.Leave();
  if (Status status = r.Finish(); !status.ok()) {
    return status.error().WithContext("record type " + std::to_string(type));
  }
  return record;
}

// Decodes a message that was encoded with the same type number.
template <class T>
[[nodiscard]] Result<T> Decode(uint8_t type, std::string_view bytes) {
  Reader r(bytes);
  if (r.Array() != 3) r.Fail("envelope is not [version, type, fields]");
  if (r.Uint() != kWireVersion)
    r.Fail("unsupported wire version; use the same release on every machine");
  if (r.Uint() != type) r.Fail("unexpected message type");
  T message{};
  if (!r.failed()) internal::ReadValue(r, message);
  r.Leave();
  if (Status status = r.Finish(); !status.ok()) {
    return status.error().WithContext("message type " + std::to_string(type));
  }
  return message;
}

}  // namespace troupe::wire
