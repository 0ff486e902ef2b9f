#include "collective_groups/collectives/internal/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "collective_groups/collectives/algorithms.h"

namespace troupe::groups {
namespace {

struct Description {
  uint64_t signature = 0;
  std::array<char, 248> text{};
};

std::string RankList(const std::vector<int>& ranks) {
  std::string list;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!list.empty()) list += ", ";
    list += std::to_string(ranks[i]);
    if (last > i) list += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + list;
}

}  // namespace

std::string DescribeSides(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> sides;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!sides.contains(texts[i])) order.push_back(texts[i]);
    sides[texts[i]].push_back(ranks[i]);
  }
  std::string message;
  for (const std::string& text : order) {
    if (!message.empty()) message += "; ";
    message += RankList(sides[text]) + ": " + text;
  }
  return message;
}

Status CompareDescriptions(Channel& channel, const Team& team, uint64_t key, uint64_t signature,
                           const std::string& text) {
  std::vector<Description> all(team.ranks.size());
  Description& mine = all[static_cast<size_t>(team.me)];
  mine.signature = signature;
  std::memcpy(mine.text.data(), text.data(), std::min(text.size(), mine.text.size() - 1));
  std::vector<OutgoingBlock> outgoing;
  std::vector<IncomingBlock> incoming;
  for (int step = 1; step < team.size(); ++step) {
    const int to = (team.me + step) % team.size();
    const int from = (team.me + team.size() - step) % team.size();
    outgoing.push_back({to, &mine, sizeof mine});
    incoming.push_back({from, &all[static_cast<size_t>(from)], sizeof(Description)});
  }
  Workspace workspace;
  Algorithms algorithms(&channel, &team, key, &workspace);
  if (Status s = algorithms.Exchange(outgoing, incoming); !s.ok()) {
    channel.Clear();  // Before the descriptions go.
    return s;
  }
  const bool same = std::all_of(all.begin(), all.end(),
                                [&](const Description& d) { return d.signature == signature; });
  if (same) return Status::Ok();
  std::vector<std::string> texts;
  for (const Description& d : all) texts.emplace_back(d.text.data());
  return Error{ErrorCode::kMismatch,
               "the ranks disagree about a collective: " + DescribeSides(team.ranks, texts) +
                   "; every rank must call the same collectives in the same order with matching "
                   "arguments"};
}

}  // namespace troupe::groups
