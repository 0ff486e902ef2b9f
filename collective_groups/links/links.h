// Links: connections of one process to its peers, one per peer slot, that outlive epochs.
//
// Both ends make an offer and connect to the other's. After an aborted epoch the links that carried
// its messages are poisoned and must be offered and linked afresh. Open maps the ranks of a view
// onto links.
// Thread: Offer, Link and Open from the link lane (Link of several peers also at once); CancelLink
// and CancelLinks from any thread.
// Limits: kLinkTimeout per Link; kLinkSlotsMax slots; addresses are opaque bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective_groups/links/channel.h"
#include "collective_groups/membership/view.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr Duration kLinkTimeout = seconds(2);
// A connection whose peer acknowledges nothing for so long has lost its route.
inline constexpr Duration kLinkSilence = seconds(3);
// Live incarnations plus those whose slot was given back.
inline constexpr uint32_t kLinkSlotsMax = 256;

class Links {
 public:
  virtual ~Links() = default;

  // A fresh end of a link towards `peer_slot`, replacing an older one; returns the address the peer
  // must Link to.
  virtual Result<std::string> Offer(uint32_t my_slot, uint32_t peer_slot) = 0;
  // Connects our end to the peer's. Both sides call it; blocks up to kLinkTimeout.
  virtual Status Link(uint32_t peer_slot, const std::string& address) = 0;
  // Gives up the link to be with `peer_slot`: a Link that is blocked, or comes later, fails at once
  // until the next Offer to that slot. A link that is up stays up.
  virtual void CancelLink(uint32_t peer_slot) = 0;
  // Releases Link calls that are blocked now.
  virtual void CancelLinks() = 0;
  // Bytes sent and acknowledged, and received, over all links so far; 0: not known. Any thread.
  [[nodiscard]] virtual uint64_t moved() { return 0; }
  // A channel to these ranks of the view. kInvalidArgument if one of them is not linked.
  virtual Result<std::shared_ptr<Channel>> Open(const View& view,
                                                const std::vector<int>& ranks) = 0;
};

struct GlooOptions {
  std::string bind_address = "127.0.0.1";  // Address of the interface the data plane uses.
};
// Over TCP. kUnavailable if the address cannot be used, or if another library's Gloo comes before
// ours.
[[nodiscard]] Result<std::unique_ptr<Links>> MakeGlooLinks(const GlooOptions& options);

// Between threads of one process, for tests: what is sent is handed over in memory. All links of
// one exchange can reach each other; it must outlive them.
class LocalExchange;
[[nodiscard]] std::shared_ptr<LocalExchange> MakeLocalExchange();
[[nodiscard]] std::unique_ptr<Links> MakeLocalLinks(std::shared_ptr<LocalExchange> exchange);

}  // namespace troupe::groups
