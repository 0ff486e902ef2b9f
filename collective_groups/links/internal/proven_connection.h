// Connections between two processes that have exchanged offers: who connects first says the secret
// of the offer, and only that counts.
//
// A port is open to whoever finds it. The secrets travel inside offers, through the head, whose
// connections are authenticated; each is good for one connection. Whoever says something else, or
// nothing, is closed or waits beside the others, and the listener goes on listening.
// Thread: any; a wait ends early once the listener is shut down (shutdown(2)) by another thread.
// Owns: the sockets it makes until it returns one; never the listener.
// Limits: kStrangersMax connections that have not said their secret yet, the oldest is closed for a
// newer one; kKnocksMax that the kernel keeps until they are looked at.
#pragma once

#include <sys/socket.h>

#include <array>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr size_t kStrangersMax = 64;
inline constexpr int kKnocksMax = 1024;

using LinkSecret = std::array<char, 16>;
// From the kernel; kUnavailable if it has none.
[[nodiscard]] Result<LinkSecret> MakeLinkSecret();

// Makes a listening socket of another library ready for AcceptProven.
Status PrepareListener(int listener);
// The connection that says `secret`; kPeerGone at the deadline, kCancelled once the listener is
// shut down.
[[nodiscard]] Result<int> AcceptProven(int listener, const LinkSecret& secret, Time deadline);
// Connects and says `secret`. Nothing is answered: who listens there was told by an offer.
// `listener`: our own, for the end of the wait alone.
[[nodiscard]] Result<int> ConnectProven(const sockaddr_storage& to, const LinkSecret& secret,
                                        int listener, Time deadline);

}  // namespace troupe::groups
