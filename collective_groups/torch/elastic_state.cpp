#include "collective_groups/torch/elastic_state.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "collective_groups/torch/internal/optimizer_state.h"
#include "collective_groups/torch/internal/snapshot.h"
#include "runtime/wire.h"

namespace troupe::elastic {
namespace {

using groups::ActiveView;
using groups::GroupAgent;
using groups::MutableBuffer;
using internal::Plain;
using internal::Snapshot;
using internal::TensorLayout;

std::vector<at::Tensor> TensorsOf(torch::nn::Module& module) {
  std::vector<at::Tensor> all = module.parameters();
  for (at::Tensor& buffer : module.buffers()) all.push_back(std::move(buffer));
  return all;
}

TensorLayout LayoutOf(const at::Tensor& tensor) {
  return {static_cast<int64_t>(tensor.scalar_type()), tensor.sizes().vec()};
}

std::string Text(const TensorLayout& layout) {
  return c10::toString(static_cast<at::ScalarType>(layout.type)) +
         c10::str(at::IntArrayRef(layout.sizes));
}

// Memory for tensors of these layouts; kCorrupt for a layout that cannot be.
Result<std::vector<at::Tensor>> Allocate(const std::vector<TensorLayout>& layouts) {
  std::vector<at::Tensor> tensors;
  for (const TensorLayout& layout : layouts) {
    const bool known =
        layout.type >= 0 && layout.type < static_cast<int64_t>(at::ScalarType::Undefined);
    const bool sizes =
        std::all_of(layout.sizes.begin(), layout.sizes.end(), [](int64_t n) { return n >= 0; });
    if (!known || !sizes) return Error{ErrorCode::kCorrupt, "a state of impossible tensors"};
    tensors.push_back(at::empty(layout.sizes, static_cast<at::ScalarType>(layout.type)));
  }
  return tensors;
}

std::vector<MutableBuffer> BuffersOf(const std::vector<at::Tensor>& tensors) {
  std::vector<MutableBuffer> buffers;
  for (const at::Tensor& tensor : tensors) {
    const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
    if (bytes > 0) buffers.push_back({tensor.data_ptr(), bytes});
  }
  return buffers;
}

}  // namespace

struct ElasticState::Impl {
  GroupAgent* group = nullptr;
  std::map<std::string, torch::nn::Module*> modules;
  std::map<std::string, torch::optim::Optimizer*> optimizers;
  std::map<std::string, int64_t> integers;
  ElasticSampler* sampler = nullptr;
  uint64_t version = 0;
  bool has_state = false;
  bool captured = false;
  Snapshot saved;

  void Capture();
  [[nodiscard]] Status Check(const Snapshot& from) const;
  Status Apply(const Snapshot& from);
  Status Send(const std::vector<int>& receivers, int source, Duration limit);
  Status Receive(const std::vector<int>& receivers, int source, Duration limit);
  Status Move(const std::vector<int>& receivers, int source, std::vector<MutableBuffer> buffers,
              Duration limit);
};

// Into the memory of the commit before where the shapes are the same, which is always but for an
// optimizer's first step.
void ElasticState::Impl::Capture() {
  torch::NoGradGuard no_grad;
  Plain plain;
  std::vector<at::Tensor> live;
  for (const auto& [name, module] : modules) {
    const size_t before = live.size();
    for (at::Tensor& tensor : TensorsOf(*module)) live.push_back(std::move(tensor));
    plain.modules[name] = live.size() - before;
  }
  for (const auto& [name, optimizer] : optimizers)
    plain.optimizers[name] = internal::ReadOptimizer(*optimizer, live);
  plain.integers = integers;
  if (sampler != nullptr) plain.sampler = sampler->Save();
  plain.layout.reserve(live.size());
  saved.tensors.resize(live.size());
  for (size_t i = 0; i < live.size(); ++i) {
    plain.layout.push_back(LayoutOf(live[i]));
    at::Tensor& kept = saved.tensors[i];
    if (!kept.defined() || LayoutOf(kept) != plain.layout.back())
      kept = at::empty(live[i].sizes(), live[i].scalar_type());
    kept.copy_(live[i]);
  }
  saved.plain = std::move(plain);
  captured = true;
}

// Whether `from` fits what this member is made of.
Status ElasticState::Impl::Check(const Snapshot& from) const {
  const auto differ = [](const std::string& what) {
    return Error{ErrorCode::kMismatch,
                 "the members' states differ: " + what + "; all must run the same program"};
  };
  size_t at = 0;
  for (const auto& [name, module] : modules) {
    const std::vector<at::Tensor> mine = TensorsOf(*module);
    const auto it = from.plain.modules.find(name);
    if (it == from.plain.modules.end() || it->second != mine.size())
      return differ("module " + name + " has " + std::to_string(mine.size()) +
                    " tensors here and another number, or is missing, in the group");
    for (size_t i = 0; i < mine.size(); ++i, ++at) {
      const bool there = at < from.plain.layout.size();
      if (!there || from.plain.layout[at] != LayoutOf(mine[i]))
        return differ("tensor " + std::to_string(i) + " of module " + name + " is " +
                      Text(LayoutOf(mine[i])) + " here and " +
                      (there ? Text(from.plain.layout[at]) : "missing") + " in the group");
    }
  }
  for (const auto& [name, optimizer] : optimizers) {
    const auto it = from.plain.optimizers.find(name);
    if (it == from.plain.optimizers.end()) return differ("the group has no optimizer " + name);
    if (Status s = internal::CheckOptimizer(*optimizer, name, it->second); !s.ok()) return s;
    for (const internal::ParameterState& parameter : it->second.parameters)
      at += static_cast<size_t>(__builtin_popcountll(parameter.tensors));
  }
  if (at != from.plain.layout.size() || modules.size() != from.plain.modules.size() ||
      optimizers.size() != from.plain.optimizers.size())
    return differ("the group's has more modules, optimizers or tensors");
  if ((sampler == nullptr) != from.plain.sampler.empty())
    return differ("a sampler is in one and not in the other");
  return Status::Ok();
}

Status ElasticState::Impl::Apply(const Snapshot& from) {
  torch::NoGradGuard no_grad;
  if (Status s = Check(from); !s.ok()) return s;
  if (sampler != nullptr) {
    if (Status s = sampler->Load(from.plain.sampler); !s.ok()) return s;
  }
  size_t at = 0;
  for (const auto& [name, module] : modules) {
    for (at::Tensor& tensor : TensorsOf(*module)) tensor.copy_(from.tensors[at++]);
  }
  for (const auto& [name, optimizer] : optimizers)
    at += internal::WriteOptimizer(*optimizer, from.plain.optimizers.at(name),
                                   std::span(from.tensors).subspan(at));
  for (auto& [name, value] : integers) value = 0;  // Those that the snapshot does not know yet.
  for (const auto& [name, value] : from.plain.integers) integers[name] = value;
  return Status::Ok();
}

Status ElasticState::Impl::Move(const std::vector<int>& receivers, int source,
                                std::vector<MutableBuffer> buffers, Duration limit) {
  if (buffers.empty()) return Status::Ok();
  const Result<uint64_t> moved =
      group->Wait(group->Transfer({source}, receivers, std::move(buffers)), limit);
  return moved.ok() ? Status::Ok() : Status(moved.error());
}

Status ElasticState::Impl::Send(const std::vector<int>& receivers, int source, Duration limit) {
  std::string plain = wire::Encode(internal::kPlainType, saved.plain);
  uint64_t lead[2] = {version, plain.size()};
  if (Status s = Move(receivers, source, {{lead, sizeof lead}}, limit); !s.ok()) return s;
  if (Status s = Move(receivers, source, {{plain.data(), plain.size()}}, limit); !s.ok()) return s;
  return Move(receivers, source, BuffersOf(saved.tensors), limit);
}

// Into fresh memory: until everything is there this member's own commit must stay whole.
Status ElasticState::Impl::Receive(const std::vector<int>& receivers, int source, Duration limit) {
  uint64_t lead[2] = {0, 0};
  if (Status s = Move(receivers, source, {{lead, sizeof lead}}, limit); !s.ok()) return s;
  if (lead[1] > wire::kWireFrameBytesMax)
    return Error{ErrorCode::kCorrupt, "a state of impossible size"};
  std::string bytes(lead[1], '\0');
  if (Status s = Move(receivers, source, {{bytes.data(), bytes.size()}}, limit); !s.ok()) return s;
  Result<Plain> plain = wire::Decode<Plain>(internal::kPlainType, bytes);
  if (!plain.ok()) return plain.error().WithContext("the group's state");
  Snapshot incoming{std::move(*plain), {}};
  if (Status s = Check(incoming); !s.ok()) return s;
  Result<std::vector<at::Tensor>> tensors = Allocate(incoming.plain.layout);
  if (!tensors.ok()) return tensors.error();
  incoming.tensors = std::move(*tensors);
  if (Status s = Move(receivers, source, BuffersOf(incoming.tensors), limit); !s.ok()) return s;
  if (Status s = Apply(incoming); !s.ok()) return s;
  saved = std::move(incoming);
  captured = true;
  version = lead[0];
  return Status::Ok();
}

ElasticState::ElasticState(GroupAgent* group) : impl_(std::make_unique<Impl>()) {
  impl_->group = group;
}
ElasticState::~ElasticState() = default;

Status ElasticState::AddModule(const std::string& name, torch::nn::Module* module) {
  for (const at::Tensor& tensor : TensorsOf(*module)) {
    if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided)
      return Error{ErrorCode::kInvalidArgument,
                   "module " + name + " has a tensor that is not a dense one in CPU memory"};
  }
  if (!impl_->modules.emplace(name, module).second)
    return Error{ErrorCode::kAlreadyExists, "there is a module named " + name + " already"};
  return Status::Ok();
}

Status ElasticState::AddOptimizer(const std::string& name, torch::optim::Optimizer* optimizer) {
  if (internal::OptimizerKind(*optimizer).empty())
    return Error{ErrorCode::kInvalidArgument,
                 "optimizer " + name + " is none of Adam, AdamW, SGD, RMSprop and Adagrad"};
  if (!impl_->optimizers.emplace(name, optimizer).second)
    return Error{ErrorCode::kAlreadyExists, "there is an optimizer named " + name + " already"};
  return Status::Ok();
}

void ElasticState::SetSampler(ElasticSampler* sampler) { impl_->sampler = sampler; }
int64_t& ElasticState::Integer(const std::string& name) { return impl_->integers[name]; }
uint64_t ElasticState::version() const { return impl_->version; }
bool ElasticState::has_state() const { return impl_->has_state; }

Status ElasticState::Commit() {
  if (impl_->sampler != nullptr) {
    if (Status s = impl_->sampler->Commit(); !s.ok()) return s;
  }
  impl_->Capture();
  impl_->has_state = true;
  impl_->group->SetVersion(++impl_->version);
  const Result<bool> leave = impl_->group->Boundary();
  if (!leave.ok()) return leave.error();
  if (!*leave) return Status::Ok();
  return Error{ErrorCode::kEpochChanged,
               "members come or go after commit " + std::to_string(impl_->version)};
}

Status ElasticState::Restore() {
  if (!impl_->captured) return Status::Ok();
  return impl_->Apply(impl_->saved);
}

Status ElasticState::Sync(const ActiveView& active, Duration limit) {
  const int source = groups::SourceRank(active.view);
  const std::vector<int> lacking = groups::RanksWithoutState(active.view);
  const int rank = active.topology.rank;
  const bool lacks = std::find(lacking.begin(), lacking.end(), rank) != lacking.end();
  if (!impl_->captured) impl_->Capture();
  Status moved;
  if (lacks) {
    moved = impl_->Receive(lacking, source, limit);
  } else if (!lacking.empty() && rank == source) {
    moved = impl_->Send(lacking, source, limit);
  }
  if (!moved.ok()) return moved;
  impl_->has_state = true;
  impl_->group->SetVersion(impl_->version);
  if (impl_->sampler != nullptr) impl_->sampler->Enter(rank, active.topology.size);
  return Status::Ok();
}

}  // namespace troupe::elastic
