#include "collective_groups/checkpoint/commit_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kLimit = seconds(20);

// Where an operation is held.
class Gate {
 public:
  void Hold() {
    std::unique_lock lock(mu_);
    held_ = true;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, kLimit, [this] { return released_; }));
  }
  void AwaitHeld() {
    std::unique_lock lock(mu_);
    ASSERT_TRUE(changed_.wait_for(lock, kLimit, [this] { return held_; }));
  }
  void Release() {
    std::lock_guard lock(mu_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool held_ = false;
  bool released_ = false;
};

// Passes everything on, but for one operation by its number that goes wrong.
class FaultyFiles : public CommitFiles {
 public:
  enum class Fault { kNone, kError, kShort, kKill, kHold };

  explicit FaultyFiles(Fault fault = Fault::kNone, int at = 0,
                       ErrorCode code = ErrorCode::kInternal)
      : fault_(fault), at_(at), code_(code) {}

  // Of operations that change something.
  [[nodiscard]] int operations() const { return count_; }
  void Heal() { fault_ = Fault::kNone; }
  // Their names in order, repeats left out.
  [[nodiscard]] std::vector<std::string> names() const { return names_; }
  // Outlives this object, which dies with its store.
  [[nodiscard]] std::shared_ptr<Gate> gate() const { return gate_; }

  Status MakeDirectory(const std::string& path) override { return real_->MakeDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    return real_->List(directory);
  }
  Result<int> Create(const std::string& path) override {
    if (Hit("create")) return Failure();
    return real_->Create(path);
  }
  Result<size_t> Write(int file, const void* data, size_t bytes, const std::string& path) override {
    const bool hit = Hit("write", [&] { (void)real_->Write(file, data, bytes / 2, path); });
    if (hit && fault_ == Fault::kShort) return real_->Write(file, data, (bytes + 1) / 2, path);
    if (hit) return Failure();
    return real_->Write(file, data, bytes, path);
  }
  Status Sync(int file, const std::string& path) override {
    if (Hit("sync")) return Failure();
    return real_->Sync(file, path);
  }
  void Close(int file) override { real_->Close(file); }
  Status Rename(const std::string& from, const std::string& to) override {
    if (Hit("rename")) return Failure();
    return real_->Rename(from, to);
  }
  Status SyncDirectory(const std::string& path) override {
    if (Hit("sync directory")) return Failure();
    return real_->SyncDirectory(path);
  }
  Status Remove(const std::string& path) override {
    if (Hit("remove")) return Failure();
    return real_->Remove(path);
  }
  void RemoveAbandoned(const std::string& path) override { real_->RemoveAbandoned(path); }
  Result<int> OpenToRead(const std::string& path) override { return real_->OpenToRead(path); }
  Status ReadExactly(int file, void* data, size_t bytes, const std::string& path) override {
    return real_->ReadExactly(file, data, bytes, path);
  }
  Result<uint64_t> Size(int file, const std::string& path) override {
    return real_->Size(file, path);
  }

 private:
  bool Hit(
      const char* what, const std::function<void()>& half = [] {}) {
    const bool hit = fault_ != Fault::kNone && ++count_ == at_;
    if (!hit && fault_ == Fault::kNone) ++count_;
    if (names_.empty() || names_.back() != what) names_.emplace_back(what);
    if (!hit) return false;
    what_ = what;
    if (fault_ == Fault::kKill) {
      half();
      ::kill(::getpid(), SIGKILL);
    }
    if (fault_ == Fault::kHold) {
      gate_->Hold();
      return false;
    }
    return fault_ != Fault::kShort || std::strcmp(what, "write") == 0;
  }
  [[nodiscard]] Error Failure() const { return Error{code_, what_ + ": injected"}; }

  const std::unique_ptr<CommitFiles> real_ = MakeCommitFiles();
  std::atomic<Fault> fault_;
  const int at_;
  const ErrorCode code_;
  std::atomic<int> count_ = 0;
  std::string what_;
  std::vector<std::string> names_;  // By the writer; read after a flush.
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

// A state whose every byte follows from its version: one large tensor, an empty and a small one.
struct Model {
  explicit Model(uint64_t version) : large((kCommitChunkBytes + 4000) / 8), small(3) {
    std::iota(large.begin(), large.end(), version * 1'000'003);
    std::iota(small.begin(), small.end(), version);
  }
  [[nodiscard]] std::vector<ConstBuffer> buffers() const {
    return {{large.data(), large.size() * 8}, {nullptr, 0}, {small.data(), small.size() * 8}};
  }
  std::vector<uint64_t> large, small;
};
std::string Header(uint64_t version) { return "header of " + std::to_string(version); }

void ExpectWhole(const Commit& commit) {
  const Model model(commit.version);
  EXPECT_EQ(commit.header, Header(commit.version));
  const auto wanted = model.buffers();
  ASSERT_EQ(commit.tensors.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(commit.tensors[i].bytes, wanted[i].bytes);
    if (wanted[i].bytes > 0) {
      EXPECT_EQ(std::memcmp(commit.tensors[i].data, wanted[i].data, wanted[i].bytes), 0);
    }
  }
}

class CommitStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "commits-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<CommitStore> Open(FaultyFiles* files = nullptr, uint32_t keep = 2) {
    auto store = CommitStore::Open({directory_, keep}, std::unique_ptr<CommitFiles>(files));
    EXPECT_TRUE(store.ok()) << store.error().message;
    return std::move(*store);
  }
  static void SaveAndFlush(CommitStore& store, uint64_t version) {
    const Model model(version);
    store.Save(version, Header(version), model.buffers());
    ASSERT_TRUE(store.Flush(kLimit).ok());
  }
  [[nodiscard]] uint64_t NewestWhole() const {
    auto store = CommitStore::Open({directory_, 2});
    EXPECT_TRUE(store.ok());
    auto newest = (*store)->Newest();
    EXPECT_TRUE(newest.ok());
    if (!newest.ok() || !newest->has_value()) return 0;
    ExpectWhole(**newest);
    return (*newest)->version;
  }
  [[nodiscard]] std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  [[nodiscard]] std::string File(uint64_t version) const {
    return directory_ + "/commit-0000000000000000000" + std::to_string(version);
  }

  std::string directory_;
};

TEST_F(CommitStoreTest, KeepsTheNewestAndReadsThemBack) {
  const auto store = Open();
  EXPECT_FALSE(store->Newest()->has_value());
  for (const uint64_t version : {1, 2, 3, 4}) SaveAndFlush(*store, version);
  EXPECT_THAT(Names(), ElementsAre("commit-00000000000000000003", "commit-00000000000000000004"));
  EXPECT_EQ(NewestWhole(), 4U);
  const Result<Commit> third = store->Load(3);
  ASSERT_TRUE(third.ok());
  ExpectWhole(*third);
  EXPECT_NE(third->digest, store->Load(4)->digest);
  EXPECT_EQ(store->Load(2).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store->stats().written, 4U);
  EXPECT_EQ(store->stats().version, 4U);
  EXPECT_FALSE(store->TakeProblem().has_value());
}

TEST_F(CommitStoreTest, EqualCommitsHaveEqualDigestsWhoeverWroteThem) {
  const auto one = Open();
  SaveAndFlush(*one, 7);
  const uint64_t digest = one->Load(7)->digest;
  const auto other = Open();
  SaveAndFlush(*other, 7);
  EXPECT_EQ(other->Load(7)->digest, digest);
  const Model model(7);
  other->Save(7, "another header", model.buffers());
  ASSERT_TRUE(other->Flush(kLimit).ok());
  EXPECT_NE(other->Load(7)->digest, digest);
}

TEST_F(CommitStoreTest, SyncsBeforeItRenamesAndRemovesLast) {
  SaveAndFlush(*Open(), 1);
  auto* files = new FaultyFiles();
  const auto store = Open(files, 1);
  SaveAndFlush(*store, 2);
  EXPECT_THAT(files->names(),
              ElementsAre("create", "write", "sync", "rename", "sync directory", "remove"));
}

TEST_F(CommitStoreTest, ANewerCommitTakesThePlaceOfTheWaitingOne) {
  auto* files = new FaultyFiles(FaultyFiles::Fault::kHold, 2);
  const auto gate = files->gate();
  const auto store = Open(files);
  const Model one(1), two(2), three(3);
  const auto first = store->Save(1, Header(1), one.buffers());
  gate->AwaitHeld();
  EXPECT_EQ(store->state().writing, first);
  store->Save(2, Header(2), two.buffers());
  const auto third = store->Save(3, Header(3), three.buffers());
  EXPECT_EQ(store->state().waiting, third);
  EXPECT_EQ(store->stats().superseded, 1U);
  EXPECT_EQ(store->Flush(milliseconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  gate->Release();
  ASSERT_TRUE(store->Flush(kLimit).ok());
  EXPECT_EQ(store->state().writing + store->state().waiting, 0U);
  EXPECT_THAT(Names(), ElementsAre("commit-00000000000000000001", "commit-00000000000000000003"));
}

TEST_F(CommitStoreTest, AWaitingCommitCanBeWithdrawn) {
  auto* files = new FaultyFiles(FaultyFiles::Fault::kHold, 2);
  const auto gate = files->gate();
  const auto store = Open(files);
  const Model one(1), two(2);
  EXPECT_FALSE(store->Withdraw());
  store->Save(1, Header(1), one.buffers());
  gate->AwaitHeld();
  EXPECT_FALSE(store->Withdraw());
  store->Save(2, Header(2), two.buffers());
  EXPECT_TRUE(store->Withdraw());
  gate->Release();
  ASSERT_TRUE(store->Flush(kLimit).ok());
  EXPECT_THAT(Names(), ElementsAre("commit-00000000000000000001"));
}

TEST_F(CommitStoreTest, ATornNewestGivesWayToTheOneBefore) {
  SaveAndFlush(*Open(), 1);
  SaveAndFlush(*Open(), 2);
  const auto size = std::filesystem::file_size(File(2));
  const std::string whole = [&] {
    std::ifstream in(File(2), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  const auto put = [&](const std::string& bytes) {
    std::filesystem::remove(directory_ + "/torn-00000000000000000002");
    std::ofstream(File(2), std::ios::binary) << bytes;
  };
  for (const size_t cut : {size_t{0}, size_t{20}, size_t{100}, size / 2, size - 1}) {
    put(whole.substr(0, cut));
    EXPECT_EQ(NewestWhole(), 1U) << cut;
  }
  // One flipped bit: preamble, sizes, header, data, chunk hashes, trailer.
  for (const size_t at : {size_t{1}, size_t{9}, size_t{17}, size_t{33}, size_t{50}, size_t{75},
                          size / 2, size - 30, size - 20, size - 10, size - 1}) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    put(bytes);
    EXPECT_EQ(NewestWhole(), 1U) << at;
  }
  put(whole + "x");
  EXPECT_EQ(NewestWhole(), 1U);
  put(whole);
  EXPECT_EQ(NewestWhole(), 2U);
}

TEST_F(CommitStoreTest, ATornCommitDoesNotCountAmongThoseThatAreKept) {
  SaveAndFlush(*Open(), 1);
  SaveAndFlush(*Open(), 9);
  std::filesystem::resize_file(File(9), 100);
  const auto store = Open(nullptr, 1);
  EXPECT_EQ((*store->Newest())->version, 1U);
  EXPECT_THAT(store->TakeProblem()->message, HasSubstr("is not a whole commit"));
  SaveAndFlush(*store, 2);
  EXPECT_EQ(NewestWhole(), 2U);
}

// Every operation of a save in turn fails: the commit before stays, the reason is told once, and
// the next save goes through.
TEST_F(CommitStoreTest, AnyFailingOperationLeavesTheCommitBefore) {
  SaveAndFlush(*Open(), 1);
  auto* counting = new FaultyFiles();
  const auto counted = Open(counting, 1);
  SaveAndFlush(*counted, 2);
  const int operations = counting->operations();
  ASSERT_GT(operations, 8);
  for (int at = 1; at <= operations; ++at) {
    std::filesystem::remove_all(directory_);
    SaveAndFlush(*Open(), 1);
    auto* files = new FaultyFiles(FaultyFiles::Fault::kError, at, ErrorCode::kResourceExhausted);
    const auto store = Open(files, 1);
    SaveAndFlush(*store, 2);
    const std::optional<Error> problem = store->TakeProblem();
    ASSERT_TRUE(problem.has_value()) << at;
    EXPECT_EQ(problem->code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(problem->message, HasSubstr("commit 2: "));
    EXPECT_FALSE(store->TakeProblem().has_value());
    for (const std::string& name : Names()) EXPECT_THAT(name, HasSubstr("commit-")) << at;
    EXPECT_GE(NewestWhole(), 1U) << at;
    files->Heal();
    SaveAndFlush(*store, 3);
    EXPECT_FALSE(store->TakeProblem().has_value());
    EXPECT_THAT(Names(), ElementsAre("commit-00000000000000000003")) << at;
  }
}

TEST_F(CommitStoreTest, AnErrorThatStaysIsToldOnceAndAgainAfterASuccess) {
  const auto store = Open();
  SaveAndFlush(*store, 1);
  const auto break_it = [&] { std::filesystem::remove_all(directory_); };
  break_it();
  SaveAndFlush(*store, 2);
  const auto problem = store->TakeProblem();
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->code, ErrorCode::kNotFound);
  EXPECT_THAT(problem->message, HasSubstr("commit 2: cannot create " + directory_));
  SaveAndFlush(*store, 3);
  EXPECT_FALSE(store->TakeProblem().has_value());
  EXPECT_EQ(store->stats().failed, 2U);
  std::filesystem::create_directories(directory_);
  SaveAndFlush(*store, 4);
  break_it();
  SaveAndFlush(*store, 5);
  EXPECT_TRUE(store->TakeProblem().has_value());
}

TEST_F(CommitStoreTest, ShortWritesAreContinued) {
  for (int at = 2; at <= 8; ++at) {
    SaveAndFlush(*Open(new FaultyFiles(FaultyFiles::Fault::kShort, at)), static_cast<uint64_t>(at));
    EXPECT_EQ(NewestWhole(), static_cast<uint64_t>(at));
  }
}

TEST_F(CommitStoreTest, AStoreThatIsClosedLeavesNothingHalfDone) {
  SaveAndFlush(*Open(), 1);
  auto* files = new FaultyFiles(FaultyFiles::Fault::kHold, 4);
  const auto gate = files->gate();
  const Model two(2);
  auto store = Open(files);
  store->Save(2, Header(2), two.buffers());
  gate->AwaitHeld();
  std::thread closer([&] { store.reset(); });
  gate->Release();
  closer.join();
  EXPECT_GE(NewestWhole(), 1U);
  for (const std::string& name : Names()) EXPECT_THAT(name, HasSubstr("commit-"));
}

// The writer is killed at each of its operations, in a write after half of it: what is there
// afterwards is whole, and not older than what was known to be complete.
TEST_F(CommitStoreTest, AKilledWriterNeverLeavesLessThanItHadCompleted) {
  constexpr int kSaves = 3;
  for (int at = 1;; ++at) {
    std::filesystem::remove_all(directory_);
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const int child = ::fork();
    if (child == 0) {
      auto store = CommitStore::Open({directory_, 1},
                                     std::make_unique<FaultyFiles>(FaultyFiles::Fault::kKill, at));
      for (uint8_t version = 1; store.ok() && version <= kSaves; ++version) {
        const uint64_t number = version;
        const Model model(number);
        (*store)->Save(number, Header(number), model.buffers());
        if (!(*store)->Flush(kLimit).ok() || ::write(pipe[1], &version, 1) != 1) ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(pipe[1]);
    uint64_t completed = 0;
    for (uint8_t version = 0; ::read(pipe[0], &version, 1) == 1;) {
      completed = version;
    }
    ::close(pipe[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_GE(NewestWhole(), completed) << "killed at operation " << at;
    for (const std::string& name : Names()) EXPECT_THAT(name, HasSubstr("commit-")) << at;
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_EQ(completed, static_cast<uint64_t>(kSaves));
      EXPECT_GT(at, 3 * 10);  // It was really killed all along.
      break;
    }
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
  }
}

TEST_F(CommitStoreTest, LeftoversOfALiveWriterStay) {
  const auto files = MakeCommitFiles();
  const std::string path = directory_ + "/.writing-1";
  const Result<int> file = files->Create(path);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(Open()->Newest()->has_value());
  EXPECT_THAT(Names(), ElementsAre(".writing-1"));
  files->Close(*file);
  EXPECT_FALSE(Open()->Newest()->has_value());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CommitStoreTest, ADirectoryThatCannotBeUsedIsNamed) {
  std::ofstream(directory_ + "/file") << "x";
  const auto store = CommitStore::Open({directory_ + "/file/commits", 2});
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.error().message, HasSubstr("cannot make the directory " + directory_));
  EXPECT_EQ(CommitStore::Open({directory_, 0}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(CommitStore::Open({"", 2}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::groups
