// Numbers of one type in one piece between Python and C++ actors: a std::vector of numbers there, a
// list, or a NumPy array, array.array or memoryview as an argument, here.
//
// Thread: with the GIL.
// Limits: those of the wire format; packed numbers are limited by the size of a message alone.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/wire.h"

namespace troupe::pyapi {

namespace py = pybind11;

// Writes an object with Python's buffer protocol: the rows of more dimensions as lists. Raises
// TypeError for elements that are no numbers of C++, and for those of another byte order.
void WriteBuffer(wire::Writer& w, const py::handle& value);
// Writes a list or tuple that has more items than an array of the wire format may have. Raises
// ValueError unless all are int, or all are int and float that a double holds.
void WriteLongList(wire::Writer& w, const py::sequence& items);
// The next value, which is packed, as a list.
[[nodiscard]] py::list ReadPacked(wire::Reader& r);

}  // namespace troupe::pyapi
