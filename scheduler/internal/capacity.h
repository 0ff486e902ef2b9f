// What a node has and what of it is used, GPU devices one by one; a bundle's reservation likewise.
//
// Thread: one.
// Invariants: used never exceeds total, in no resource and on no device, but for CPU that was
// claimed or taken back. Then none is free.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/resources.h"

namespace troupe::sched::internal {

inline constexpr int64_t kOne = kResourceUnitsPerOne;

struct Amount {
  uint32_t name = 0;  // As NameTable numbers it.
  int64_t units = 0;
  friend bool operator==(const Amount&, const Amount&) = default;
};

// Amounts in units, by small numbers in place of names.
struct Need {
  int64_t cpu = 0;
  int64_t memory = 0;
  int64_t gpu = 0;
  std::vector<Amount> custom;  // By name, ascending.

  // GPU is either whole devices or a share of one.
  [[nodiscard]] int64_t devices() const { return gpu >= kOne ? gpu / kOne : 0; }
  [[nodiscard]] int64_t fraction() const { return gpu < kOne ? gpu : 0; }
  [[nodiscard]] bool empty() const { return cpu == 0 && memory == 0 && gpu == 0 && custom.empty(); }
  [[nodiscard]] int64_t Custom(uint32_t name) const;
  void Add(const Need& other);
  friend bool operator==(const Need&, const Need&) = default;
};

// The amounts that a search compares: cpu, memory, whole devices, best share of one, custom ones.
inline constexpr size_t kFixedDims = 4;
void WriteDims(const Need& need, int64_t* dims);

class Capacity {
 public:
  struct Device {
    uint8_t index = 0;
    int32_t free = 0;
  };

  Capacity() = default;
  // `devices` by bits: each has what `total.gpu` gives of it, all of it or a share.
  Capacity(Need total, uint64_t devices);

  [[nodiscard]] const Need& total() const { return total_; }
  [[nodiscard]] const Need& used() const { return used_; }
  [[nodiscard]] const std::vector<Device>& devices() const { return devices_; }
  [[nodiscard]] bool Fits(const Need& need) const;
  // Whether it fits without taking of what `held` would need.
  [[nodiscard]] bool FitsBeside(const Need& need, const Need& held) const;
  [[nodiscard]] bool FitsWhenIdle(const Need& need) const;
  // Requires Fits. Whole devices from the lowest index; a share from the fullest device with room.
  // The devices, by bits.
  uint64_t Take(const Need& need);
  // The same with devices that are given; false, and nothing is taken, if it does not fit.
  bool TakeOn(const Need& need, uint64_t devices);
  // The same of what runs there already: its CPU is taken whether or not there is room.
  bool ClaimOn(const Need& need, uint64_t devices);
  // So many units of CPU more are in use, or less; whether or not there is room.
  void BookCpu(int64_t units);
  void Give(const Need& need, uint64_t devices);
  // The greatest share that is used of anything: 0 to 1.
  [[nodiscard]] double Share() const;
  // The same once `need` were taken as well; more than 1 if there is not enough.
  [[nodiscard]] double ShareWith(const Need& need) const;
  // What others than the holder of `held` (may be null) may take, and what they may take without
  // using more than half of anything. Names the node does not have give 0.
  void WriteRoom(const std::vector<uint32_t>& custom, const Need* held, int64_t* room,
                 int64_t* half) const;
  // Nothing more is free of what it has.
  [[nodiscard]] bool IsFull() const { return !total_.empty() && used_ == total_; }
  // How far it is from fitting: the sum of the missing shares; above 1000 if it never will.
  [[nodiscard]] double Distance(const Need& need) const;
  [[nodiscard]] int64_t free_cpu() const {
    return total_.cpu > used_.cpu ? total_.cpu - used_.cpu : 0;
  }
  [[nodiscard]] int64_t free_devices() const { return free_devices_; }
  [[nodiscard]] int64_t best_fraction() const { return best_fraction_; }

 private:
  void Book(const Need& need, int64_t sign);
  void Recount();

  Need total_;
  Need used_;  // `custom` has the names of total_, in its order.
  std::vector<Device> devices_;
  int64_t free_devices_ = 0;   // Whole ones.
  int64_t best_fraction_ = 0;  // The most that is free on one device.
};

}  // namespace troupe::sched::internal
