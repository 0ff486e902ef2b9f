// Files with the large buffers of this host's processes, as others ask for them; what Python does
// with them is in troupe/actors/_objects.py.
//
// A file is named "NAME@IDENTITY", where the identity is that of the folder that it is in.
// Thread: any.
// Limits: kChunkBytesMax of a file in one answer.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "runtime/result.h"

namespace troupe::pyapi {

namespace py = pybind11;

inline constexpr size_t kChunkBytesMax = 1 << 20;

// Unlinks it, if it is in the folder of this process.
void UnlinkSharedFile(const std::string& file);
// Some of a file: `request` is "OFFSET LENGTH FILE". kNotFound: it is gone, or was never here.
Result<std::string> ReadSharedFile(const std::string& request);
// Whether it is in the folder of this process.
[[nodiscard]] bool IsSharedHere(std::string_view file);

void BindSharedFiles(py::module_& m);

}  // namespace troupe::pyapi
