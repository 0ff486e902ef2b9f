// Plain values of Python in the encoding of C++ actors: bool, int, float, str, bytes, list, tuple,
// dict with str keys, arrays of numbers, and handles of actors.
//
// C++ does not tell text from bytes: what is UTF-8 arrives as str, all else as bytes. None is the
// result of a method that returns nothing, and nothing else.
// Thread: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace troupe::pyapi {

namespace py = pybind11;

// [version, type, values]: the arguments of a call, or its result.
[[nodiscard]] py::bytes PackPlain(uint8_t type, const py::sequence& values);
[[nodiscard]] py::list UnpackPlain(uint8_t type, const std::string& bytes);

void BindPlainValues(py::module_& m);

}  // namespace troupe::pyapi
