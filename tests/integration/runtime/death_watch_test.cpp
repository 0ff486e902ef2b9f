// The death watch: a page shared with processes that hold slots, let go of them, or are killed.
#include "runtime/death_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <map>

#include "runtime/process.h"
#include "tests/integration/runtime/child_lines.h"
#include "tests/integration/runtime/resources.h"
#include "tests/integration/runtime/temp_dir.h"
#include "tests/support/soon.h"

namespace troupe {
namespace {

using tests::ReadLine;

using tests::kSoon;

// A process that holds a slot until it is told to let go or killed.
struct Holder {
  ChildProcess child;
  int stdin_write = -1;

  Holder() = default;
  Holder(Holder&& other) noexcept
      : child(std::move(other.child)), stdin_write(std::exchange(other.stdin_write, -1)) {}
  ~Holder() {
    LetGo();
    child.Terminate(Duration::zero());
  }
  void LetGo() {
    if (stdin_write >= 0) ::close(std::exchange(stdin_write, -1));
  }
};

class DeathWatchTest : public ::testing::Test {
 protected:
  Holder Hold(uint32_t slot, const std::string& command = "hold") {
    return Hold(slot, turns_[slot], command);
  }
  Holder Hold(uint32_t slot, uint64_t turn, const std::string& command = "hold") {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    SpawnOptions options;
    options.argv = {TROUPE_PROCESS_HELPER, command, path_, std::to_string(slot),
                    std::to_string(turn)};
    options.capture_output = true;
    options.stdin_fd = fds[0];
    Result<ChildProcess> child = Spawn(options);
    EXPECT_TRUE(child.ok());
    ::close(fds[0]);
    Holder holder;
    holder.child = std::move(child).value();
    holder.stdin_write = fds[1];
    EXPECT_EQ(ReadLine(holder.child.stdout_fd()), "held");
    return holder;
  }

  // Calls of a watch, to be waited for.
  struct Calls {
    std::atomic<int> count{0};
    std::promise<void> first;
    bool Wait() { return first.get_future().wait_for(kSoon) == std::future_status::ready; }
  };
  std::shared_ptr<Calls> Watch(uint32_t slot) {
    auto calls = std::make_shared<Calls>();
    watch_->Watch(slot, [calls] {
      if (++calls->count == 1) calls->first.set_value();
    });
    return calls;
  }

  void Reset(uint32_t slot) { turns_[slot] = watch_->Reset(slot); }

  std::map<uint32_t, uint64_t> turns_;
  tests::TempDir dir_;
  const std::string path_ = dir_.path() + "/lives";
  std::unique_ptr<DeathWatch> watch_ = DeathWatch::Create(path_).value();
};

TEST_F(DeathWatchTest, AKilledHolderIsNoticedOnceAndNoOtherOne) {
  Holder doomed = Hold(3);
  const Holder other = Hold(4);
  const auto calls = Watch(3);
  const auto other_calls = Watch(4);
  doomed.child.Kill(SIGKILL);
  EXPECT_TRUE(calls->Wait());
  watch_->Unwatch(3);
  watch_->Unwatch(4);
  EXPECT_EQ(calls->count, 1);
  EXPECT_EQ(other_calls->count, 0);
}

TEST_F(DeathWatchTest, TheEndOfAHolderIsNoticedHoweverItEnds) {
  Holder orderly = Hold(0);
  const auto let_go = Watch(0);
  orderly.LetGo();
  EXPECT_TRUE(let_go->Wait());
  EXPECT_EQ(orderly.child.TryReap(), std::nullopt);  // Before its process has ended.
  Holder hasty = Hold(1, "hold-exit");
  const auto exited = Watch(1);
  hasty.LetGo();
  EXPECT_TRUE(exited->Wait());
}

TEST_F(DeathWatchTest, AWatchThatWasEndedTellsNothing) {
  Holder holder = Hold(0);
  const auto calls = Watch(0);
  watch_->Unwatch(0);
  holder.child.Kill(SIGKILL);
  ASSERT_TRUE(holder.child.WaitFor(kSoon).ok());
  watch_.reset();
  EXPECT_EQ(calls->count, 0);
}

TEST_F(DeathWatchTest, ASlotThatIsNotTakenYetIsWaitedFor) {
  const auto calls = Watch(7);
  Holder holder = Hold(7);
  EXPECT_EQ(calls->count, 0);
  holder.child.Kill(SIGKILL);
  EXPECT_TRUE(calls->Wait());
}

TEST_F(DeathWatchTest, ASlotServesAgainAfterReset) {
  for (int life = 0; life < 5; ++life) {
    Reset(9);
    const auto calls = Watch(9);
    Holder holder = Hold(9);
    EXPECT_EQ(calls->count, 0);
    holder.child.Kill(SIGKILL);
    ASSERT_TRUE(calls->Wait()) << life;
    watch_->Unwatch(9);
  }
}

TEST_F(DeathWatchTest, WhoComesTooLateForItsTurnDoesNotTakeTheSlot) {
  Reset(6);
  const uint64_t late = turns_[6];
  Reset(6);
  const auto page = DeathWatch::Open(path_).value();
  EXPECT_EQ(page->Hold(6, late).error().code, ErrorCode::kFenced);
  EXPECT_FALSE(watch_->WasHeld(6));
  EXPECT_TRUE(page->Hold(6, turns_[6]).ok());
}

TEST_F(DeathWatchTest, WhoHeldItOutOfTurnIsWaitedForAndItsDeathIsNobodyElses) {
  Reset(8);
  Holder late = Hold(8);  // Its own turn: it is given up only now.
  Reset(8);
  const auto calls = Watch(8);
  const Holder next = Hold(8);
  late.child.Kill(SIGKILL);
  ASSERT_TRUE(late.child.WaitFor(kSoon).ok());
  EXPECT_TRUE(watch_->WasHeld(8));
  watch_->Unwatch(8);
  EXPECT_EQ(calls->count, 0);
}

TEST_F(DeathWatchTest, WhoseTurnItIsTakesTheSlotWhenItsHolderDies) {
  Reset(8);
  Holder holder = Hold(8);
  const auto page = DeathWatch::Open(path_).value();
  auto taken = std::async(std::launch::async, [&] { return page->Hold(8, turns_.at(8)); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  holder.child.Kill(SIGKILL);
  EXPECT_TRUE(taken.get().ok());
  EXPECT_TRUE(watch_->WasHeld(8));
}

TEST_F(DeathWatchTest, ASlotHasOneHolderAndAHolderOneSlot) {
  const Holder holder = Hold(2);
  const auto mine = DeathWatch::Open(path_).value();
  EXPECT_EQ(mine->Hold(2, 0).error().code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(mine->Hold(5, 0).ok());
  EXPECT_EQ(mine->Hold(6, 0).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(mine->Hold(kDeathWatchSlots, 0).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(DeathWatchTest, OnlyADeathWatchPageIsOpened) {
  EXPECT_EQ(DeathWatch::Open(dir_.path() + "/none").error().code, ErrorCode::kNotFound);
  const std::string other = dir_.path() + "/other";
  std::ofstream(other) << "text";
  EXPECT_EQ(DeathWatch::Open(other).error().code, ErrorCode::kCorrupt);
  std::filesystem::resize_file(other, std::filesystem::file_size(path_));
  EXPECT_EQ(DeathWatch::Open(other).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(DeathWatch::Create("/nonexistent/lives").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(DeathWatchTest, LeavesNothingBehind) {
  const auto once = [this] {
    const auto page = DeathWatch::Open(path_).value();
    EXPECT_TRUE(page->Hold(1, 0).ok());
    const auto calls = Watch(1);
    watch_->Unwatch(1);
    EXPECT_EQ(calls->count, 0);
  };
  once();
  const size_t descriptors = tests::OpenDescriptors();
  const size_t threads = tests::Threads();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_EQ(tests::OpenDescriptors(), descriptors);
  EXPECT_EQ(tests::Threads(), threads);
}

}  // namespace
}  // namespace troupe
