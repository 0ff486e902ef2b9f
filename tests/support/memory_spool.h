// A spool in memory, with as much room as a test gives it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "daemons/head/core/spool.h"

namespace troupe::daemons {

class MemorySpool final : public Spool {
 public:
  explicit MemorySpool(uint64_t room = UINT64_MAX) : room_(std::make_shared<uint64_t>(room)) {}

  [[nodiscard]] Result<std::shared_ptr<SpoolFile>> Create() override {
    return std::shared_ptr<SpoolFile>(std::make_shared<File>(room_));
  }
  [[nodiscard]] uint64_t room() const { return *room_; }  // That is left.

 private:
  class File final : public SpoolFile {
   public:
    explicit File(std::shared_ptr<uint64_t> room) : room_(std::move(room)) {}
    ~File() override { *room_ += bytes_.size(); }
    [[nodiscard]] Status Append(std::string_view bytes) override {
      if (bytes.size() > *room_) return Error{ErrorCode::kResourceExhausted, "the spool is full"};
      *room_ -= bytes.size();
      bytes_ += bytes;
      return Status::Ok();
    }
    [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
    [[nodiscard]] std::string Read(uint64_t offset, size_t count) const override {
      return offset < bytes_.size() ? bytes_.substr(offset, count) : "";
    }

   private:
    const std::shared_ptr<uint64_t> room_;
    std::string bytes_;
  };

  const std::shared_ptr<uint64_t> room_;
};

}  // namespace troupe::daemons
