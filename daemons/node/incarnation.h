// Which life of a node this is: greater than that of any process that ran here before under the
// same name.
//
// Thread: any; touches the file system. The time of day may have been set back since the last life,
// so that the number is also kept in a file of the run directory, which outlives the process.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::daemons {

// Never smaller than `at_least`. `time_of_day_ns`: nanoseconds since 1970. A file that cannot be
// read or written is told in the log; then the time of day alone decides.
[[nodiscard]] uint64_t NextIncarnation(const std::string& run_dir, const std::string& node,
                                       uint64_t time_of_day_ns, uint64_t at_least = 0);

}  // namespace troupe::daemons
