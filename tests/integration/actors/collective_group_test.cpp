// Actors of C++ in collective groups, on a real embedded cluster.
#include <troupe/collectives.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>
#include <numeric>

#include "tests/integration/actors/shared_cluster.h"

namespace troupe::testing {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One collective per call; a group is entered by the first one.
class Rank {
 public:
  Result<int> Enter(const std::string& name, int size, int rank) {
    Result<CollectiveGroup> group = CollectiveGroup::Enter(
        name, {.size = static_cast<uint32_t>(size), .rank = rank, .limit = seconds(20)});
    if (!group.ok()) return group.error();
    group_.emplace(std::move(*group));
    Result<CollectiveView> view = group_->View(seconds(20));
    if (!view.ok()) return view.error();
    return view->rank * 100 + view->size;
  }
  Result<std::vector<double>> Sum(std::vector<double> values) {
    if (const Status s = group_->AllReduce(std::span(values)); !s.ok()) return s.error();
    return values;
  }
  Result<std::vector<int32_t>> Others(int32_t mine) {
    std::vector<int32_t> all(static_cast<size_t>(group_->View(seconds(20))->size));
    const Status s = group_->AllGather(std::span<const int32_t>(&mine, 1), std::span(all));
    if (!s.ok()) return s.error();
    if (const Status b = group_->Broadcast(std::span(all), 0); !b.ok()) return b.error();
    if (const Status b = group_->Barrier(); !b.ok()) return b.error();
    return all;
  }
  Result<int64_t> Pass(int64_t value, int to) {
    const Status s = group_->Send(std::span<const int64_t>(&value, 1), to);
    return s.ok() ? Result<int64_t>(value) : s.error();
  }
  Result<int64_t> Take(int from) {
    int64_t value = 0;
    const Status s = group_->Receive(std::span(&value, 1), from);
    return s.ok() ? Result<int64_t>(value) : s.error();
  }
  Result<std::vector<float>> Share(std::vector<float> blocks, int root) {
    std::vector<float> mine(blocks.size() / 2);
    Status s = group_->ReduceScatter(std::span<const float>(blocks), std::span(mine));
    if (s.ok()) s = group_->Reduce(std::span(blocks), root, ReduceOp::kMax);
    if (!s.ok()) return s.error();
    mine.insert(mine.end(), blocks.begin(), blocks.end());
    return mine;
  }
  bool Leave() { return group_->Leave().ok(); }
  int64_t Pid() const { return ::getpid(); }

 private:
  std::optional<CollectiveGroup> group_;
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Rank, (), Enter, Sum, Others, Pass, Take, Share, Leave, Pid);

namespace troupe::testing {
namespace {

class CollectiveGroups : public SharedCluster<CollectiveGroups> {
 protected:
  static std::vector<ActorHandle<Rank>> Ranks(const std::string& group, int size,
                                              ActorOptions options = {}) {
    options.resources = {{"CPU", 0.1}};
    std::vector<ActorHandle<Rank>> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(Started(runtime().Spawn<Rank>(options)));
    std::vector<Future<int>> entered;
    for (int i = 0; i < size; ++i)
      entered.push_back(ranks[static_cast<size_t>(i)].Call(&Rank::Enter, group, size, i));
    for (int i = 0; i < size; ++i) EXPECT_EQ(In(entered[static_cast<size_t>(i)]), i * 100 + size);
    return ranks;
  }
};

TEST_F(CollectiveGroups, EveryCollectiveGivesWhatAllRanksHaveGiven) {
  auto ranks = Ranks("every", 2);
  auto first = ranks[0].Call(&Rank::Sum, std::vector<double>{1, 2});
  EXPECT_THAT(In(ranks[1].Call(&Rank::Sum, std::vector<double>{10, 20})), ElementsAre(11, 22));
  EXPECT_THAT(In(first), ElementsAre(11, 22));
  auto others = ranks[0].Call(&Rank::Others, 5);
  EXPECT_THAT(In(ranks[1].Call(&Rank::Others, 7)), ElementsAre(5, 7));
  EXPECT_THAT(In(others), ElementsAre(5, 7));
  auto passed = ranks[0].Call(&Rank::Pass, int64_t{42}, 1);
  EXPECT_EQ(In(ranks[1].Call(&Rank::Take, 0)), 42);
  EXPECT_EQ(In(passed), 42);
  auto shared = ranks[0].Call(&Rank::Share, std::vector<float>{1, 2}, 1);
  EXPECT_THAT(In(ranks[1].Call(&Rank::Share, std::vector<float>{3, 1}, 1)), ElementsAre(3, 3, 2));
  EXPECT_THAT(In(shared), ElementsAre(4, 1, 2));
}

TEST_F(CollectiveGroups, WhoWaitsForOneThatDiesIsToldAndAnotherMayTakeItsRank) {
  auto ranks = Ranks("death", 2);
  auto waiting = ranks[0].Call(&Rank::Sum, std::vector<double>{1});
  ASSERT_EQ(::kill(static_cast<pid_t>(In(ranks[1].Call(&Rank::Pid))), SIGKILL), 0);
  const Result<std::vector<double>> cut = waiting.Get(kSoon);
  ASSERT_FALSE(cut.ok());
  EXPECT_TRUE(cut.error().code == ErrorCode::kEpochChanged ||
              cut.error().code == ErrorCode::kDrained)
      << cut.error().ToString();
  if (cut.error().code == ErrorCode::kEpochChanged) {  // Then of the end with the next call.
    const auto over = ranks[0].Call(&Rank::Sum, std::vector<double>{1}).Get(kSoon);
    ASSERT_FALSE(over.ok());
    EXPECT_EQ(over.error().code, ErrorCode::kDrained) << over.error().ToString();
  }
  auto other = Started(runtime().Spawn<Rank>({.resources = {{"CPU", 0.1}}}));
  auto entered = other.Call(&Rank::Enter, "death", 2, 1);
  auto sum = ranks[0].Call(&Rank::Sum, std::vector<double>{1});
  EXPECT_EQ(In(entered), 102);
  EXPECT_THAT(In(other.Call(&Rank::Sum, std::vector<double>{2})), ElementsAre(3));
  EXPECT_THAT(In(sum), ElementsAre(3));
}

TEST_F(CollectiveGroups, ADriverMakesOneOfHandlesAndEndsIt) {
  auto a = Started(runtime().Spawn<Rank>({.resources = {{"CPU", 0.1}}}));
  auto b = Started(runtime().Spawn<Rank>({.resources = {{"CPU", 0.1}}}));
  ASSERT_TRUE(runtime().CreateCollectiveGroup({.name = "made"}, {b.id(), a.id()}).ok());
  auto first = a.Call(&Rank::Enter, "made", 0, -1);
  EXPECT_EQ(In(b.Call(&Rank::Enter, "made", 0, -1)), 2);
  EXPECT_EQ(In(first), 102);
  const Status again = runtime().CreateCollectiveGroup({.name = "made"}, {a.id(), b.id()});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  ASSERT_TRUE(runtime().DestroyCollectiveGroup("made").ok());
  const auto sum = a.Call(&Rank::Sum, std::vector<double>{1}).Get(kSoon);
  ASSERT_FALSE(sum.ok());
  EXPECT_THAT(sum.error().message, HasSubstr("destroyed"));
}

TEST_F(CollectiveGroups, WrongUseIsTold) {
  auto ranks = Ranks("wrong", 1);
  auto other = Started(runtime().Spawn<Rank>({.resources = {{"CPU", 0.1}}}));
  const Result<int> size = other.Call(&Rank::Enter, "wrong", 2, 1).Get(kSoon);
  ASSERT_FALSE(size.ok());
  EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(size.error().message, HasSubstr("of 1 members, not a fixed one of 2"));
  const Result<int> taken = other.Call(&Rank::Enter, "wrong", 1, 0).Get(kSoon);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  const Result<CollectiveGroup> here = CollectiveGroup::Enter("wrong", {.size = 1, .rank = 0});
  ASSERT_FALSE(here.ok());
  EXPECT_THAT(here.error().message, HasSubstr("only actors"));
  EXPECT_TRUE(In(ranks[0].Call(&Rank::Leave)));
  EXPECT_EQ(In(other.Call(&Rank::Enter, "wrong", 1, 0)), 1) << "it has ended with its last member";
}

}  // namespace
}  // namespace troupe::testing

int main(int argc, char** argv) {
  troupe::internal::HostIfWorker(troupe::actors::RegisteredTypes());
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
