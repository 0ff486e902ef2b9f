#include "collective_groups/gpu/internal/nccl_plan.h"

#include <algorithm>

namespace troupe::groups {
namespace {

NcclPlan Host(std::string reason) {
  NcclPlan plan;
  plan.reason = std::move(reason);
  return plan;
}

std::string VersionText(int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Why the team cannot use NCCL at all; empty if it can.
std::string Obstacle(std::span<const NcclStatement> all) {
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string rank = "rank " + std::to_string(i);
    if (all[i].version == 0) {
      const auto end = std::find(all[i].problem.begin(), all[i].problem.end(), '\0');
      return rank + ": " + std::string(all[i].problem.begin(), end);
    }
    if (all[i].failures >= kNcclFailuresMax) {
      return rank + ": NCCL has failed " + std::to_string(all[i].failures) + " times";
    }
    if (all[i].version != all[0].version) {
      return "rank 0 has NCCL " + VersionText(all[0].version) + ", " + rank + " has " +
             VersionText(all[i].version);
    }
    for (size_t j = 0; j < i; ++j) {
      if (all[j].device == all[i].device && !(all[i].sharing && all[j].sharing)) {
        return "ranks " + std::to_string(j) + " and " + std::to_string(i) +
               " use the same GPU; NCCL 2.30 or newer takes this with NCCL_MULTI_RANK_GPU_ENABLE=1";
      }
    }
  }
  return "";
}

}  // namespace

NcclPlan PlanNccl(std::span<const NcclStatement> all, bool afresh) {
  if (std::string obstacle = Obstacle(all); !obstacle.empty()) return Host(std::move(obstacle));
  NcclPlan init;
  init.way = NcclPlan::Way::kInit;
  const NcclStatement& first = all[0];
  if (afresh || first.form == 0 || first.state == NcclState::kNone) return init;

  // Survivors come first, in the order they had; whoever comes after them is new.
  NcclPlan plan;
  std::vector<bool> kept(static_cast<size_t>(std::max(first.form_size, 0)));
  bool can_shrink = true;
  bool can_grow = true;
  int last = -1;
  for (const NcclStatement& s : all) {
    can_grow = can_grow && s.can_grow;
    const bool survives = s.form == first.form && s.state != NcclState::kNone;
    if (!survives) continue;
    const bool after_joiner = &s != &all[static_cast<size_t>(plan.survivors)];
    const bool fits =
        s.form_size == first.form_size && s.form_rank > last && s.form_rank < first.form_size;
    if (after_joiner || !fits) return init;
    last = s.form_rank;
    kept[static_cast<size_t>(last)] = true;
    ++plan.survivors;
    can_shrink = can_shrink && s.can_shrink;
    plan.abort = plan.abort || s.state == NcclState::kRevoked;
  }
  for (int rank = 0; rank < first.form_size; ++rank) {
    if (!kept[static_cast<size_t>(rank)]) plan.excluded.push_back(rank);
  }
  const bool grows = plan.survivors < static_cast<int>(all.size());
  const bool shrinks = !plan.excluded.empty();
  // One rank alone has nothing worth keeping, and nothing to shrink means nothing to abort by.
  if ((plan.survivors == 1 && (shrinks || grows)) || (plan.abort && !shrinks)) return init;
  if ((shrinks && !can_shrink) || (grows && !can_grow)) return init;
  plan.way = grows ? NcclPlan::Way::kGrow : shrinks ? NcclPlan::Way::kShrink : NcclPlan::Way::kKeep;
  return plan;
}

}  // namespace troupe::groups
