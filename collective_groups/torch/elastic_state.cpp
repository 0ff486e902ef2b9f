#include "collective_groups/torch/elastic_state.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "collective_groups/torch/gradient_reducer.h"
#include "collective_groups/torch/internal/optimizer_state.h"
#include "collective_groups/torch/internal/snapshot.h"
#include "collective_groups/torch/internal/state_transfer.h"

namespace troupe::elastic {
namespace {

using groups::ActiveView;
using groups::GroupAgent;
using internal::Incoming;
using internal::Plain;
using internal::Snapshot;
using internal::StateTransfer;
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

// What only an optimizer's step may write to, as it is now. Forward passes write to buffers.
class Stamps {
 public:
  void Take(std::vector<at::Tensor> tensors) {
    tensors_ = std::move(tensors);
    versions_ = Versions();
  }
  [[nodiscard]] bool Hold() const { return versions_ == Versions(); }
  void Clear() { tensors_.clear(), versions_.clear(); }

 private:
  [[nodiscard]] std::vector<int64_t> Versions() const {
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : tensors_)
      versions.push_back(tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version()));
    return versions;
  }
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> versions_;
};

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

  // What Sync has left to go on.
  struct Following {
    Incoming incoming;
    StateTransfer::Handle handle = 0;
    uint64_t version_before = 0;
    bool beside = false;  // The training; plain values are applied.
  };
  bool joiners_follow = false;
  std::shared_ptr<const GradientReducer::Watch> watch;
  Duration limit{};
  std::optional<StateTransfer::Handle> sending;  // Of `saved`.
  std::optional<Following> following;
  Stamps unwritten;  // Of members, in the first step of followers.

  void Capture();
  [[nodiscard]] Status Check(const Snapshot& from) const;
  Status Apply(const Snapshot& from);
  Status ApplyPlain(const Plain& from);
  void ApplyTensors(const Snapshot& from);
  Status TakeOver(Following arrived);
  [[nodiscard]] bool Beside(const internal::Route& route) const;
  [[nodiscard]] std::vector<at::Tensor> WrittenBySteps() const;
  Result<bool> Send(StateTransfer& transfer);
  Result<bool> Receive(StateTransfer& transfer);
  Status FinishSending();
  Status FinishFollowing();
  Status OnBegin(uint64_t counted);
  Status BeforeAverages();
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
  if (Status s = Check(from); !s.ok()) return s;
  if (Status s = ApplyPlain(from.plain); !s.ok()) return s;
  ApplyTensors(from);
  return Status::Ok();
}

// What a step begins with.
Status ElasticState::Impl::ApplyPlain(const Plain& from) {
  if (sampler != nullptr) {
    if (Status s = sampler->Load(from.sampler); !s.ok()) return s;
  }
  for (const auto& [name, optimizer] : optimizers)
    internal::WriteRates(*optimizer, from.optimizers.at(name));
  for (auto& [name, value] : integers) value = 0;  // Those that the snapshot does not know yet.
  for (const auto& [name, value] : from.integers) integers[name] = value;
  return Status::Ok();
}

// What a step ends with.
void ElasticState::Impl::ApplyTensors(const Snapshot& from) {
  torch::NoGradGuard no_grad;
  size_t at = 0;
  for (const auto& [name, module] : modules) {
    for (at::Tensor& tensor : TensorsOf(*module)) tensor.copy_(from.tensors[at++]);
  }
  for (const auto& [name, optimizer] : optimizers)
    at += internal::WriteOptimizer(*optimizer, from.plain.optimizers.at(name),
                                   std::span(from.tensors).subspan(at));
}

Status ElasticState::Impl::TakeOver(Following arrived) {
  Incoming& incoming = arrived.incoming;
  if (!arrived.beside) {
    if (Status s = ApplyPlain(incoming.snapshot.plain); !s.ok()) return s;
  }
  ApplyTensors(incoming.snapshot);
  saved = std::move(incoming.snapshot);
  version = incoming.lead.version;
  has_state = true;
  group->SetVersion(version);
  return Status::Ok();
}

// ---- between members ----

// Whether tensors follow while the members train: a pure function of the view and of the commit,
// which are alike on all members that hold it. Those that do not are told by the source.
bool ElasticState::Impl::Beside(const internal::Route& route) const {
  return joiners_follow && route.newcomers && sampler != nullptr && sampler->remaining() > 0 &&
         internal::BytesOf(saved.tensors) >= internal::kLargeStateBytes;
}

std::vector<at::Tensor> ElasticState::Impl::WrittenBySteps() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, module] : modules) {
    for (at::Tensor& tensor : module->parameters()) tensors.push_back(std::move(tensor));
  }
  for (const auto& [name, optimizer] : optimizers)
    (void)internal::ReadOptimizer(*optimizer, tensors);
  return tensors;
}

// The value: whether somebody follows.
Result<bool> ElasticState::Impl::Send(StateTransfer& transfer) {
  const bool beside = Beside(transfer.route());
  Result<std::optional<StateTransfer::Handle>> begun = transfer.Send(version, saved, beside);
  if (!begun.ok()) return begun.error();
  sending = *begun;
  if (beside) {
    unwritten.Take(WrittenBySteps());
  } else if (sending) {
    const Result<uint64_t> sent = group->Wait(*sending, limit);
    // Past the limit it may still run, and is waited out by whatever needs the snapshot next.
    if (sent.ok() || sent.error().code != ErrorCode::kDeadlineExceeded) sending.reset();
    if (!sent.ok()) return sent.error();
  }
  return beside;
}

// Into fresh memory: until everything is there this member's own commit must stay whole.
Result<bool> ElasticState::Impl::Receive(StateTransfer& transfer) {
  Result<Incoming> incoming = transfer.ReceivePlain();
  if (!incoming.ok()) return incoming.error();
  if (Status s = Check(incoming->snapshot); !s.ok()) return s.error();
  const bool beside = incoming->lead.beside_training != 0;
  if (beside && !joiners_follow)
    return Error{ErrorCode::kMismatch,
                 "the group lets joiners follow, and this member did not call SetJoinersFollow; "
                 "all must run the same program"};
  if (beside) {
    if (Status s = ApplyPlain(incoming->snapshot.plain); !s.ok()) return s.error();
  }
  const Result<StateTransfer::Handle> handle = transfer.StartTensors(*incoming);
  if (!handle.ok()) return handle.error();
  following = Following{std::move(*incoming), *handle, version, beside};
  if (beside) {
    version = following->incoming.lead.version;
  } else if (Status s = FinishFollowing(); !s.ok()) {
    return s.error();
  }
  return beside;
}

// Afterwards nobody reads the snapshot. Whoever was to receive it may be dead: that is found out at
// the next collective or boundary.
Status ElasticState::Impl::FinishSending() {
  if (!sending) return Status::Ok();
  const Result<uint64_t> sent = group->Wait(*sending, limit);
  if (!sent.ok() && sent.error().code == ErrorCode::kDeadlineExceeded) return sent.error();
  sending.reset();
  return Status::Ok();
}

// Takes over what follows. If it does not come, Restore makes this member what it was before.
Status ElasticState::Impl::FinishFollowing() {
  if (!following) return Status::Ok();
  const Result<uint64_t> received = group->Wait(following->handle, limit);
  if (!received.ok() && received.error().code == ErrorCode::kDeadlineExceeded)
    return received.error();
  Following arrived = std::move(*following);
  following.reset();
  if (received.ok()) return TakeOver(std::move(arrived));
  version = arrived.version_before;
  return received.error();
}

// What a follower computes may not count, and what it lacks may not be written to.
Status ElasticState::Impl::OnBegin(uint64_t counted) {
  if (following && counted > 0)
    return Error{ErrorCode::kInvalidArgument,
                 "a follower's gradients are not those of the group's model: give Begin the "
                 "samples that the sampler's batch counts, which are 0"};
  if (unwritten.Hold()) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument,
               "parameters or optimizer state were written between Commit and Finish, and a joiner "
               "that follows lacks that; do not call SetJoinersFollow in this program"};
}

// The buckets wait behind the transfer.
Status ElasticState::Impl::BeforeAverages() {
  if (following) return FinishFollowing();
  Status s = OnBegin(0);
  unwritten.Clear();
  return s;
}

ElasticState::ElasticState(GroupAgent* group) : impl_(std::make_unique<Impl>()) {
  impl_->group = group;
}

ElasticState::~ElasticState() {
  impl_->limit = 2 * groups::kCollectiveTimeout;  // The memory is in use until then.
  if (impl_->following) (void)impl_->group->Wait(impl_->following->handle, impl_->limit);
  (void)impl_->FinishSending();
}

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
void ElasticState::SetJoinersFollow(GradientReducer* reducer) {
  Impl& s = *impl_;
  s.joiners_follow = true;
  if (!s.watch)
    s.watch = std::make_shared<const GradientReducer::Watch>(
        GradientReducer::Watch{[&s](uint64_t counted) { return s.OnBegin(counted); },
                               [&s] { return s.BeforeAverages(); }});
  reducer->SetWatch(s.watch);
}

int64_t& ElasticState::Integer(const std::string& name) { return impl_->integers[name]; }
uint64_t ElasticState::version() const { return impl_->version; }
bool ElasticState::has_state() const { return impl_->has_state; }

Status ElasticState::Commit() {
  Impl& s = *impl_;
  if (Status status = FinishSync(); !status.ok()) return status;
  if (Status status = s.FinishSending(); !status.ok()) return status;
  s.unwritten.Clear();
  if (s.sampler != nullptr) {
    if (Status status = s.sampler->Commit(); !status.ok()) return status;
  }
  s.Capture();
  s.has_state = true;
  s.group->SetVersion(++s.version);
  const Result<bool> leave = s.group->Boundary();
  if (!leave.ok()) return leave.error();
  if (!*leave) return Status::Ok();
  return Error{ErrorCode::kEpochChanged,
               "members come or go after commit " + std::to_string(s.version)};
}

// What has come completely is the group's state, even if its view is over. What has not is dropped.
Status ElasticState::Restore() {
  Impl& s = *impl_;
  const Status followed = s.FinishFollowing();
  if (!followed.ok() && followed.error().code == ErrorCode::kDeadlineExceeded) return followed;
  if (Status status = s.FinishSending(); !status.ok()) return status;
  s.unwritten.Clear();
  if (!s.captured) return Status::Ok();
  return s.Apply(s.saved);
}

Status ElasticState::Sync(const ActiveView& active, Duration limit) {
  Impl& s = *impl_;
  s.limit = limit;
  if (s.following || s.sending) {
    if (Status status = Restore(); !status.ok()) return status;
  }
  if (!s.captured) s.Capture();
  StateTransfer transfer(s.group, active, limit);
  const Result<bool> beside = transfer.receives() ? s.Receive(transfer) : s.Send(transfer);
  if (!beside.ok()) return beside.error();
  if (!transfer.receives()) {
    s.has_state = true;
    s.group->SetVersion(s.version);
  }
  if (s.sampler != nullptr) {
    const std::vector<int> nobody;
    s.sampler->Enter(active.topology.rank, active.topology.size,
                     *beside ? transfer.route().receivers : nobody);
  }
  return Status::Ok();
}

Status ElasticState::FinishSync() { return impl_->FinishFollowing(); }

}  // namespace troupe::elastic
