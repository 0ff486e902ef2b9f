#include "collective_groups/torch/gradient_reducer.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/unit/torch/one_member.h"

namespace troupe::elastic {
namespace {

using ::testing::HasSubstr;

at::Tensor Ones(std::vector<int64_t> sizes) { return torch::ones(sizes, torch::requires_grad()); }

TEST(PlanBuckets, IsReverseOrderWithASmallFirstBucketOneTypeEach) {
  const std::vector<at::Tensor> parameters = {torch::zeros({100}), torch::zeros({10}),
                                              torch::zeros({4}, torch::kDouble), torch::zeros({10}),
                                              torch::zeros({3})};
  const auto plan = PlanBuckets(parameters, {40, 400});
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0], (std::vector<size_t>{4, 3}));
  EXPECT_EQ(plan[1], (std::vector<size_t>{1, 0}));
  EXPECT_EQ(plan[2], (std::vector<size_t>{2}));
}

TEST(GradientReducer, AveragesOverTheSamplesThatWereCounted) {
  OneMember member;
  member.Enter(1);
  member.peer().peer_value = 7;
  member.peer().peer_samples = 1;
  at::Tensor a = Ones({3});
  at::Tensor b = Ones({2, 2});
  auto reducer = GradientReducer::Create(&member.agent(), {a, b}, {4, 4});
  ASSERT_TRUE(reducer.ok());
  (*reducer)->Begin(3);
  (a.sum() + 2 * b.sum()).backward();
  const Result<uint64_t> samples = (*reducer)->Finish();
  ASSERT_TRUE(samples.ok()) << samples.error().ToString();
  EXPECT_EQ(*samples, 4U);
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({3}, (3 * 1.0F + 7) / 4)));
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({2, 2}, (3 * 2.0F + 7) / 4)));
}

TEST(GradientReducer, StartsABucketDuringBackwardAndNeverBeforeTheOneInFront) {
  OneMember member;
  member.Enter(1);
  at::Tensor first = Ones({4});
  at::Tensor second = Ones({4});
  at::Tensor third = Ones({4});
  auto reducer = GradientReducer::Create(&member.agent(), {first, second, third}, {16, 16});
  ASSERT_TRUE(reducer.ok());
  size_t at_second = 0;
  size_t at_first = 0;
  // Backward reaches third, second, first; hooks on inputs run before their gradients are kept.
  at::Tensor x = first * 1;
  x.register_hook([&](const at::Tensor&) {
    (void)member.agent().Wait(member.agent().Barrier({}), seconds(10));
    at_first = member.peer().all_reduces.size();
  });
  at::Tensor y = x * second;
  y.register_hook([&](const at::Tensor&) {
    (void)member.agent().Wait(member.agent().Barrier({}), seconds(10));
    at_second = member.peer().all_reduces.size();
  });
  (*reducer)->Begin(1);
  (y * third).sum().backward();
  ASSERT_TRUE((*reducer)->Finish().ok());
  EXPECT_LE(at_second, 1U);
  EXPECT_GE(at_first, 1U);  // Third, or second as well, before backward was done.
  ASSERT_EQ(member.peer().all_reduces.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(member.peer().all_reduces[i],
                HasSubstr("bucket " + std::to_string(i + 1) + " of 3"));
  }
}

TEST(GradientReducer, GoesOnStepAfterStepWithGradientsSetToZeroInPlace) {
  OneMember member;
  member.Enter(1);
  at::Tensor a = Ones({5});
  torch::optim::SGD sgd({a}, torch::optim::SGDOptions(0.5));
  auto reducer = GradientReducer::Create(&member.agent(), {a});
  ASSERT_TRUE(reducer.ok());
  for (int step = 1; step <= 4; ++step) {
    if (a.grad().defined()) a.mutable_grad().zero_();
    (*reducer)->Begin(2);
    (a * step).sum().backward();
    ASSERT_TRUE((*reducer)->Finish().ok());
    EXPECT_TRUE(torch::equal(a.grad(), torch::full({5}, static_cast<float>(step)))) << a.grad();
    sgd.step();
    sgd.zero_grad();  // Of LibTorch 1: detaches in place.
  }
}

TEST(GradientReducer, AGhostDoesNotCountWhateverItsGradients) {
  OneMember member;
  member.Enter(1);
  member.peer().peer_value = 3;
  member.peer().peer_samples = 2;
  at::Tensor a = Ones({2});
  auto reducer = GradientReducer::Create(&member.agent(), {a});
  (*reducer)->Begin(0);
  (a / 0.0).sum().backward();  // Infinite.
  const Result<uint64_t> samples = (*reducer)->Finish();
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(*samples, 2U);
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({2}, 3.0F))) << a.grad();
}

TEST(GradientReducer, ParametersThatBackwardDoesNotReachCountAsZeros) {
  OneMember member;
  member.Enter(1);
  at::Tensor used = Ones({2});
  at::Tensor unused = Ones({2});
  auto reducer = GradientReducer::Create(&member.agent(), {used, unused}, {4, 4});
  (*reducer)->Begin(1);
  used.sum().backward();
  EXPECT_TRUE(member.peer().all_reduces.empty());  // The first bucket waits for the unused one.
  ASSERT_TRUE((*reducer)->Finish().ok());
  EXPECT_TRUE(torch::equal(unused.grad(), torch::zeros({2})));
  EXPECT_TRUE(torch::equal(used.grad(), torch::ones({2})));
}

TEST(GradientReducer, LeavesGradientsAsTheyAreIfABucketFails) {
  OneMember member;
  member.Enter(1);
  member.peer().fail_at = "bucket 2 of 2";
  member.peer().peer_value = 5;
  member.peer().peer_samples = 1;
  at::Tensor a = Ones({2});
  at::Tensor b = Ones({2});
  auto reducer = GradientReducer::Create(&member.agent(), {a, b}, {4, 4});
  (*reducer)->Begin(1);
  (a + b).sum().backward();
  const Result<uint64_t> samples = (*reducer)->Finish();
  ASSERT_FALSE(samples.ok());
  EXPECT_EQ(samples.error().code, ErrorCode::kEpochChanged);
  EXPECT_TRUE(torch::equal(a.grad(), torch::ones({2})));
  EXPECT_TRUE(torch::equal(b.grad(), torch::ones({2})));
}

TEST(GradientReducer, SaysWhatIsWrong) {
  OneMember member;
  member.Enter(1);
  at::Tensor a = Ones({2});
  auto reducer = GradientReducer::Create(&member.agent(), {a});
  EXPECT_THAT((*reducer)->Finish().error().message, HasSubstr("without Begin"));
  (*reducer)->Begin(1);
  a.sum().backward();
  a.sum().backward();
  EXPECT_THAT((*reducer)->Finish().error().message, HasSubstr("backward ran twice"));
  const at::Tensor half = torch::ones({2}, torch::dtype(torch::kHalf).requires_grad(true));
  EXPECT_THAT(GradientReducer::Create(&member.agent(), {half}).error().message,
              HasSubstr("use float32 or float64"));
  EXPECT_THAT(GradientReducer::Create(&member.agent(), {torch::ones({2})}).error().message,
              HasSubstr("no parameter needs a gradient"));
}

TEST(GradientReducer, TakesItsHooksOffTheParameters) {
  OneMember member;
  member.Enter(1);
  at::Tensor a = Ones({2});
  { auto reducer = GradientReducer::Create(&member.agent(), {a}); }
  a.sum().backward();
  EXPECT_TRUE(torch::equal(a.grad(), torch::ones({2})));
}

}  // namespace
}  // namespace troupe::elastic
