// Records by a string id and by a small number, the slot: both in constant time, without moving a
// record.
//
// A hash table that is never walked, so that the order of hashes decides nothing (open addressing,
// linear probing, deletion by shifting back). T has a member `id`, a string that must not change
// while the record is in the table.
// Thread: one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::sched::internal {

inline constexpr uint32_t kNone = 0xffffffff;

template <class T>
class SlotTable {
 public:
  [[nodiscard]] size_t size() const { return size_; }
  // One more than the greatest slot that was ever in use.
  [[nodiscard]] uint32_t slots() const { return slots_; }
  [[nodiscard]] bool Has(uint32_t slot) const { return slot < slots_ && used_[slot]; }
  T& operator[](uint32_t slot) { return (*chunks_[slot / kChunk])[slot % kChunk]; }
  const T& operator[](uint32_t slot) const { return (*chunks_[slot / kChunk])[slot % kChunk]; }

  [[nodiscard]] uint32_t Find(std::string_view id) const {
    if (buckets_.empty()) return kNone;
    const uint32_t hash = Hash(id);
    for (size_t i = hash & mask_; buckets_[i].slot != kNone; i = (i + 1) & mask_) {
      if (buckets_[i].hash == hash && (*this)[buckets_[i].slot].id == id) return buckets_[i].slot;
    }
    return kNone;
  }

  // `record.id` must not be in the table.
  uint32_t Add(T record) {
    if ((size_ + 1) * 3 > buckets_.size() * 2) Grow();
    uint32_t slot = 0;
    if (free_.empty()) {
      slot = slots_++;
      if (slot / kChunk >= chunks_.size())
        chunks_.push_back(std::make_unique<std::array<T, kChunk>>());
      used_.push_back(false);
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Insert(Bucket{Hash(record.id), slot});
    (*this)[slot] = std::move(record);
    used_[slot] = true;
    ++size_;
    return slot;
  }

  void Remove(uint32_t slot) {
    size_t hole = Hash((*this)[slot].id) & mask_;
    while (buckets_[hole].slot != slot) hole = (hole + 1) & mask_;
    for (size_t i = (hole + 1) & mask_; buckets_[i].slot != kNone; i = (i + 1) & mask_) {
      const size_t home = buckets_[i].hash & mask_;
      if (((i - home) & mask_) < ((i - hole) & mask_)) continue;
      buckets_[hole] = buckets_[i];
      hole = i;
    }
    buckets_[hole] = Bucket{};
    (*this)[slot] = T{};
    used_[slot] = false;
    free_.push_back(slot);
    --size_;
  }

 private:
  static constexpr size_t kChunk = 256;
  struct Bucket {
    uint32_t hash = 0;
    uint32_t slot = kNone;
  };

  // FNV-1a with a final mix: the same on every machine.
  static uint32_t Hash(std::string_view text) {
    uint64_t hash = 14695981039346656037ULL;
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
    return static_cast<uint32_t>(hash ^ (hash >> 32));
  }

  void Insert(Bucket bucket) {
    size_t i = bucket.hash & mask_;
    while (buckets_[i].slot != kNone) i = (i + 1) & mask_;
    buckets_[i] = bucket;
  }

  void Grow() {
    std::vector<Bucket> old(buckets_.empty() ? 16 : buckets_.size() * 2);
    old.swap(buckets_);
    mask_ = buckets_.size() - 1;
    for (const Bucket& bucket : old) {
      if (bucket.slot != kNone) Insert(bucket);
    }
  }

  std::vector<std::unique_ptr<std::array<T, kChunk>>> chunks_;
  std::vector<bool> used_;
  std::vector<uint32_t> free_;
  std::vector<Bucket> buckets_;
  size_t mask_ = 0;
  size_t size_ = 0;
  uint32_t slots_ = 0;
};

}  // namespace troupe::sched::internal
