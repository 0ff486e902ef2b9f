#include "pyapi/plain_values.h"

#include <cmath>
#include <utility>

#include "actors/api/actor_type.h"
#include "pyapi/actor_calls.h"
#include "pyapi/plain_numbers.h"
#include "pyapi/python_support.h"
#include "runtime/wire.h"

namespace troupe::pyapi {
namespace {

constexpr size_t kDepthMax = wire::kWireDepthMax - 2;  // Within the envelope.

void Write(wire::Writer& w, const py::handle& value, size_t depth);

void WriteInt(wire::Writer& w, const py::handle& value) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) return w.Int(number);
  const uint64_t unsigned_number =
      overflow > 0 ? PyLong_AsUnsignedLongLong(value.ptr()) : static_cast<uint64_t>(-1);
  if (overflow < 0 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::value_error("a C++ actor takes integers of at most 64 bits, not " +
                          std::string(py::str(value)));
  }
  w.Uint(unsigned_number);
}

void WriteRef(wire::Writer& w, const PyActorRef& ref) {
  // As an ActorHandle's fields: [[actor, incarnation, type, [peer, endpoint, key], placed]].
  const actors::ActorAddress address = ref.ref().address();
  w.Array(1);
  wire::internal::WriteValue(w, address);
}

// np.int64(5), np.float32(0.5), np.bool_(True), arrays without a dimension.
bool IsNumpyScalar(const py::handle& value) {
  if (!py::hasattr(value, "item") || !py::hasattr(value, "ndim")) return false;
  const py::object dimensions = value.attr("ndim");
  return py::isinstance<py::int_>(dimensions) && dimensions.cast<int>() == 0;
}

void WriteItems(wire::Writer& w, const py::handle& value, size_t depth) {
  const auto items = py::reinterpret_borrow<py::sequence>(value);
  if (items.size() > wire::kWireElementsMax) return WriteLongList(w, items);
  w.Array(items.size());
  for (const py::handle item : items) Write(w, item, depth + 1);
}

void Write(wire::Writer& w, const py::handle& value, size_t depth) {
  if (depth > kDepthMax) throw py::value_error("values for a C++ actor are nested too deeply");
  if (PyBool_Check(value.ptr())) {
    w.Bool(value.ptr() == Py_True);
  } else if (PyLong_Check(value.ptr())) {
    WriteInt(w, value);
  } else if (PyFloat_Check(value.ptr())) {
    w.Double(PyFloat_AsDouble(value.ptr()));
  } else if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr())) {
    w.Bytes(value.cast<std::string>());
  } else if (PyByteArray_Check(value.ptr())) {
    w.Bytes(
        {PyByteArray_AsString(value.ptr()), static_cast<size_t>(PyByteArray_Size(value.ptr()))});
  } else if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    WriteItems(w, value, depth);
  } else if (PyDict_Check(value.ptr())) {
    const auto dict = py::reinterpret_borrow<py::dict>(value);
    w.Map(dict.size());
    for (const auto& [key, item] : dict) {
      if (!PyUnicode_Check(key.ptr()))
        throw py::type_error("keys of a dict for a C++ actor must be str");
      w.Bytes(key.cast<std::string>());
      Write(w, item, depth + 1);
    }
  } else if (py::isinstance<PyActorRef>(value)) {
    WriteRef(w, value.cast<const PyActorRef&>());
  } else if (IsNumpyScalar(value)) {
    Write(w, value.attr("item")(), depth + 1);
  } else if (PyObject_CheckBuffer(value.ptr()) != 0) {
    WriteBuffer(w, value);
  } else {
    throw py::type_error(
        "a C++ actor takes bool, int, float, str, bytes, list, tuple, dict with str keys, arrays "
        "of numbers and handles of actors, not " +
        std::string(py::str(py::type::of(value).attr("__name__"))));
  }
}

py::object Text(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "strict");
  if (text != nullptr) return py::reinterpret_steal<py::object>(text);
  PyErr_Clear();
  return py::bytes(bytes);
}

py::object Read(wire::Reader& r) {
  using Kind = wire::Reader::Kind;
  switch (r.Peek()) {
    case Kind::kBool:
      return py::bool_(r.Bool());
    case Kind::kInt:
      return py::int_(r.Int());
    case Kind::kUint:
      return py::int_(r.Uint());
    case Kind::kDouble:
      return py::float_(r.Double());
    case Kind::kBytes:
      return Text(r.Bytes());
    case Kind::kArray: {
      py::list list;
      const size_t size = r.Array();
      for (size_t i = 0; i < size && !r.failed(); ++i) list.append(Read(r));
      r.Leave();
      return list;
    }
    case Kind::kMap: {
      py::dict dict;
      const size_t size = r.Map();
      for (size_t i = 0; i < size && !r.failed(); ++i) {
        const py::object key = Text(r.Bytes());
        dict[key] = Read(r);
      }
      r.Leave();
      return dict;
    }
    case Kind::kPacked:
      return ReadPacked(r);
    case Kind::kNone:
    case Kind::kOther:
      break;
  }
  r.Fail("a value of an unknown kind");
  return py::none();
}

}  // namespace

py::bytes PackPlain(uint8_t type, const py::sequence& values) {
  wire::Writer w;
  w.Array(3);
  w.Uint(wire::kWireVersion);
  w.Uint(type);
  WriteItems(w, values, 0);
  return w.Take();
}

py::list UnpackPlain(uint8_t type, const std::string& bytes) {
  wire::Reader r(bytes);
  if (r.Array() != 3) r.Fail("envelope is not [version, type, fields]");
  if (r.Uint() != wire::kWireVersion) r.Fail("unsupported wire version");
  if (r.Uint() != type) r.Fail("unexpected message type");
  py::list values;
  const size_t size = r.failed() ? 0 : r.Array();
  for (size_t i = 0; i < size && !r.failed(); ++i) values.append(Read(r));
  if (!r.failed()) r.Leave();
  if (!r.failed()) r.Leave();
  Check(r.Finish());
  return values;
}

void BindPlainValues(py::module_& m) {
  m.def("pack_arguments",
        [](const py::sequence& values) { return PackPlain(actors::kArgumentsType, values); });
  m.def("unpack_arguments",
        [](const py::bytes& bytes) { return UnpackPlain(actors::kArgumentsType, bytes); });
  m.def("pack_result",
        [](const py::sequence& values) { return PackPlain(actors::kValueType, values); });
  m.def("unpack_result",
        [](const py::bytes& bytes) { return UnpackPlain(actors::kValueType, bytes); });
}

}  // namespace troupe::pyapi
