#include "pyapi/commits.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "collective_groups/checkpoint/commit_store.h"
#include "pyapi/python_support.h"
#include "runtime/clock.h"

namespace troupe::pyapi {
namespace {

using groups::Commit;
using groups::CommitStore;
using Buffers = std::vector<std::pair<uintptr_t, size_t>>;  // (address, bytes)

std::unique_ptr<CommitStore> Open(const std::string& directory, uint32_t keep) {
  auto store = [&] {
    const WithoutGil released;
    return CommitStore::Open({directory, keep});
  }();
  return Unwrap(std::move(store));
}

// A CommitStore that can be closed ahead of its collection.
class PyCommitStore {
 public:
  PyCommitStore(const std::string& directory, uint32_t keep) : store_(Open(directory, keep)) {}
  ~PyCommitStore() { Close(); }
  PyCommitStore(const PyCommitStore&) = delete;
  PyCommitStore& operator=(const PyCommitStore&) = delete;

  void Close() {
    std::unique_ptr<CommitStore> store = std::move(store_);
    const WithoutGil released;
    store.reset();
  }
  uint64_t Save(uint64_t version, const py::bytes& header, const Buffers& tensors) {
    std::vector<groups::ConstBuffer> list;
    list.reserve(tensors.size());
    for (const auto& [address, bytes] : tensors)
      list.push_back({reinterpret_cast<const void*>(address), bytes});
    return Store().Save(version, header, std::move(list));
  }
  std::pair<uint64_t, uint64_t> State() {
    const CommitStore::State state = Store().state();
    return {state.writing, state.waiting};
  }
  bool Withdraw() { return Store().Withdraw(); }
  bool Flush(double timeout_s) {
    return WaitInSlices(
        timeout_s, [&](Duration slice) { return Store().Flush(slice).ok(); },
        [](bool done) { return done; });
  }
  py::object TakeProblem() {
    const std::optional<Error> problem = Store().TakeProblem();
    return problem ? py::object(py::str(problem->message)) : py::none();
  }
  py::dict Stats() {
    const groups::CommitStoreStats stats = Store().stats();
    py::dict dict;
    dict["written"] = stats.written;
    dict["superseded"] = stats.superseded;
    dict["failed"] = stats.failed;
    dict["bytes"] = stats.bytes;
    dict["writing_s"] = ToSeconds(stats.writing);
    dict["version"] = stats.version;
    return dict;
  }
  py::object Newest() {
    auto newest = [&] {
      const WithoutGil released;
      return Store().Newest();
    }();
    std::optional<Commit> commit = Unwrap(std::move(newest));
    return commit ? py::cast(std::move(*commit)) : py::none();
  }
  Commit Load(uint64_t version) {
    auto commit = [&] {
      const WithoutGil released;
      return Store().Load(version);
    }();
    return Unwrap(std::move(commit));
  }

 private:
  CommitStore& Store() {
    if (store_ == nullptr) Raise({ErrorCode::kCancelled, "the commit store is closed"});
    return *store_;
  }
  std::unique_ptr<CommitStore> store_;
};

std::vector<size_t> Sizes(const Commit& commit) {
  std::vector<size_t> sizes;
  sizes.reserve(commit.tensors.size());
  for (const groups::ConstBuffer& tensor : commit.tensors) sizes.push_back(tensor.bytes);
  return sizes;
}

void CopyTo(const Commit& commit, const Buffers& buffers) {
  bool fits = buffers.size() == commit.tensors.size();
  for (size_t i = 0; fits && i < buffers.size(); ++i)
    fits = buffers[i].second == commit.tensors[i].bytes;
  if (!fits) throw py::value_error("the buffers have other sizes than the commit's tensors");
  const WithoutGil released;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].second == 0) continue;
    std::memcpy(reinterpret_cast<void*>(buffers[i].first), commit.tensors[i].data,
                buffers[i].second);
  }
}

}  // namespace

void BindCommitStore(py::module_& m) {
  py::class_<Commit>(m, "Commit")
      .def_readonly("version", &Commit::version)
      .def_readonly("digest", &Commit::digest)
      .def_property_readonly("header", [](const Commit& c) { return py::bytes(c.header); })
      .def_property_readonly("sizes", &Sizes)
      .def("copy_to", &CopyTo, py::arg("buffers"));
  py::class_<PyCommitStore>(m, "CommitStore")
      .def(py::init<const std::string&, uint32_t>(), py::arg("directory"), py::arg("keep") = 2)
      .def("save", &PyCommitStore::Save, py::arg("version"), py::arg("header"), py::arg("tensors"))
      .def("state", &PyCommitStore::State)
      .def("withdraw", &PyCommitStore::Withdraw)
      .def("flush", &PyCommitStore::Flush, py::arg("timeout_s"))
      .def("take_problem", &PyCommitStore::TakeProblem)
      .def("stats", &PyCommitStore::Stats)
      .def("newest", &PyCommitStore::Newest)
      .def("load", &PyCommitStore::Load, py::arg("version"))
      .def("close", &PyCommitStore::Close);
}

}  // namespace troupe::pyapi
