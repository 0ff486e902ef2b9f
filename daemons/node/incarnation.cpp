#include "daemons/node/incarnation.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "runtime/log.h"

namespace troupe::daemons {

uint64_t NextIncarnation(const std::string& run_dir, const std::string& node,
                         uint64_t time_of_day_ns, uint64_t at_least) {
  const std::string path = run_dir + "/incarnation-" + node;
  uint64_t last = 0;
  if (std::ifstream before(path); before.good() && !(before >> last)) {
    LogWarning(path, " holds no number; the time of day numbers this life of the node");
    last = 0;
  }
  const uint64_t next = std::max({time_of_day_ns, at_least, last + 1});
  // In one piece: a node that is killed here leaves the old number or the new one.
  const std::string fresh = path + ".new";
  const bool kept = (std::ofstream(fresh) << next << '\n').flush().good() &&
                    std::rename(fresh.c_str(), path.c_str()) == 0;
  if (!kept) {
    LogWarning("cannot write ", path, "; if the time of day is set back, the next life of this ",
               "node joins only when the head has given this one up");
  }
  return next;
}

}  // namespace troupe::daemons
