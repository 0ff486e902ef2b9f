// Reads recorded spot markets and lays them under the pools of a cluster file.
//
//   spot-traces JSON  {"metadata": {"gap_seconds": 300}, "data": [16, 16, 0]}   of one zone
//   Bamboo CSV        0,add,node1             milliseconds, add or remove, the node's name
//   JSONL             {"t": 60, "offering": "us-east-1a", "capacity": 8, "price": 0.9}
//
// A trace lies under the pools whose name or zone it is called by: by the word that is given before
// its path (us-east-1a=trace.json), by the offering of a JSONL line or one of its parts between
// slashes, or by its file's name, up to an underscore or whole. A name comes before a zone; a zone
// is looked for among spot pools only. All traces begin at the same instant, and the market ends
// with the shortest.
// Thread: any.
// Limits: kTraceBytesMax per file, kOffersMax changes per pool.
#pragma once

#include <string>
#include <vector>

#include "autoscaler/plan.h"
#include "autoscaler/simulator/market_history.h"
#include "runtime/result.h"

namespace troupe::simulator {

inline constexpr size_t kTraceBytesMax = size_t{256} << 20;

// `traces`: "PATH" or "NAME=PATH"; a folder stands for its .json, .csv and .jsonl files. Errors
// have the file and, where there is one, the line.
[[nodiscard]] Result<MarketHistory> ReadMarket(const std::vector<std::string>& traces,
                                               const std::vector<PoolLimits>& pools);

// One file's content. The price of its offers is negative where the trace has none.
struct Trace {
  std::string name;  // By which pools are found.
  Duration length = Duration::zero();
  OfferHistory offers;
};
[[nodiscard]] Result<std::vector<Trace>> ParseTrace(const std::string& text,
                                                    const std::string& path);

}  // namespace troupe::simulator
