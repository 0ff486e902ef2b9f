// The autoscaler under a simulated provider: random demand, markets, failing and slow launches,
// lost replies, notices and sudden deaths, by seed. Invariants are checked after every decision;
// when the faults stop, the fleet must converge and then be left alone.
#pragma once

#include <cstddef>
#include <string>

namespace troupe::sim {

// What was violated, "AP-1 ..." for instance, or empty. `failures`: counts refused launches.
[[nodiscard]] std::string RunAutoscalerSim(unsigned seed, size_t* failures = nullptr);

}  // namespace troupe::sim
