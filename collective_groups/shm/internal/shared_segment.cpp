#include "collective_groups/shm/internal/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <sstream>

namespace troupe::groups {
namespace {

constexpr uint64_t kMagic = 0x3345505552543153;
constexpr size_t kBellBytes = 4096;
constexpr size_t kHeaderBytes = (sizeof(SharedHeader) + 4095) / 4096 * 4096;
constexpr size_t kRingsBytes = kPeersMax * kRingBytes;
constexpr size_t kSegmentFileBytes =
    kHeaderBytes + kRingsBytes + kTeamsMax * kStages * 2 * kStageBytes;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

Error Problem(const std::string& what) {
  return {ErrorCode::kUnavailable, "shared memory: " + what + ": " + std::strerror(errno)};
}

int OpenByNumber(const std::string& pid, int fd, int flags) {
  return ::open(("/proc/" + pid + "/fd/" + std::to_string(fd)).c_str(), flags | O_CLOEXEC);
}

// Kernels that do not know the seal go without.
bool Seal(int fd, int seals) { return ::fcntl(fd, F_ADD_SEALS, seals) == 0 || errno == EINVAL; }

// An anonymous file of this size for ever.
Result<int> NewFile(size_t bytes) {
  const int fd =
      static_cast<int>(::syscall(SYS_memfd_create, "troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return Problem("memfd_create");
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0 || !Seal(fd, F_SEAL_SHRINK | F_SEAL_GROW)) {
    const Error problem = Problem("the size of a memory file");
    ::close(fd);
    return problem;
  }
  return fd;
}

bool HasSize(int fd, size_t bytes) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(bytes);
}

std::string ReadLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string LinkTarget(const char* path) {
  char target[128] = {};
  const ssize_t length = ::readlink(path, target, sizeof target - 1);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

}  // namespace

Result<std::unique_ptr<SharedSegment>> SharedSegment::Create() {
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  const Result<int> fd = NewFile(kSegmentFileBytes);
  if (!fd.ok()) return fd.error();
  segment->fd_ = *fd;
  const Result<int> bell_fd = NewFile(kBellBytes);
  if (!bell_fd.ok()) return bell_fd.error();
  segment->bell_fd_ = *bell_fd;
  if (Status s = segment->MapFiles(*fd, *bell_fd, true); !s.ok()) return s.error();
  // From now on nobody maps it for writing any more.
  if (!Seal(*fd, F_SEAL_FUTURE_WRITE)) return Problem("sealing");
  new (segment->bell_) std::atomic<uint32_t>{};
  auto* header = new (segment->base_) SharedHeader{};
  std::random_device random;
  header->nonce = (uint64_t{random()} << 32) | random();
  header->magic = kMagic;
  std::ostringstream address;
  address << ::getpid() << ' ' << *fd << ' ' << *bell_fd << ' ' << header->nonce;
  segment->address_ = address.str();
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::Map(const std::string& address) {
  std::istringstream words(address);
  std::string pid;
  int number = -1;
  int bell_number = -1;
  uint64_t nonce = 0;
  if (!(words >> pid >> number >> bell_number >> nonce)) {
    return Error{ErrorCode::kCorrupt, "shared memory: bad address '" + address + "'"};
  }
  const int fd = OpenByNumber(pid, number, O_RDONLY);
  if (fd < 0) return Problem("opening the memory of process " + pid);
  const int bell_fd = OpenByNumber(pid, bell_number, O_RDWR);
  std::unique_ptr<SharedSegment> segment(new SharedSegment());
  const bool sized = HasSize(fd, kSegmentFileBytes) && HasSize(bell_fd, kBellBytes);
  const Status mapped = sized ? segment->MapFiles(fd, bell_fd, false) : Status::Ok();
  ::close(fd);
  if (bell_fd >= 0) ::close(bell_fd);
  if (!mapped.ok()) return mapped.error();
  if (!sized || segment->header().magic != kMagic || segment->header().nonce != nonce) {
    return Error{ErrorCode::kUnavailable,
                 "shared memory: process " + pid +
                     " is not the one that offered its memory; members of one host must see each "
                     "other's processes, or set TROUPE_SHARED_MEMORY=0 for the run"};
  }
  segment->address_ = address;
  return segment;
}

SharedSegment::~SharedSegment() {
  if (base_ != nullptr) ::munmap(base_, kSegmentFileBytes);
  if (bell_ != nullptr) ::munmap(bell_, kBellBytes);
  if (fd_ >= 0) ::close(fd_);
  if (bell_fd_ >= 0) ::close(bell_fd_);
}

Status SharedSegment::MapFiles(int fd, int bell_fd, bool own) {
  const int access = own ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = ::mmap(nullptr, kSegmentFileBytes, access, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Problem("mmap");
  base_ = base;
  void* bell = ::mmap(nullptr, kBellBytes, PROT_READ | PROT_WRITE, MAP_SHARED, bell_fd, 0);
  if (bell == MAP_FAILED) return Problem("mmap");
  bell_ = bell;
  return Status::Ok();
}

SharedHeader& SharedSegment::own_header() {
  TROUPE_ASSERT(fd_ >= 0, "peers only read");
  return *static_cast<SharedHeader*>(base_);
}

char* SharedSegment::stage(uint32_t team, uint64_t chunk) const {
  return static_cast<char*>(base_) + kHeaderBytes + kRingsBytes +
         (team * kStages + chunk % kStages) * 2 * kStageBytes;
}

char* SharedSegment::ring(size_t rank) const {
  return static_cast<char*>(base_) + kHeaderBytes + rank * kRingBytes;
}

// The fence orders what was published before it against the owner's flag: either the owner sees
// the news before it sleeps, or its flag is seen here.
void SharedSegment::Ring(uint32_t member) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t awaited = header().sleeping.load(std::memory_order_relaxed);
  if (awaited == kAnything || awaited == NewsOf(member)) RingAlways();
}

void SharedSegment::RingAlways() {
  doorbell().fetch_add(1);
  ::syscall(SYS_futex, &doorbell(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedSegment::Sleep(uint32_t bell, Duration at_most) {
  const auto ns = at_most.count();
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  ::syscall(SYS_futex, &doorbell(), FUTEX_WAIT, bell, &limit, nullptr, 0);
}

std::string SharedMemoryDomain(const std::string& host) {
  const std::string boot = ReadLine("/proc/sys/kernel/random/boot_id");
  const std::string processes = LinkTarget("/proc/self/ns/pid");
  if (boot.empty() || processes.empty()) return "";
  // Others may open the files of this process only while it is dumpable.
  if (::prctl(PR_GET_DUMPABLE) != 1) return "";
  return host + "/" + boot + "/" + processes + "/" + std::to_string(::getuid());
}

}  // namespace troupe::groups
