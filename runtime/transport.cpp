#include "runtime/transport.h"

namespace troupe {

bool Transport::Help(Time) { return false; }

bool Transport::AwaitHelping(FiberEvent& event, Time until) {
  return event.WaitFor(until == Time::Never() ? std::chrono::hours(24 * 365)
                                              : until - SteadyClock().Now());
}

}  // namespace troupe
