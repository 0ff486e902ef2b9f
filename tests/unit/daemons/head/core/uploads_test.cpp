// Payloads that come in parts: whole, or not at all.
#include "daemons/head/core/uploads.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "daemons/protocol/payload_parts.h"
#include "tests/support/memory_spool.h"

namespace troupe::daemons {
namespace {

WorkerPart Part(uint64_t upload, uint64_t offset, uint64_t total, std::string bytes) {
  return {"p", upload, offset, total, std::move(bytes)};
}

TEST(UploadsTest, PartsMakeTheWhole) {
  MemorySpool spool;
  Uploads uploads(&spool);
  EXPECT_EQ(*uploads.Add(Part(1, 0, 6, "abc")), 3U);
  EXPECT_EQ(uploads.Take("p", 1), nullptr) << "half of it is nothing";
  EXPECT_EQ(*uploads.Add(Part(1, 0, 6, "abc")), 3U) << "a repeat";
  EXPECT_EQ(*uploads.Add(Part(1, 5, 6, "f")), 3U) << "a gap";
  EXPECT_EQ(*uploads.Add(Part(1, 3, 6, "def")), 6U);
  const auto file = uploads.Take("p", 1);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->Read(0, 6), "abcdef");
  EXPECT_EQ(file->Read(4, 10), "ef");
  EXPECT_EQ(uploads.Take("p", 1), nullptr) << "it was taken";
  EXPECT_EQ(uploads.Have("p", 1), 6U) << "but is not to be sent again";
}

TEST(UploadsTest, AHeadThatWasRestartedGetsItFromTheBeginning) {
  MemorySpool spool;
  Uploads uploads(&spool);
  EXPECT_EQ(*uploads.Add(Part(3, 100, 200, "middle")), 0U);
  EXPECT_EQ(uploads.Have("p", 3), 0U);
  EXPECT_EQ(*uploads.Add(Part(3, 0, 200, std::string(200, 'x'))), 200U);
  EXPECT_NE(uploads.Take("p", 3), nullptr);
}

TEST(UploadsTest, TheNextOneOfAProcessReplacesTheOneBefore) {
  MemorySpool spool;
  Uploads uploads(&spool);
  EXPECT_EQ(*uploads.Add(Part(1, 0, 6, "abc")), 3U);
  EXPECT_EQ(*uploads.Add(Part(2, 0, 2, "xy")), 2U);
  EXPECT_EQ(uploads.Have("p", 1), 0U);
  EXPECT_EQ(uploads.Take("p", 2)->Read(0, 2), "xy");
  uploads.Forget("p");
  EXPECT_EQ(uploads.Have("p", 2), 0U);
}

TEST(UploadsTest, WhatNoWorkerSendsIsRefused) {
  MemorySpool spool;
  Uploads uploads(&spool);
  EXPECT_FALSE(uploads.Add(Part(0, 0, 1, "x")).ok());
  EXPECT_FALSE(uploads.Add(Part(1, 0, kUploadBytesMax + 1, "x")).ok());
  EXPECT_EQ(*uploads.Add(Part(1, 0, 2, "too long")), 0U);
}

TEST(UploadsTest, WhereThereIsNoRoomIsSaidAndWhatIsThereStays) {
  MemorySpool spool(4);
  Uploads uploads(&spool);
  EXPECT_EQ(*uploads.Add(Part(1, 0, 6, "abc")), 3U);
  const auto full = uploads.Add(Part(1, 3, 6, "def"));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(uploads.Have("p", 1), 3U);
  uploads.Forget("p");
  EXPECT_EQ(spool.room(), 4U) << "what nobody refers to is gone";
}

}  // namespace
}  // namespace troupe::daemons
