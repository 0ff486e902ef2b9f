#include "collective_groups/torch/elastic_state.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tests/unit/torch/one_member.h"

namespace troupe::elastic {
namespace {

using ::testing::HasSubstr;
namespace optim = torch::optim;

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// A model with parameters and buffers, its optimizer, a sampler, all in one state.
struct Training {
  Training(GroupAgent* group, const MakeOptimizer& make, int64_t width = 3)
      : model(torch::nn::Linear(2, width), torch::nn::BatchNorm1d(width)),
        optimizer(make(model->parameters())),
        sampler(64, 4, 1),
        state(group) {
    EXPECT_TRUE(state.AddModule("model", model.get()).ok());
    EXPECT_TRUE(state.AddOptimizer("optimizer", optimizer.get()).ok());
    state.SetSampler(&sampler);
  }
  void Step() {
    ASSERT_TRUE(sampler.Next().ok());
    optimizer->zero_grad();
    model->forward(torch::arange(8, torch::kFloat).view({4, 2})).pow(2).sum().backward();
    optimizer->step();
    ++state.Integer("steps");
  }
  [[nodiscard]] std::vector<at::Tensor> Tensors() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : model->parameters()) all.push_back(t.detach().clone());
    for (const at::Tensor& t : model->buffers()) all.push_back(t.clone());
    return all;
  }
  torch::nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  ElasticSampler sampler;
  ElasticState state;
};

void ExpectSame(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

class EveryOptimizer : public ::testing::TestWithParam<std::pair<const char*, MakeOptimizer>> {};

// Going back and doing steps again gives the bits of not having gone astray, which needs the
// optimizer's own state as well.
TEST_P(EveryOptimizer, GoesBackToTheCommitAndRepeats) {
  OneMember member;
  member.Enter(1);
  torch::manual_seed(1);
  Training training(&member.agent(), GetParam().second);
  training.Step();
  ASSERT_TRUE(training.state.Commit().ok());
  const auto committed = training.Tensors();
  training.Step();
  training.Step();
  const auto later = training.Tensors();
  ASSERT_TRUE(training.state.Restore().ok());
  ExpectSame(training.Tensors(), committed);
  EXPECT_EQ(training.state.Integer("steps"), 1);
  EXPECT_EQ(training.sampler.remaining(), 60U);
  training.Step();
  training.Step();
  ExpectSame(training.Tensors(), later);
  EXPECT_EQ(training.state.version(), 1U);
}

// From one member to another, before the optimizer has made a step there.
TEST_P(EveryOptimizer, IsSentToAMemberThatLacksIt) {
  std::deque<std::string> mailbox;
  torch::manual_seed(1);
  OneMember source(0);
  source.peer().mailbox = &mailbox;
  source.Enter(1);
  Training old(&source.agent(), GetParam().second);
  old.Step();
  old.Step();
  old.optimizer->param_groups()[0].options().set_lr(0.03);
  ASSERT_TRUE(old.state.Commit().ok());
  source.Enter(2, {1, -1});
  ASSERT_TRUE(old.state.Sync(source.agent().Current(), seconds(10)).ok());

  OneMember joiner(1);
  joiner.peer().mailbox = &mailbox;
  Training fresh(&joiner.agent(), GetParam().second);
  joiner.Enter(2, {1, -1});
  const Status synced = fresh.state.Sync(joiner.agent().Current(), seconds(10));
  ASSERT_TRUE(synced.ok()) << synced.error().ToString();
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(fresh.state.version(), 1U);
  EXPECT_EQ(fresh.state.Integer("steps"), 2);
  EXPECT_EQ(fresh.sampler.remaining(), old.sampler.remaining());
  EXPECT_EQ(fresh.optimizer->param_groups()[0].options().get_lr(), 0.03);
  ExpectSame(fresh.Tensors(), old.Tensors());
  old.Step();
  fresh.Step();
  ExpectSame(fresh.Tensors(), old.Tensors());
}

template <class O, class Options>
MakeOptimizer Maker(Options options) {
  return [options](std::vector<at::Tensor> p) { return std::make_unique<O>(p, options); };
}
INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryOptimizer,
    ::testing::Values(std::pair{"Adam", Maker<optim::Adam>(optim::AdamOptions(0.1).amsgrad(true))},
                      std::pair{"AdamW", Maker<optim::AdamW>(optim::AdamWOptions(0.1))},
                      std::pair{"SGD", Maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9))},
                      std::pair{"PlainSGD", Maker<optim::SGD>(optim::SGDOptions(0.1))},
                      std::pair{"RMSprop",
                                Maker<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.5))},
                      std::pair{"Adagrad", Maker<optim::Adagrad>(optim::AdagradOptions(0.1))}),
    [](const auto& info) { return std::string(info.param.first); });

const MakeOptimizer kAdam = Maker<optim::Adam>(optim::AdamOptions(0.1));

TEST(ElasticState, GoesBackToBeforeTheFirstCommit) {
  OneMember member;
  member.Enter(1, {-1, 0});
  Training training(&member.agent(), kAdam);
  const auto first = training.Tensors();
  std::deque<std::string> nothing;
  member.peer().mailbox = &nothing;
  // The source dies before anything arrives: this member's own beginnings stay.
  const Status synced = training.state.Sync(member.agent().Current(), seconds(10));
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kEpochChanged);
  EXPECT_FALSE(training.state.has_state());
  training.Step();
  ASSERT_TRUE(training.state.Restore().ok());
  ExpectSame(training.Tensors(), first);
  EXPECT_TRUE(training.optimizer->state().empty());
  EXPECT_EQ(training.state.Integer("steps"), 0);
}

TEST(ElasticState, CommitsIntoTheSameMemory) {
  OneMember member;
  member.Enter(1);
  Training training(&member.agent(), kAdam);
  training.Step();
  ASSERT_TRUE(training.state.Commit().ok());
  ASSERT_TRUE(training.state.Commit().ok());
  EXPECT_EQ(training.state.version(), 2U);
  training.Step();
  ASSERT_TRUE(training.state.Commit().ok());
  EXPECT_EQ(training.sampler.remaining(), 64U - 2 * 4);
}

TEST(ElasticState, NamesWhatDiffersFromTheGroup) {
  std::deque<std::string> mailbox;
  OneMember source(0);
  source.peer().mailbox = &mailbox;
  source.Enter(1, {0, -1});
  Training old(&source.agent(), kAdam, 3);
  ASSERT_TRUE(old.state.Sync(source.agent().Current(), seconds(10)).ok());
  OneMember joiner(1);
  joiner.peer().mailbox = &mailbox;
  joiner.Enter(1, {0, -1});
  Training wide(&joiner.agent(), kAdam, 4);
  const Status synced = wide.state.Sync(joiner.agent().Current(), seconds(10));
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kMismatch);
  EXPECT_THAT(synced.error().message,
              HasSubstr("tensor 0 of module model is Float[4, 2] here and Float[3, 2]"));
}

TEST(ElasticState, RefusesWhatItCannotKeep) {
  OneMember member;
  ElasticState state(&member.agent());
  torch::nn::Linear layer(2, 2);
  ASSERT_TRUE(state.AddModule("layer", layer.get()).ok());
  EXPECT_EQ(state.AddModule("layer", layer.get()).error().code, ErrorCode::kAlreadyExists);
  optim::LBFGS lbfgs(layer->parameters(), optim::LBFGSOptions(1));
  EXPECT_THAT(state.AddOptimizer("lbfgs", &lbfgs).error().message, HasSubstr("none of Adam"));
}

}  // namespace
}  // namespace troupe::elastic
