#include "pyapi/shared_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <utility>

#include "pyapi/python_support.h"
#include "runtime/shared_folder.h"

namespace troupe::pyapi {
namespace {

struct Place {
  std::mutex mu;
  std::string path;
  std::string spill_path;
  std::string identity;
};
Place& ThePlace() {
  static auto* const place = new Place();  // Results outlive static destructors.
  return *place;
}

// "NAME" of a file that is in the folder of this process; empty for others.
std::string NameHere(std::string_view file) {
  Place& place = ThePlace();
  const size_t at = file.find('@');
  std::lock_guard lock(place.mu);
  if (at == std::string_view::npos || place.identity.empty() ||
      file.substr(at + 1) != place.identity)
    return "";
  const std::string_view name = file.substr(0, at);
  return name.find('/') == std::string_view::npos ? std::string(name) : "";
}

// Open for reading, in memory or where it was put to make room; -1: it is gone.
int OpenHere(const std::string& name) {
  std::string path;
  std::string spill_path;
  {
    std::lock_guard lock(ThePlace().mu);
    path = ThePlace().path;
    spill_path = ThePlace().spill_path;
  }
  for (const std::string& folder : {path, spill_path, path}) {
    if (folder.empty()) continue;
    const int fd = ::open((folder + "/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) return fd;
  }
  return -1;
}

}  // namespace

bool IsSharedHere(std::string_view file) { return !NameHere(file).empty(); }

void UnlinkSharedFile(const std::string& file) {
  const std::string name = NameHere(file);
  if (name.empty()) return;
  std::lock_guard lock(ThePlace().mu);
  ::unlink((ThePlace().path + "/" + name).c_str());
  if (!ThePlace().spill_path.empty()) ::unlink((ThePlace().spill_path + "/" + name).c_str());
}

Result<std::string> ReadSharedFile(const std::string& request) {
  std::istringstream words(request);
  uint64_t offset = 0;
  uint64_t length = 0;
  std::string file;
  if (!(words >> offset >> length >> file) || length > kChunkBytesMax)
    return Error{ErrorCode::kInvalidArgument, "this asks for no part of a shared buffer"};
  const std::string name = NameHere(file);
  const int fd = name.empty() ? -1 : OpenHere(name);
  if (fd < 0) {
    return Error{ErrorCode::kNotFound, "the shared buffer " + file +
                                           " is gone: its ref was dropped, or its owner has ended"};
  }
  std::string bytes(length, '\0');
  std::string why;
  size_t done = 0;
  while (done < length) {
    const ssize_t got =
        ::pread(fd, bytes.data() + done, length - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      why = got == 0 ? "it is shorter than was asked for" : std::strerror(errno);
      break;
    }
    done += static_cast<size_t>(got);
  }
  ::close(fd);
  if (done < length)
    return Error{ErrorCode::kCorrupt, "the shared buffer " + file + " cannot be read: " + why};
  return bytes;
}

void BindSharedFiles(py::module_& m) {
  m.def("shared_folder_path", &SharedFolder::PathOf, py::arg("cluster"));
  m.def("remove_ended_folders", &SharedFolder::RemoveEnded, py::call_guard<WithoutGil>());
  m.attr("CHUNK_BYTES_MAX") = kChunkBytesMax;
  // To the beginning of `to`, which has as many bytes at least.
  m.def(
      "copy_bytes",
      [](const py::buffer& to, const py::buffer& from) {
        const py::buffer_info target = to.request(true);
        const py::buffer_info source = from.request();
        const auto bytes = static_cast<size_t>(source.size * source.itemsize);
        if (bytes > static_cast<size_t>(target.size * target.itemsize))
          throw py::value_error("there is no room for so many bytes");
        const WithoutGil released;
        std::memcpy(target.ptr, source.ptr, bytes);
      },
      py::arg("to"), py::arg("from"));
  // Where others are given files from, until another is set; "": nothing is given.
  m.def(
      "serve_shared_files",
      [](const std::string& path, const std::string& spill_path, const std::string& identity) {
        std::lock_guard lock(ThePlace().mu);
        ThePlace().path = path;
        ThePlace().spill_path = spill_path;
        ThePlace().identity = identity;
      },
      py::arg("path"), py::arg("spill_path"), py::arg("identity"));
  py::class_<SharedFolder>(m, "SharedFolder")
      .def(py::init([](const std::string& path) {
             auto entered = [&] {
               const WithoutGil released;
               return SharedFolder::Enter(path);
             }();
             return Unwrap(std::move(entered));
           }),
           py::arg("path"))
      .def_property_readonly("path", &SharedFolder::path)
      .def_property_readonly("spill_path", &SharedFolder::spill_path)
      .def_property_readonly("identity", &SharedFolder::identity)
      .def_property_readonly("name", &SharedFolder::name)
      .def("sweep", &SharedFolder::Sweep, py::call_guard<WithoutGil>());
}

}  // namespace troupe::pyapi
