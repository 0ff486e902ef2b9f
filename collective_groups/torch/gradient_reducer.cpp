#include "collective_groups/torch/gradient_reducer.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "collective_groups/membership/group_agent.h"

namespace troupe::elastic {
namespace {

using groups::ConstBuffer;
using groups::DataType;
using groups::GroupAgent;
using groups::MutableBuffer;

// A shared or an intrusive pointer, by LibTorch's version.
using NodePointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

size_t Bytes(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.element_size();
}

Status CheckParameter(const at::Tensor& parameter, size_t index) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, "parameter " + std::to_string(index) + " " + why};
  };
  if (!parameter.device().is_cpu())
    return refuse("is on " + parameter.device().str() + "; only CPU memory can be reduced");
  if (parameter.layout() != at::kStrided) return refuse("is not dense");
  if (parameter.scalar_type() != at::kFloat && parameter.scalar_type() != at::kDouble)
    return refuse(std::string("is of type ") + c10::toString(parameter.scalar_type()) +
                  "; use float32 or float64");
  return Status::Ok();
}

}  // namespace

std::vector<std::vector<size_t>> PlanBuckets(const std::vector<at::Tensor>& parameters,
                                             const BucketOptions& options) {
  struct Open {
    std::vector<size_t> indices;
    size_t bytes = 0;
  };
  std::vector<std::vector<size_t>> done;
  std::map<at::ScalarType, Open> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    Open& bucket = open[parameters[i].scalar_type()];
    bucket.indices.push_back(i);
    bucket.bytes += Bytes(parameters[i]);
    if (bucket.bytes >= (done.empty() ? options.first_bytes : options.bucket_bytes)) {
      done.push_back(std::move(bucket.indices));
      bucket = {};
    }
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.indices.empty()) done.push_back(std::move(bucket.indices));
  }
  return done;
}

struct GradientReducer::Impl {
  // Where a bucket's sums go. There are two at most: gradients that were kept from the step before
  // lie in one of them while the next sums go to the other.
  struct Memory {
    at::Tensor flat;
    std::vector<at::Tensor> pieces;  // One per parameter, sharing its memory.
  };
  struct Bucket {
    std::vector<size_t> indices;
    size_t elements = 0;  // Of the gradients, without the count.
    std::string text;
    std::array<Memory, 2> memory;
    size_t current = 0;
    std::vector<at::Tensor> inputs;  // Kept while they are read.
    size_t missing = 0;
    bool launched = false;
    std::optional<GroupAgent::Handle> handle;
  };

  GroupAgent* group = nullptr;
  BucketOptions options;
  std::vector<at::Tensor> parameters;
  std::vector<Bucket> buckets;
  std::vector<size_t> bucket_of;  // By parameter.
  std::vector<bool> fired;
  std::vector<std::pair<NodePointer, uintptr_t>> hooks;
  at::Tensor one;  // Of the last bucket's type: what the count is scaled from.
  bool begun = false;
  uint64_t counted = 0;
  std::weak_ptr<const Watch> watch;
  std::optional<Error> failure;

  void Plan();
  void Hook();
  void Reset();
  void OnGradient(size_t index);
  void LaunchReady();
  void Launch(Bucket& bucket);
  Status CollectInputs(Bucket& bucket);
  Memory& Target(Bucket& bucket);
  [[nodiscard]] bool IsLast(const Bucket& bucket) const { return &bucket == &buckets.back(); }
  Status WaitAll();
  uint64_t Publish();
};

void GradientReducer::Impl::Plan() {
  bucket_of.resize(parameters.size());
  std::string layout;
  for (const at::Tensor& parameter : parameters) layout += c10::str(parameter.sizes());
  for (std::vector<size_t>& indices : PlanBuckets(parameters, options)) {
    Bucket bucket;
    bucket.indices = std::move(indices);
    for (const size_t i : bucket.indices) {
      bucket_of[i] = buckets.size();
      bucket.elements += static_cast<size_t>(parameters[i].numel());
    }
    buckets.push_back(std::move(bucket));
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    const at::ScalarType type = parameters[buckets[b].indices[0]].scalar_type();
    buckets[b].text = "gradients, bucket " + std::to_string(b + 1) + " of " +
                      std::to_string(buckets.size()) + ", " + c10::toString(type) + "[" +
                      std::to_string(buckets[b].elements) + "]";
    // The whole layout is compared once per step.
    if (b == 0) buckets[b].text += " of " + layout;
  }
  one = at::ones({1}, parameters[buckets.back().indices[0]].options().requires_grad(false));
}

void GradientReducer::Impl::Hook() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    // The node that accumulates into the gradient; the parameter itself holds it only weakly.
    NodePointer node = torch::autograd::impl::grad_accumulator(parameters[i]);
    using List = torch::autograd::variable_list;
    std::function<List(const List&, const List&)> fire = [this, i](const List& outputs,
                                                                   const List&) {
      OnGradient(i);
      return outputs;
    };
    const uintptr_t key = node->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(fire)));
    hooks.emplace_back(std::move(node), key);
  }
}

void GradientReducer::Impl::Reset() {
  fired.assign(parameters.size(), false);
  for (Bucket& bucket : buckets) {
    bucket.missing = bucket.indices.size();
    bucket.launched = false;
    bucket.inputs.clear();
  }
  begun = false;
  failure.reset();
}

void GradientReducer::Impl::OnGradient(size_t index) {
  if (!begun) return;
  if (fired[index]) {
    if (!failure)
      failure = Error{ErrorCode::kInvalidArgument,
                      "backward ran twice since Begin; call Begin before the last pass of a step"};
    return;
  }
  fired[index] = true;
  if (--buckets[bucket_of[index]].missing == 0) LaunchReady();
}

void GradientReducer::Impl::LaunchReady() {
  for (Bucket& bucket : buckets) {
    if (bucket.launched) continue;
    if (bucket.missing > 0 || failure) return;
    Launch(bucket);
  }
}

Status GradientReducer::Impl::CollectInputs(Bucket& bucket) {
  bucket.inputs.clear();
  for (const size_t i : bucket.indices) {
    at::Tensor& grad = parameters[i].mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameters[i], at::MemoryFormat::Contiguous);
    if (grad.layout() != at::kStrided) {
      return Error{ErrorCode::kInvalidArgument, "the gradient of parameter " + std::to_string(i) +
                                                    " is sparse; make its layer's dense"};
    }
    bucket.inputs.push_back(grad.detach().contiguous());
  }
  return Status::Ok();
}

// Memory that none of the inputs lies in.
GradientReducer::Impl::Memory& GradientReducer::Impl::Target(Bucket& bucket) {
  const auto holds = [&](const Memory& memory) {
    if (!memory.flat.defined()) return false;
    const char* begin = static_cast<const char*>(memory.flat.data_ptr());
    for (const at::Tensor& input : bucket.inputs) {
      const char* at = static_cast<const char*>(input.data_ptr());
      if (at >= begin && at < begin + Bytes(memory.flat)) return true;
    }
    return false;
  };
  if (holds(bucket.memory[bucket.current])) bucket.current ^= 1;
  Memory& memory = bucket.memory[bucket.current];
  if (memory.flat.defined()) return memory;
  const at::Tensor& first = parameters[bucket.indices[0]];
  const auto elements = static_cast<int64_t>(bucket.elements) + (IsLast(bucket) ? 1 : 0);
  memory.flat = at::zeros({elements}, first.options().requires_grad(false));
  char* at = static_cast<char*>(memory.flat.data_ptr());
  for (const size_t i : bucket.indices) {
    // No views: optimizers detach gradients in place, which autograd refuses for views.
    memory.pieces.push_back(at::from_blob(
        at, parameters[i].sizes(), [flat = memory.flat](void*) {}, memory.flat.options()));
    at += Bytes(parameters[i]);
  }
  return memory;
}

void GradientReducer::Impl::Launch(Bucket& bucket) {
  torch::NoGradGuard no_grad;
  bucket.launched = true;
  if (Status s = CollectInputs(bucket); !s.ok()) {
    failure = s.error();
    return;
  }
  Memory& target = Target(bucket);
  groups::ReduceArguments arguments;
  arguments.elements.type =
      target.flat.scalar_type() == at::kFloat ? DataType::kFloat32 : DataType::kFloat64;
  arguments.count = static_cast<size_t>(target.flat.numel());
  const MutableBuffer out{target.flat.data_ptr(), Bytes(target.flat)};
  std::vector<ConstBuffer> in;
  if (counted == 0) {
    // Zeros, and not the gradients times zero: those may be infinite.
    target.flat.zero_();
    in.push_back({out.data, out.bytes});
  } else {
    for (const at::Tensor& input : bucket.inputs) in.push_back({input.data_ptr(), Bytes(input)});
    if (IsLast(bucket)) in.push_back({one.data_ptr(), Bytes(one)});
    arguments.prescale = static_cast<double>(counted);
  }
  GroupAgent::Call call;
  call.text = bucket.text;
  bucket.handle = group->AllReduce(call, std::move(in), {out}, arguments);
}

Status GradientReducer::Impl::WaitAll() {
  for (Bucket& bucket : buckets) {
    if (failure) return *failure;
    if (!bucket.launched) Launch(bucket);
  }
  if (failure) return *failure;
  if (const auto present = watch.lock()) {
    if (Status s = present->before_averages(); !s.ok()) return s;
  }
  for (Bucket& bucket : buckets) {
    const Result<uint64_t> done = group->Wait(*bucket.handle, options.limit);
    // Past the limit it may still run; Abandon waits on.
    if (!done.ok() && done.error().code == ErrorCode::kDeadlineExceeded) return done.error();
    bucket.handle.reset();
    if (!done.ok()) return done.error();
  }
  return Status::Ok();
}

// Sums become averages, pieces of the buckets become the gradients.
uint64_t GradientReducer::Impl::Publish() {
  torch::NoGradGuard no_grad;
  Bucket& last = buckets.back();
  const double total = last.memory[last.current].flat[-1].item<double>();
  for (Bucket& bucket : buckets) {
    Memory& memory = bucket.memory[bucket.current];
    memory.flat.mul_(total > 0 ? 1.0 / total : 0.0);
    for (size_t i = 0; i < bucket.indices.size(); ++i)
      parameters[bucket.indices[i]].mutable_grad() = memory.pieces[i];
  }
  return static_cast<uint64_t>(total);
}

GradientReducer::GradientReducer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GradientReducer::~GradientReducer() {
  Abandon();
  for (const auto& [node, key] : impl_->hooks) node->del_post_hook(key);
}

Result<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    GroupAgent* group, const std::vector<at::Tensor>& parameters, BucketOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->group = group;
  impl->options = options;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad()) continue;
    if (Status s = CheckParameter(parameters[i], i); !s.ok()) return s.error();
    impl->parameters.push_back(parameters[i]);
  }
  if (impl->parameters.empty())
    return Error{ErrorCode::kInvalidArgument, "no parameter needs a gradient"};
  impl->Plan();
  impl->Reset();
  impl->Hook();
  return std::unique_ptr<GradientReducer>(new GradientReducer(std::move(impl)));
}

void GradientReducer::Begin(uint64_t counted) {
  Abandon();
  impl_->begun = true;
  impl_->counted = counted;
  if (const auto watch = impl_->watch.lock()) {
    if (Status s = watch->on_begin(counted); !s.ok()) impl_->failure = s.error();
  }
}

void GradientReducer::SetWatch(std::weak_ptr<const Watch> watch) {
  impl_->watch = std::move(watch);
}

Result<uint64_t> GradientReducer::Finish() {
  if (!impl_->begun) return Error{ErrorCode::kInvalidArgument, "Finish without Begin"};
  if (Status s = impl_->WaitAll(); !s.ok()) {
    Abandon();
    return s.error();
  }
  const uint64_t total = impl_->Publish();
  impl_->Reset();
  return total;
}

void GradientReducer::Abandon() {
  for (Impl::Bucket& bucket : impl_->buckets) {
    if (!bucket.handle) continue;
    // The memory is in use until then; the communicator's own limit ends it.
    (void)impl_->group->Wait(*bucket.handle, 2 * groups::kCollectiveTimeout);
    bucket.handle.reset();
  }
  impl_->Reset();
}

}  // namespace troupe::elastic
