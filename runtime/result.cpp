#include "runtime/result.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace troupe {

void ValueOfFailed(const Error& error, const char* file, int line) {
  const std::string where =
      file == nullptr ? "" : std::string(file) + ":" + std::to_string(line) + ": ";
  std::fprintf(
      stderr,
      "%sthe value of a failed Result was used; its error: %s\n"
      "Look at ok() and error() before the value; of a future, GetValue() throws the error "
      "instead.\n",
      where.c_str(), error.ToString().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe
