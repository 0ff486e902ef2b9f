// State that is sent to joiners while the members train.
#include <future>
#include <optional>

#include "collective_groups/torch/internal/state_transfer.h"
#include "tests/unit/torch/large_training.h"
#include "tests/unit/torch/thread_members.h"

namespace troupe::elastic {
namespace {

using ::testing::HasSubstr;
using Peer = ThreadMembers::Peer;

// A member that trains on a thread of its own, and what became of it.
struct Trainer {
  Trainer(ThreadMembers& all, uint64_t seed, int64_t elements = LargeTraining::kElements,
          bool joiners_follow = true, const std::string& host = "h")
      : peer(all.Add(host)), training(&peer.agent, seed, elements, joiners_follow) {}
  void Start() {
    peer.thread = std::thread([this] {
      const Result<Ending> ending = RunElastic(peer.agent, training.state, [this] {
        const bool over = ends_at_join && peer.agent.Current().view.epoch > 1;
        return over ? Status::Ok() : training.TrainOn();
      });
      outcome = ending.ok() ? Status::Ok() : Status(ending.error());
    });
  }
  Peer& peer;
  LargeTraining training;
  bool ends_at_join = false;
  Status outcome;
  std::vector<Batch> after_join;  // Its batches from the epoch of the join on.
};

// Two members that wait in their third step, neither behind, until joiners are told to come.
class Following : public ::testing::Test {
 protected:
  void Begin(int64_t elements = LargeTraining::kElements, bool joiners_follow = true,
             uint64_t join_at = 2) {
    for (uint64_t i = 0; i < 2; ++i)
      trainers.push_back(std::make_unique<Trainer>(all, i, elements, joiners_follow));
    for (auto& trainer : trainers) Watch(*trainer, join_at);
    for (auto& trainer : trainers) trainer->Start();
    all.NextEpoch({&trainers[0]->peer, &trainers[1]->peer});
    ASSERT_TRUE(all.WaitFor("waits for joiners", 2));
  }
  Trainer& AddJoiner(int64_t elements = LargeTraining::kElements, bool joiners_follow = true) {
    trainers.push_back(
        std::make_unique<Trainer>(all, 100 + trainers.size(), elements, joiners_follow));
    Watch(*trainers.back(), ~uint64_t{0});
    return *trainers.back();
  }
  void Enter(const std::vector<size_t>& who) {
    std::vector<Peer*> peers;
    for (const size_t i : who) peers.push_back(&trainers[i]->peer);
    all.NextEpoch(peers);
  }
  void Watch(Trainer& trainer, uint64_t join_at) {
    trainer.training.on_batch = [this, &trainer, join_at](const Batch& batch) -> Status {
      const Epoch epoch = trainer.peer.agent.Current().view.epoch;
      if (epoch == 1 && trainer.training.state.version() == join_at) {
        all.Note("waits for joiners");
        EXPECT_TRUE(all.WaitEpoch(2));
      }
      if (epoch < 2) return Status::Ok();
      trainer.after_join.push_back(batch);
      all.Note("steps in epoch " + std::to_string(epoch));
      return on_step ? on_step(trainer) : Status::Ok();
    };
  }
  // The member's process ends.
  static void Kill(Trainer& trainer) {
    trainer.peer.agent.Stop();
    trainer.peer.thread.join();
    EXPECT_FALSE(trainer.outcome.ok());
  }
  // All of these have ended well, and alike to the bit.
  void ExpectEqualEnds(const std::vector<size_t>& who) {
    all.Join();
    const std::string summary = trainers[who[0]]->training.Summary();
    EXPECT_THAT(summary, HasSubstr("missing=0 doubled=0"));
    for (const size_t i : who) {
      const Trainer& trainer = *trainers[i];
      EXPECT_TRUE(trainer.outcome.ok()) << i << ": " << trainer.outcome.error().ToString();
      EXPECT_EQ(trainers[i]->training.Summary(), summary) << i;
    }
  }

  ThreadMembers all;
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::function<Status(Trainer&)> on_step;  // In epochs after the first.
};

TEST_F(Following, MembersTrainOnWhileTheTensorsAreOnTheirWay) {
  Begin();
  // The tensors are held back until all three are in the step.
  trainers[0]->peer.communicator->before_tensors = [&]() -> Status {
    EXPECT_TRUE(all.WaitFor("steps in epoch 2", 3));
    return Status::Ok();
  };
  Trainer& joiner = AddJoiner();
  joiner.Start();
  std::vector<bool> had_state;
  on_step = [&](Trainer& trainer) {
    if (&trainer == &joiner) had_state.push_back(trainer.training.state.has_state());
    return Status::Ok();
  };
  Enter({0, 1, 2});
  ExpectEqualEnds({0, 1, 2});
  ASSERT_GE(joiner.after_join.size(), 2U);
  EXPECT_EQ(joiner.after_join[0].counted, 0U);
  EXPECT_EQ(joiner.after_join[0].indices.size(), 2U);  // A batch norm could compute it.
  EXPECT_EQ(joiner.after_join[0].step_size, 8U);
  EXPECT_EQ(joiner.after_join[1].counted, 4U);
  EXPECT_EQ(trainers[0]->after_join[0].counted, 4U);
  EXPECT_EQ(had_state[0], false);
  EXPECT_EQ(had_state[1], true);
}

TEST_F(Following, TwoJoinersAtOnce) {
  Begin();
  AddJoiner().Start();
  AddJoiner().Start();
  Enter({0, 1, 2, 3});
  ExpectEqualEnds({0, 1, 2, 3});
  EXPECT_EQ(trainers[2]->after_join[0].counted, 0U);
  EXPECT_EQ(trainers[3]->after_join[0].counted, 0U);
}

struct Death {
  const char* name;
  size_t victim;
  bool in_transfer;  // Else in the step, while the tensors are held back.
};
class FollowingDeath : public Following, public ::testing::WithParamInterface<Death> {};

TEST_P(FollowingDeath, EverybodyGoesBackAndTheJoinerReceivesAllAgain) {
  const Death& death = GetParam();
  Begin();
  AddJoiner().Start();
  Trainer& victim = *trainers[death.victim];
  const auto die = [&]() -> Status {
    if (all.epoch() > 2) return Status::Ok();
    all.Note("dies");
    return Error{ErrorCode::kPeerGone, "this member dies"};
  };
  if (death.in_transfer) {
    victim.peer.communicator->before_tensors = die;
  } else {
    trainers[0]->peer.communicator->before_tensors = [&]() -> Status {
      if (all.epoch() > 2) return Status::Ok();
      EXPECT_TRUE(all.WaitEpoch(3));
      return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
    };
    on_step = [&](Trainer& trainer) { return &trainer == &victim ? die() : Status::Ok(); };
  }
  Enter({0, 1, 2});
  ASSERT_TRUE(all.WaitFor("dies"));
  victim.peer.agent.Stop();
  std::vector<size_t> left = {0, 1, 2};
  left.erase(left.begin() + static_cast<ptrdiff_t>(death.victim));
  Enter(left);
  ExpectEqualEnds(left);
  EXPECT_FALSE(victim.outcome.ok());
  if (death.victim != 2) {
    EXPECT_GE(trainers[2]->peer.communicator->tensors.size(), 1U);
    EXPECT_EQ(trainers[2]->after_join[0].counted, 0U);
  }
}
INSTANTIATE_TEST_SUITE_P(Of, FollowingDeath,
                         ::testing::Values(Death{"TheSource", 0, true}, Death{"TheJoiner", 2, true},
                                           Death{"TheJoinerInItsStep", 2, false},
                                           Death{"AnotherInItsStep", 1, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Following, WhatHasArrivedCompletelyStaysIfAnotherDies) {
  Begin();
  Trainer& joiner = AddJoiner();
  joiner.peer.communicator->after_tensors = [&] { all.Note("has tensors"); };
  joiner.Start();
  on_step = [&](Trainer& trainer) -> Status {
    if (trainer.peer.slot != 1) return Status::Ok();
    EXPECT_TRUE(all.WaitFor("has tensors"));
    all.Note("dies");
    return Error{ErrorCode::kPeerGone, "this member dies"};
  };
  Enter({0, 1, 2});
  ASSERT_TRUE(all.WaitFor("dies"));
  trainers[1]->peer.agent.Stop();
  Enter({0, 2});
  ExpectEqualEnds({0, 2});
  EXPECT_EQ(joiner.peer.communicator->tensors.size(), 1U);
  EXPECT_EQ(joiner.after_join[0].counted, 0U);
  EXPECT_EQ(joiner.after_join[1].counted, 4U);  // The same step again, as one of two.
}

TEST_F(Following, IfAllWhoHoldTheStateDieTheJoinerBeginsAnew) {
  Begin();
  Trainer& joiner = AddJoiner();
  const at::Tensor first = joiner.training.model.weights.detach().clone();
  joiner.Start();
  trainers[0]->peer.communicator->before_tensors = [&]() -> Status {
    EXPECT_TRUE(all.WaitFor("steps in epoch 2", 3));
    all.Note("dies");
    return Error{ErrorCode::kPeerGone, "this member dies"};
  };
  on_step = [&](Trainer& trainer) -> Status {
    if (&trainer != &joiner || all.epoch() < 3 || trainer.training.state.version() > 0)
      return Status::Ok();
    all.Note("begins anew");
    EXPECT_TRUE(torch::equal(joiner.training.model.weights.detach(), first));
    EXPECT_EQ(joiner.training.model.passes.item<float>(), 0.0F);
    EXPECT_TRUE(joiner.training.optimizer.state().empty());
    EXPECT_EQ(joiner.training.optimizer.param_groups()[0].options().get_lr(), 0.1);
    EXPECT_EQ(joiner.training.state.Integer("steps"), 0);
    EXPECT_EQ(joiner.training.sampler.remaining(), LargeTraining::kSamples);
    return Status::Ok();
  };
  Enter({0, 1, 2});
  ASSERT_TRUE(all.WaitFor("dies"));
  trainers[0]->peer.agent.Stop();
  trainers[1]->peer.agent.Stop();
  Enter({2});
  ExpectEqualEnds({2});
  EXPECT_TRUE(all.WaitFor("begins anew"));
}

TEST_F(Following, AJoinerHasTheTensorsAlsoIfTrainingEndsWithoutAStep) {
  Begin();
  Trainer& joiner = AddJoiner();
  for (auto& trainer : trainers) trainer->ends_at_join = true;
  joiner.Start();
  Enter({0, 1, 2});
  all.Join();
  EXPECT_TRUE(joiner.outcome.ok());
  EXPECT_TRUE(joiner.training.state.has_state());
  EXPECT_EQ(joiner.training.Summary(), trainers[0]->training.Summary());
}

// ---- when all wait ----

TEST_F(Following, ASmallStateIsSentBeforeTheStep) {
  Begin(5000);
  AddJoiner(5000).Start();
  Enter({0, 1, 2});
  ExpectEqualEnds({0, 1, 2});
  EXPECT_EQ(trainers[2]->after_join[0].counted, 4U);
}

TEST_F(Following, ItMustBeAskedFor) {
  Begin(LargeTraining::kElements, false);
  AddJoiner(LargeTraining::kElements, false).Start();
  Enter({0, 1, 2});
  ExpectEqualEnds({0, 1, 2});
  EXPECT_EQ(trainers[2]->after_join[0].counted, 4U);
}

TEST_F(Following, AJoinerThatWasNotAskedSaysSo) {
  Begin();
  AddJoiner(LargeTraining::kElements, false).Start();
  Enter({0, 1, 2});
  trainers[2]->peer.thread.join();
  ASSERT_FALSE(trainers[2]->outcome.ok());
  EXPECT_EQ(trainers[2]->outcome.error().code, ErrorCode::kMismatch);
  trainers[2]->peer.agent.Stop();
  Enter({0, 1});
  ExpectEqualEnds({0, 1});
}

// ---- promises ----

class FollowingWrite : public Following, public ::testing::WithParamInterface<bool> {};

TEST_P(FollowingWrite, IsNamed) {
  Begin();
  AddJoiner().Start();
  on_step = [&](Trainer& trainer) -> Status {
    LargeTraining& t = trainer.training;
    if (trainer.peer.slot != 1 || all.epoch() != 2) return Status::Ok();
    if (GetParam()) {
      t.reducer->Begin(4);
      t.model.Loss(torch::zeros({1})).backward();
    }
    {
      torch::NoGradGuard no_grad;
      t.model.weights.mul_(0.5);
    }
    if (!GetParam()) return Status::Ok();
    const Result<uint64_t> samples = t.reducer->Finish();
    return samples.ok() ? Status::Ok() : Status(samples.error());
  };
  Enter({0, 1, 2});
  trainers[1]->peer.thread.join();
  ASSERT_FALSE(trainers[1]->outcome.ok());
  EXPECT_EQ(trainers[1]->outcome.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(trainers[1]->outcome.error().message, HasSubstr("between Commit and Finish"));
  trainers[1]->peer.agent.Stop();
  Enter({0, 2});
  ExpectEqualEnds({0, 2});
}
INSTANTIATE_TEST_SUITE_P(To, FollowingWrite, ::testing::Bool(), [](const auto& info) {
  return info.param ? "ParametersAfterBegin" : "ParametersBeforeBegin";
});

TEST_F(Following, AFollowerMayNotCountSamples) {
  Begin();
  Trainer& joiner = AddJoiner();
  joiner.Start();
  on_step = [&](Trainer& trainer) -> Status {
    if (&trainer != &joiner) return Status::Ok();
    LargeTraining& t = trainer.training;
    t.reducer->Begin(1);
    t.model.Loss(torch::zeros({1})).backward();
    const Result<uint64_t> samples = t.reducer->Finish();
    return samples.ok() ? Status::Ok() : Status(samples.error());
  };
  Enter({0, 1, 2});
  joiner.peer.thread.join();
  ASSERT_FALSE(joiner.outcome.ok());
  EXPECT_THAT(joiner.outcome.error().message, HasSubstr("a follower's gradients"));
  joiner.peer.agent.Stop();
  Enter({0, 1});
  ExpectEqualEnds({0, 1});
}

// A member that has trained one step beside one that is played, and not committed it.
struct TrainedSource {
  TrainedSource() {
    source.peer().mailbox = &mailbox;
    source.peer().peer_samples = 4;
    source.Enter(1);
    training.emplace(&source.agent(), 1);
    EXPECT_TRUE(training->state.Sync(source.agent().Current(), seconds(10)).ok());
    mailbox.clear();
    EXPECT_TRUE(training->Step().ok());
  }

  std::deque<std::string> mailbox;  // What it sends.
  OneMember source{0};
  std::optional<LargeTraining> training;
};

// What is being sent is the last commit; the next one must not be written over it.
TEST(FollowingSource, CommitsWhenNobodyReceivesTheCommitBeforeAnyMore) {
  std::promise<void> committed;
  TrainedSource trained;
  OneMember& source = trained.source;
  LargeTraining& training = *trained.training;
  const at::Tensor sent = training.model.ballast.clone();
  source.peer().before_large = [&] {  // A commit that does not wait is done long before.
    const auto early = committed.get_future().wait_for(std::chrono::milliseconds(200));
    EXPECT_EQ(early, std::future_status::timeout);
  };
  source.Enter(2, {1, -1});
  ASSERT_TRUE(training.state.Sync(source.agent().Current(), seconds(10)).ok());
  training.model.ballast.zero_();
  ASSERT_TRUE(training.state.Commit().ok());
  committed.set_value();
  const auto it =
      std::find_if(trained.mailbox.begin(), trained.mailbox.end(), [&](const std::string& bytes) {
        return bytes.size() == LargeTraining::kElements * sizeof(float);
      });
  ASSERT_NE(it, trained.mailbox.end());
  EXPECT_EQ(std::memcmp(it->data(), sent.data_ptr(), it->size()), 0);
}

// What the source says first, of one member that trains and another of the given version.
uint64_t SaysBesideTraining(int receivers_version, bool at_end_of_data) {
  TrainedSource trained;
  OneMember& source = trained.source;
  LargeTraining& training = *trained.training;
  while (at_end_of_data && training.sampler.remaining() > 0) {
    EXPECT_TRUE(training.sampler.Next().ok());
    EXPECT_TRUE(training.sampler.Commit().ok());
  }
  EXPECT_TRUE(training.state.Commit().ok());
  source.Enter(2, {2, receivers_version});
  EXPECT_TRUE(training.state.Sync(source.agent().Current(), seconds(10)).ok());
  EXPECT_TRUE(training.state.Restore().ok());
  internal::Lead lead;
  EXPECT_EQ(trained.mailbox.front().size(), sizeof lead);
  std::memcpy(&lead, trained.mailbox.front().data(), sizeof lead);
  EXPECT_EQ(lead.version, 2U);
  return lead.beside_training;
}

TEST(FollowingSource, LetsOnlyNewMembersFollowAndOnlyIfAStepIsNext) {
  EXPECT_EQ(SaysBesideTraining(-1, false), 1U);
  EXPECT_EQ(SaysBesideTraining(-1, true), 0U);
  EXPECT_EQ(SaysBesideTraining(1, false), 0U);
}

// ---- several sources ----

class Sources : public Following {
 protected:
  // Members on these hosts, all of the same state; the last has none. Returns who sent tensors.
  std::vector<int> SendersOf(const std::vector<std::string>& hosts,
                             const std::function<void(size_t, LargeTraining&)>& change,
                             int64_t elements = LargeTraining::kElements) {
    for (size_t i = 0; i < hosts.size(); ++i)
      trainers.push_back(std::make_unique<Trainer>(all, i, elements, false, hosts[i]));
    std::vector<size_t> holders;
    for (size_t i = 0; i + 1 < hosts.size(); ++i) holders.push_back(i);
    const auto sync = [&](size_t i) {
      Trainer& trainer = *trainers[i];
      trainer.peer.thread = std::thread([&trainer] {
        ElasticState& state = trainer.training.state;
        trainer.peer.agent.Ready(state.version(), state.has_state());
        ASSERT_TRUE(trainer.peer.agent.WaitActive(seconds(20)).ok());
        trainer.outcome = state.Sync(trainer.peer.agent.Current(), seconds(20));
      });
    };
    for (const size_t i : holders) sync(i);
    Enter(holders);
    all.Join();
    for (const size_t i : holders) {
      change(i, trainers[i]->training);
      EXPECT_TRUE(trainers[i]->training.state.Commit().ok());
      trainers[i]->peer.communicator->transfers = 0;
      trainers[i]->peer.communicator->tensors.clear();
      EXPECT_TRUE(trainers[i]->outcome.ok());
    }
    std::vector<size_t> everyone = holders;
    everyone.push_back(hosts.size() - 1);
    for (const size_t i : everyone) sync(i);
    Enter(everyone);
    all.Join();
    std::vector<int> senders;
    for (const size_t i : everyone) {
      EXPECT_TRUE(trainers[i]->outcome.ok()) << trainers[i]->outcome.error().ToString();
      const auto& moved = trainers[i]->peer.communicator->tensors;
      if (!moved.empty() && moved[0].sent > 0) senders.push_back(static_cast<int>(i));
    }
    const LargeModel& first = trainers.front()->training.model;
    const LargeModel& last = trainers.back()->training.model;
    EXPECT_TRUE(torch::equal(first.weights.detach(), last.weights.detach()));
    EXPECT_TRUE(torch::equal(first.ballast, last.ballast));
    EXPECT_TRUE(torch::equal(first.passes, last.passes));
    return senders;
  }
};

TEST_F(Sources, OneHolderPerHostSendsAPart) {
  const auto senders = SendersOf({"a", "a", "b", "b", "c", "d"}, [](size_t, LargeTraining&) {});
  EXPECT_EQ(senders, (std::vector<int>{0, 2, 4}));
}

TEST_F(Sources, WhoseBitsAreOthersSendsNothing) {
  const auto other = [](size_t i, LargeTraining& training) {
    if (i == 1) training.model.passes.add_(1);
  };
  EXPECT_EQ(SendersOf({"a", "b", "c", "d"}, other), (std::vector<int>{0, 2}));
}

TEST_F(Sources, ASmallStateCostsNoMessageMore) {
  const auto senders = SendersOf(
      {"a", "b", "c"}, [](size_t, LargeTraining&) {}, 300'000);
  EXPECT_EQ(senders, (std::vector<int>{0}));
  EXPECT_EQ(trainers[0]->peer.communicator->transfers, 3);
  EXPECT_EQ(trainers[1]->peer.communicator->transfers, 0);
}

}  // namespace
}  // namespace troupe::elastic
