// What a fleet's accounts say: a line for people, and JSON for programs.
//
// Thread: any. Pure.
#pragma once

#include <string>

#include "autoscaler/fleet_accounts.h"

namespace troupe::daemons {

// "2.50 worker-hours, $0.75: 91.2 % useful, 5.1 % starting, 3.7 % idle; ..."
[[nodiscard]] std::string AccountLine(const FleetAccounts& accounts);
// An object: "worker_s" and "dollars" by use, "paid_worker_s", "paid_dollars", "spot_worker_s",
// "on_demand_dollars" (null: there is no such pool), "preemptions", "lost_dollars" and "steps", and
// the same for each pool under "pools".
[[nodiscard]] std::string AccountJson(const FleetAccounts& accounts);

}  // namespace troupe::daemons
