// FleetJournal: what is written, how much at most, and what cannot be.
#include "daemons/autoscaler/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JournalTest : public ::testing::Test {
 protected:
  void Begin(size_t bytes_max = kJournalBytesMax) {
    journal_.emplace(
        path_, "life", [this](const std::string& line) { said_.push_back(line); }, bytes_max);
  }
  static std::vector<std::string> Lines(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "journal-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/fleets/demo.jsonl";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_;
  std::string path_;
  std::vector<std::string> said_;
  std::optional<FleetJournal> journal_;
};

TEST_F(JournalTest, ALineSaysWhenWhoAndWhy) {
  Begin();
  journal_->Write(1.23456, {FleetNoteKind::kLaunch, "spot-1", "spot", {}, "cheapest: \"$1\"\n"});
  journal_->Write(2, {FleetNoteKind::kGone, "spot-1"});
  EXPECT_THAT(Lines(path_),
              ElementsAre("{\"at\":1.235,\"life\":\"life\",\"kind\":\"launch\",\"node\":\"spot-1\","
                          "\"pool\":\"spot\",\"text\":\"cheapest: \\\"$1\\\"\\n\"}",
                          "{\"at\":2.0,\"life\":\"life\",\"kind\":\"gone\",\"node\":\"spot-1\"}"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(JournalTest, ItIsForItsOwnerOnly) {
  Begin();
  journal_->Write(1, {FleetNoteKind::kStart});
  struct stat file {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(fs::path(path_).parent_path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0700U);
}

TEST_F(JournalTest, AFolderThatWasThereStaysAsItIs) {
  const std::string folder = fs::path(path_).parent_path();
  fs::create_directories(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  Begin();
  journal_->Write(1, {FleetNoteKind::kStart});
  struct stat known {};
  ASSERT_EQ(::stat(folder.c_str(), &known), 0);
  EXPECT_EQ(known.st_mode & 0777, 0777U);
  EXPECT_EQ(Lines(path_).size(), 1U);
}

TEST_F(JournalTest, AnotherLifeFollows) {
  for (int life = 0; life < 2; ++life) {
    Begin();
    journal_->Write(life, {FleetNoteKind::kStart});
  }
  EXPECT_EQ(Lines(path_).size(), 2U);
}

TEST_F(JournalTest, AFullFileIsFollowedByOneThatBeginsInTheSameWay) {
  Begin(1000);
  journal_->Write(1, {FleetNoteKind::kStart, {}, {}, {}, "demo"});
  for (int i = 0; i < 100; ++i)
    journal_->Write(2 + i, {FleetNoteKind::kUp, "spot-" + std::to_string(i)});
  EXPECT_LE(fs::file_size(path_), 1000U);
  EXPECT_LE(fs::file_size(path_ + ".1"), 1000U);
  EXPECT_THAT(Lines(path_).front(), HasSubstr("\"kind\":\"start\""));
  EXPECT_THAT(Lines(path_).back(), HasSubstr("spot-99"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(JournalTest, ATextIsCutAndWhatIsNoUtf8IsReplaced) {
  Begin();
  journal_->Write(1, {FleetNoteKind::kFailure, {}, {}, {}, std::string(100'000, 'x')});
  journal_->Write(2, {FleetNoteKind::kFailure, {}, {}, {}, "a\xff"});
  EXPECT_LT(Lines(path_)[0].size(), kNoteTextMax + 200);
  EXPECT_THAT(Lines(path_)[1], HasSubstr("a\xEF\xBF\xBD"));
}

TEST_F(JournalTest, WhatCannotBeWrittenIsSaidOnce) {
  fs::create_directories(fs::path(path_).parent_path());
  for (const bool folder : {true, false}) {  // And a pipe that nobody reads.
    fs::remove_all(path_);
    said_.clear();
    ASSERT_EQ(folder ? ::mkdir(path_.c_str(), 0700) : ::mkfifo(path_.c_str(), 0600), 0);
    Begin();
    journal_->Write(1, {FleetNoteKind::kStart});
    journal_->Write(2, {FleetNoteKind::kUp, "spot-1"});
    ASSERT_EQ(said_.size(), 1U);
    EXPECT_THAT(said_[0], HasSubstr(path_));
  }
}

TEST_F(JournalTest, WithoutAPathNothingIsKept) {
  path_.clear();
  Begin();
  journal_->Write(1, {FleetNoteKind::kStart});
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace troupe::daemons
