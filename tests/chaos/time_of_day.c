/* Loaded ahead of the C library: the time of day is off by as many seconds as the file says that
   TIME_OF_DAY names, eight bytes of its machine's order. Clocks that measure durations, and waits,
   are those of the system. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* offset;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("TIME_OF_DAY");
  const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED) offset = at;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  const int of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && of_day && offset != NULL) now->tv_sec += *offset;
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  if (now != NULL) *now = exact.tv_sec;
  return exact.tv_sec;
}
