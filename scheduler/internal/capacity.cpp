#include "scheduler/internal/capacity.h"

#include <algorithm>
#include <utility>

#include "runtime/assert.h"

namespace troupe::sched::internal {
namespace {

double Part(int64_t part, int64_t whole) {
  if (part <= 0) return 0;
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 2;
}

int64_t Less(int64_t free, int64_t held) {
  return held > 0 ? std::max<int64_t>(0, free - held) : free;
}

}  // namespace

int64_t Need::Custom(uint32_t name) const {
  for (const Amount& amount : custom) {
    if (amount.name == name) return amount.units;
  }
  return 0;
}

void Need::Add(const Need& other) {
  cpu += other.cpu;
  memory += other.memory;
  gpu += other.gpu;
  for (const Amount& amount : other.custom) {
    const auto at = std::lower_bound(custom.begin(), custom.end(), amount.name,
                                     [](const Amount& a, uint32_t name) { return a.name < name; });
    if (at != custom.end() && at->name == amount.name) {
      at->units += amount.units;
    } else {
      custom.insert(at, amount);
    }
  }
}

void WriteDims(const Need& need, int64_t* dims) {
  dims[0] = need.cpu;
  dims[1] = need.memory;
  dims[2] = need.devices();
  dims[3] = need.fraction();
  for (size_t i = 0; i < need.custom.size(); ++i) dims[kFixedDims + i] = need.custom[i].units;
}

Capacity::Capacity(Need total, uint64_t devices) : total_(std::move(total)) {
  used_.custom = total_.custom;
  for (Amount& amount : used_.custom) amount.units = 0;
  const int64_t each = std::min(total_.gpu, kOne);
  for (uint8_t i = 0; i < 64; ++i) {
    if ((devices >> i) & 1) devices_.push_back(Device{i, static_cast<int32_t>(each)});
  }
  Recount();
}

void Capacity::Recount() {
  free_devices_ = 0;
  best_fraction_ = 0;
  for (const Device& device : devices_) {
    free_devices_ += device.free == kOne ? 1 : 0;
    best_fraction_ = std::max<int64_t>(best_fraction_, device.free);
  }
}

bool Capacity::Fits(const Need& need) const {
  if (need.cpu > free_cpu() || need.memory > total_.memory - used_.memory) return false;
  if (need.devices() > free_devices_ || need.fraction() > best_fraction_) return false;
  return std::all_of(need.custom.begin(), need.custom.end(), [&](const Amount& amount) {
    return amount.units <= total_.Custom(amount.name) - used_.Custom(amount.name);
  });
}

bool Capacity::FitsBeside(const Need& need, const Need& held) const {
  if (!Fits(need)) return false;
  if (need.cpu > Less(free_cpu(), held.cpu)) return false;
  if (need.memory > Less(total_.memory - used_.memory, held.memory)) return false;
  if (need.gpu > 0 && held.gpu > 0) {
    // A share of a device may be all that keeps the device from being whole again.
    const int64_t left = free_devices_ - std::max<int64_t>(1, held.devices());
    if (left < std::max<int64_t>(1, need.devices())) return false;
  }
  return std::all_of(need.custom.begin(), need.custom.end(), [&](const Amount& amount) {
    const int64_t free = total_.Custom(amount.name) - used_.Custom(amount.name);
    return amount.units <= Less(free, held.Custom(amount.name));
  });
}

bool Capacity::FitsWhenIdle(const Need& need) const {
  if (need.cpu > total_.cpu || need.memory > total_.memory || need.gpu > total_.gpu) return false;
  return std::all_of(need.custom.begin(), need.custom.end(), [&](const Amount& amount) {
    return amount.units <= total_.Custom(amount.name);
  });
}

void Capacity::Book(const Need& need, int64_t sign) {
  used_.cpu += sign * need.cpu;
  used_.memory += sign * need.memory;
  used_.gpu += sign * need.gpu;
  for (const Amount& amount : need.custom) {
    for (Amount& used : used_.custom) {
      if (used.name == amount.name) used.units += sign * amount.units;
    }
  }
}

uint64_t Capacity::Take(const Need& need) {
  TROUPE_ASSERT(Fits(need), "more is taken than there is");
  Book(need, 1);
  if (need.gpu == 0) return 0;
  uint64_t taken = 0;
  if (const int64_t fraction = need.fraction(); fraction > 0) {
    Device* best = nullptr;
    for (Device& device : devices_) {
      if (device.free < fraction) continue;
      if (best == nullptr || device.free < best->free) best = &device;
    }
    best->free -= static_cast<int32_t>(fraction);
    taken = uint64_t{1} << best->index;
  } else {
    int64_t left = need.devices();
    for (Device& device : devices_) {
      if (left == 0) break;
      if (device.free != kOne) continue;
      device.free = 0;
      taken |= uint64_t{1} << device.index;
      --left;
    }
  }
  Recount();
  return taken;
}

bool Capacity::TakeOn(const Need& need, uint64_t devices) {
  if (!Fits(need)) return false;
  const auto each = static_cast<int32_t>(std::min(need.gpu, kOne));
  const int64_t wanted = need.gpu == 0 ? 0 : std::max<int64_t>(1, need.devices());
  int64_t found = 0;
  for (const Device& device : devices_) {
    if (((devices >> device.index) & 1) != 0 && device.free >= each) ++found;
  }
  if (found != wanted || __builtin_popcountll(devices) != wanted) return false;
  Book(need, 1);
  for (Device& device : devices_) {
    if ((devices >> device.index) & 1) device.free -= each;
  }
  Recount();
  return true;
}

bool Capacity::ClaimOn(const Need& need, uint64_t devices) {
  Need rest = need;
  rest.cpu = 0;
  if (!TakeOn(rest, devices)) return false;
  used_.cpu += need.cpu;
  return true;
}

void Capacity::BookCpu(int64_t units) {
  used_.cpu += units;
  TROUPE_ASSERT(used_.cpu >= 0, "more CPU is lent than was taken");
}

void Capacity::Give(const Need& need, uint64_t devices) {
  Book(need, -1);
  TROUPE_ASSERT(used_.cpu >= 0 && used_.memory >= 0 && used_.gpu >= 0,
                "more is given back than was taken");
  if (devices == 0) return;
  const auto each = static_cast<int32_t>(std::min(need.gpu, kOne));
  for (Device& device : devices_) {
    if ((devices >> device.index) & 1) device.free += each;
  }
  Recount();
}

double Capacity::Share() const { return ShareWith({}); }

double Capacity::ShareWith(const Need& need) const {
  double share = std::max(Part(used_.cpu + need.cpu, total_.cpu),
                          Part(used_.memory + need.memory, total_.memory));
  share = std::max(share, Part(used_.gpu + need.gpu, total_.gpu));
  for (size_t i = 0; i < used_.custom.size(); ++i) {
    const int64_t units = used_.custom[i].units + need.Custom(used_.custom[i].name);
    share = std::max(share, Part(units, total_.custom[i].units));
  }
  return share;
}

void Capacity::WriteRoom(const std::vector<uint32_t>& custom, const Need* held, int64_t* room,
                         int64_t* half) const {
  static const Need kNothing;
  const Need& kept = held == nullptr ? kNothing : *held;
  room[0] = Less(free_cpu(), kept.cpu);
  room[1] = Less(total_.memory - used_.memory, kept.memory);
  room[2] = free_devices_;
  room[3] = best_fraction_;
  if (kept.gpu > 0) {
    room[2] = std::max<int64_t>(0, free_devices_ - std::max<int64_t>(1, kept.devices()));
    room[3] = room[2] > 0 ? kOne : 0;
  }
  const int64_t half_gpu = total_.gpu / 2 - used_.gpu;
  half[0] = std::min(room[0], total_.cpu / 2 - used_.cpu);
  half[1] = std::min(room[1], total_.memory / 2 - used_.memory);
  half[2] = half_gpu < 0 ? -1 : std::min(room[2], half_gpu / kOne);
  half[3] = std::min(room[3], half_gpu);
  for (size_t i = 0; i < custom.size(); ++i) {
    const int64_t total = total_.Custom(custom[i]);
    const int64_t used = used_.Custom(custom[i]);
    room[kFixedDims + i] = Less(total - used, kept.Custom(custom[i]));
    half[kFixedDims + i] = std::min(room[kFixedDims + i], total / 2 - used);
  }
}

double Capacity::Distance(const Need& need) const {
  const auto missing = [](int64_t wanted, int64_t free, int64_t total) {
    return total == 0 && wanted > 0 ? 1.0 : std::min(Part(wanted - free, total), 100.0);
  };
  double sum = FitsWhenIdle(need) ? 0 : 1000;
  sum += missing(need.cpu, free_cpu(), total_.cpu);
  sum += missing(need.memory, total_.memory - used_.memory, total_.memory);
  sum += missing(need.devices() * kOne, free_devices_ * kOne, total_.gpu);
  sum += missing(need.fraction(), best_fraction_, total_.gpu);
  for (const Amount& amount : need.custom) {
    const int64_t total = total_.Custom(amount.name);
    sum += missing(amount.units, total - used_.Custom(amount.name), total);
  }
  return sum;
}

}  // namespace troupe::sched::internal
