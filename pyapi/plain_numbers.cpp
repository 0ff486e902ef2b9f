#include "pyapi/plain_numbers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::pyapi {
namespace {

constexpr int64_t kExactInDouble = int64_t{1} << 53;

// A view of an object's memory, for as long as it lives.
class Buffer {
 public:
  explicit Buffer(const py::handle& value) {
    if (PyObject_GetBuffer(value.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0)
      throw py::error_already_set();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] const Py_buffer& view() const { return view_; }
  // Its elements in the order of C.
  [[nodiscard]] std::string Copied() const {
    std::string bytes(static_cast<size_t>(view_.len), '\0');
    if (PyBuffer_ToContiguous(bytes.data(), &view_, view_.len, 'C') != 0)
      throw py::error_already_set();
    return bytes;
  }

 private:
  Py_buffer view_{};
};

// What the wire calls elements of this format; Python's letters may mean sizes of this machine.
char CodeOf(const Py_buffer& view) {
  const std::string format = view.format == nullptr ? "B" : view.format;
  const bool prefixed = !format.empty() && std::strchr("@=<", format[0]) != nullptr;
  const std::string kind = prefixed ? format.substr(1) : format;
  const auto is_one_of = [&](const char* letters) {
    return kind.size() == 1 && std::strchr(letters, kind[0]) != nullptr;
  };
  const char* codes = "";
  if (is_one_of("bhilqn")) codes = "bhiq";
  if (is_one_of("BHILQN")) codes = "BHIQ";
  if (is_one_of("fd")) codes = "fd";
  for (const char* code = codes; *code != 0; ++code) {
    if (wire::NumberBytes(*code) == static_cast<size_t>(view.itemsize)) return *code;
  }
  throw py::type_error("a C++ actor takes arrays of integers, float32 and float64 in this " +
                       std::string("machine's byte order, not of format \"") + format +
                       "\"; convert it, or pass its tolist()");
}

void WriteRows(wire::Writer& w, const Py_buffer& view, int dimension, char code,
               std::string_view& left) {
  const auto size = static_cast<size_t>(view.shape[dimension]);
  if (dimension + 1 == view.ndim) {
    const size_t bytes = size * static_cast<size_t>(view.itemsize);
    w.Packed(code, left.substr(0, bytes));
    left.remove_prefix(bytes);
    return;
  }
  w.Array(size);
  for (size_t i = 0; i < size; ++i) WriteRows(w, view, dimension + 1, code, left);
}

template <class T>
void WriteVector(wire::Writer& w, const std::vector<T>& numbers) {
  w.Packed(wire::NumberCode<T>(), wire::NumbersInMemory(numbers));
}

// Whether the item is an int of 64 bits.
bool IsInt(PyObject* item, int64_t& number) {
  if (!PyLong_CheckExact(item)) return false;
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(item, &overflow);
  return overflow == 0;
}

}  // namespace

void WriteBuffer(wire::Writer& w, const py::handle& value) {
  const Buffer buffer(value);
  const Py_buffer& view = buffer.view();
  const char code = CodeOf(view);
  if (view.ndim < 1 || view.ndim > static_cast<int>(wire::kWireDepthMax) / 2) {
    throw py::type_error("a C++ actor takes arrays of 1 to " +
                         std::to_string(wire::kWireDepthMax / 2) + " dimensions, not of " +
                         std::to_string(view.ndim));
  }
  const std::string elements = buffer.Copied();
  std::string_view left = elements;
  WriteRows(w, view, 0, code, left);
}

void WriteLongList(wire::Writer& w, const py::sequence& items) {
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  bool all_int = true;
  bool all_double = true;
  ints.reserve(items.size());
  doubles.reserve(items.size());
  for (const py::handle item : items) {
    int64_t number = 0;
    if (IsInt(item.ptr(), number)) {
      ints.push_back(number);
      all_double = all_double && number >= -kExactInDouble && number <= kExactInDouble;
      doubles.push_back(static_cast<double>(number));
    } else {
      all_int = false;
      all_double = all_double && PyFloat_Check(item.ptr());
      if (all_double) doubles.push_back(PyFloat_AsDouble(item.ptr()));
    }
    if (!all_int && !all_double) break;
  }
  if (all_int) return WriteVector(w, ints);
  if (all_double) return WriteVector(w, doubles);
  throw py::value_error("a list for a C++ actor has " + std::to_string(items.size()) +
                        " items, over the limit of " + std::to_string(wire::kWireElementsMax) +
                        " for one that is not of int or float alone; pass it in parts");
}

py::list ReadPacked(wire::Reader& r) {
  const wire::Reader::PackedNumbers packed = r.Packed();
  py::list list;
  wire::WithNumberType(packed.code, [&](auto type) {
    using Number = decltype(type);
    const size_t count = packed.elements.size() / sizeof(Number);
    list = py::list(count);
    for (size_t i = 0; i < count; ++i) {
      Number number;
      std::memcpy(&number, packed.elements.data() + i * sizeof(Number), sizeof(Number));
      list[i] = number;
    }
  });
  return list;
}

}  // namespace troupe::pyapi
