// Reads a captured child's output line by line, under a deadline.
// Thread: one.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "runtime/clock.h"

namespace troupe::tests {

// The next line of a non-blocking descriptor, without its end; what is left at the end of file.
inline std::string ReadLine(int fd, Duration limit = seconds(20)) {
  const Time deadline = SteadyClock().Now() + limit;
  std::string line;
  while (SteadyClock().Now() < deadline) {
    char c = 0;
    const ssize_t got = ::read(fd, &c, 1);
    if (got == 0 || c == '\n') return line;
    if (got == 1) {
      line.push_back(c);
      continue;
    }
    pollfd item{fd, POLLIN, 0};
    ::poll(&item, 1, 1000);
  }
  ADD_FAILURE() << "no line in time, only '" << line << "'";
  return line;
}

}  // namespace troupe::tests
