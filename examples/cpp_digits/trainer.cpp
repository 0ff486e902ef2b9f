#include "examples/cpp_digits/trainer.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include <troupe/training.h>

namespace cpp_digits {
namespace {

using troupe::Error;
using troupe::ErrorCode;
using troupe::Result;
using troupe::seconds;
using troupe::Status;
using troupe::groups::DataType;
using troupe::groups::GroupAgent;
using troupe::groups::ReduceOp;
namespace elastic = troupe::elastic;

constexpr int64_t kPixels = 64;
constexpr uint64_t kBatchSize = 16;
constexpr double kLearningRate = 2e-3;
constexpr double kTrainShare = 0.8;

struct Digits {
  at::Tensor images;  // float32 [n, 64], 0 to 1.
  at::Tensor labels;  // int64 [n].
};

struct Data {
  Digits train;
  Digits test;
};

Result<Data> Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto records = static_cast<int64_t>(bytes.size()) / (kPixels + 1);
  if (!file || records == 0 || static_cast<int64_t>(bytes.size()) % (kPixels + 1) != 0)
    return Error{ErrorCode::kNotFound,
                 path + " is not a file of digits; scripts/export_digits.py writes one"};
  const at::Tensor all = torch::from_blob(bytes.data(), {records, kPixels + 1}, torch::kUInt8);
  const at::Tensor images = all.narrow(1, 0, kPixels).to(torch::kFloat) / 16.0;
  const at::Tensor labels = all.select(1, kPixels).to(torch::kLong);
  const auto cut = static_cast<int64_t>(kTrainShare * static_cast<double>(records));
  return Data{{images.narrow(0, 0, cut), labels.narrow(0, 0, cut)},
              {images.narrow(0, cut, records - cut), labels.narrow(0, cut, records - cut)}};
}

// How often each sample was counted: part of the state, so that it is rolled back and handed on as
// the model is.
struct Books : torch::nn::Module {
  explicit Books(int64_t samples)
      : counts(register_buffer("counts", torch::zeros({samples}, torch::kInt))) {}
  at::Tensor counts;
};

class Trainer {
 public:
  Trainer(GroupAgent& group, const Plan& plan, Progress& progress, Data data)
      : group_(group),
        progress_(progress),
        plan_(plan),
        data_(std::move(data)),
        model_(torch::nn::Linear(kPixels, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32),
               torch::nn::ReLU(), torch::nn::Linear(32, 10)),
        optimizer_(model_->parameters(), torch::optim::AdamOptions(kLearningRate)),
        books_(data_.train.labels.size(0)),
        sampler_(static_cast<uint64_t>(data_.train.labels.size(0)), kBatchSize, 2),
        state_(&group_) {}

  Result<std::string> Run() {
    // Several small buckets, as a larger model would have.
    auto reducer = elastic::GradientReducer::Create(&group_, model_->parameters(), {2048, 8192});
    if (!reducer.ok()) return reducer.error();
    reducer_ = std::move(*reducer);
    if (Status s = state_.AddModule("model", model_.get()); !s.ok()) return s.error();
    if (Status s = state_.AddModule("books", &books_); !s.ok()) return s.error();
    if (Status s = state_.AddOptimizer("adam", &optimizer_); !s.ok()) return s.error();
    state_.SetSampler(&sampler_);
    const auto ending = elastic::RunElastic(group_, state_, [this] { return TrainOn(); });
    if (!ending.ok()) return ending.error();
    if (*ending == elastic::Ending::kDrained) return troupe::Left();
    return Summary();
  }

 private:
  // From wherever the state is to the end.
  Status TrainOn() {
    for (;;) {
      while (sampler_.remaining() > 0) {
        if (Status s = Step(); !s.ok()) return s;
      }
      const Result<bool> finished = Finished();
      if (!finished.ok()) return finished.error();
      if (*finished) return Status::Ok();
      sampler_.BeginEpoch(sampler_.data_epoch() + 1);
      progress_.epochs = static_cast<int64_t>(sampler_.data_epoch());
    }
  }

  Status Step() {
    const troupe::groups::Topology topology = group_.Current().topology;
    progress_.size = topology.size;
    progress_.rank = topology.rank;
    const Result<elastic::Batch> batch = sampler_.Next();
    if (!batch.ok()) return batch.error();
    const at::Tensor indices = torch::tensor(batch->indices);
    reducer_->Begin(batch->counted);
    optimizer_.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        model_->forward(data_.train.images.index_select(0, indices)),
        data_.train.labels.index_select(0, indices));
    loss.backward();
    if (const Result<uint64_t> samples = reducer_->Finish(); !samples.ok()) return samples.error();
    optimizer_.step();
    at::Tensor counted = torch::zeros_like(books_.counts);
    if (batch->counted > 0) counted.index_fill_(0, indices, 1);
    if (Status s = AllReduce(counted, ReduceOp::kSum, "counts"); !s.ok()) return s;
    books_.counts.add_(counted);
    return state_.Commit();
  }

  Status AllReduce(at::Tensor& ints, ReduceOp op, const char* what) {
    const size_t bytes = static_cast<size_t>(ints.numel()) * sizeof(int32_t);
    troupe::groups::ReduceArguments arguments;
    arguments.elements = {DataType::kInt32, op};
    arguments.count = static_cast<size_t>(ints.numel());
    GroupAgent::Call call;
    call.text = what;
    const auto handle =
        group_.AllReduce(call, {{ints.data_ptr(), bytes}}, {{ints.data_ptr(), bytes}}, arguments);
    const Result<uint64_t> done = group_.Wait(handle, seconds(60));
    return done.ok() ? Status::Ok() : Status(done.error());
  }

  // Of the data epochs; all members answer alike, even if the file appears just now.
  Result<bool> Finished() {
    if (static_cast<int64_t>(sampler_.data_epoch()) + 1 < plan_.epochs) return false;
    const bool there = plan_.finish_file == "-" || ::access(plan_.finish_file.c_str(), F_OK) == 0;
    at::Tensor seen = torch::full({1}, there ? 1 : 0, torch::kInt);
    if (Status s = AllReduce(seen, ReduceOp::kMax, "finish"); !s.ok()) return s.error();
    return seen.item<int>() > 0;
  }

  std::string Summary() {
    torch::NoGradGuard no_grad;
    const at::Tensor right = model_->forward(data_.test.images).argmax(1) == data_.test.labels;
    const auto epochs = static_cast<int64_t>(sampler_.data_epoch()) + 1;
    // FNV-1a over the bits: equal only if they are.
    uint64_t hash = 14695981039346656037U;
    for (const at::Tensor& parameter : model_->parameters()) {
      const auto* bytes = static_cast<const unsigned char*>(parameter.data_ptr());
      for (int64_t i = 0; i < parameter.numel() * 4; ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
    }
    std::ostringstream line;
    line << "accuracy=" << right.to(torch::kFloat).mean().item<float>()
         << " steps=" << state_.version() << " epochs=" << epochs
         << " missing=" << (epochs - books_.counts).clamp_min(0).sum().item<int64_t>()
         << " doubled=" << (books_.counts - epochs).clamp_min(0).sum().item<int64_t>()
         << " parameters=" << std::hex << hash;
    return line.str();
  }

  GroupAgent& group_;
  Progress& progress_;
  const Plan plan_;
  const Data data_;
  torch::nn::Sequential model_;
  torch::optim::Adam optimizer_;
  Books books_;
  elastic::ElasticSampler sampler_;
  elastic::ElasticState state_;
  std::unique_ptr<elastic::GradientReducer> reducer_;
};

}  // namespace

Result<std::string> Train(GroupAgent& group, const Plan& plan, Progress& progress) {
  at::set_num_threads(1);  // Several members share the machine.
  Result<Data> data = Load(plan.data);
  if (!data.ok()) return data.error();
  return Trainer(group, plan, progress, std::move(*data)).Run();
}

}  // namespace cpp_digits
