// How a host joins a cluster without its key file: with a token that is good for one node, once.
//
// A token is a key pair that the head lets in as a guest, who may say JoinRequest and nothing else.
// Whoever asks for it makes the pair, so that its secret never travels to the head; the token has
// the secret and the head's public key. The answer brings the cluster's keys, encrypted as all that
// goes over tcp.
// Thread: plain values, and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/clock.h"
#include "runtime/result.h"
#include "runtime/transport.h"

namespace troupe::daemons {

enum JoinFrameType : uint8_t {
  kFrameAdmitGuest = 29,
  kFrameJoinRequest = 30,
  kFrameJoinReply = 31,
};

// Any longer, and a token that was left lying somewhere opens the cluster to whoever finds it.
inline constexpr Duration kJoinTokenLimit = seconds(7 * 86400);

// Driver to head, answered with DriverReply; the same key twice is one token.
struct AdmitGuest {
  uint64_t request = 0;
  std::string key;   // Public.
  std::string node;  // The only one that may use it; empty: any.
  uint64_t valid_ms = 0;
  template <class A>
  void Fields(A& a) {
    a(request, key, node, valid_ms);
  }
};

struct JoinRequest {
  std::string node;
  template <class A>
  void Fields(A& a) {
    a(node);
  }
};

struct JoinReply {
  uint8_t code = 0;  // ErrorCode.
  std::string message;
  std::string keys;  // The text of the cluster's key file.
  template <class A>
  void Fields(A& a) {
    a(code, message, keys);
  }
};

// The answer to AdmitGuest, as JSON.
struct JoinPlace {
  std::string head_key;  // Public.
  std::string listens;   // HOST:PORT.
};
[[nodiscard]] std::string JoinPlaceJson(const JoinPlace& place);
[[nodiscard]] Result<JoinPlace> ParseJoinPlace(const std::string& json);

struct JoinToken {
  CurveKeys guest;
  std::string head_key;  // Public.
};

struct JoinOffer {
  std::string token;    // As text.
  std::string listens;  // Where the head does, HOST:PORT.
};

// Letters, digits, - and _: no shell, file or URL takes it for anything else.
[[nodiscard]] std::string JoinTokenText(const JoinToken& token);
// kInvalidArgument, with what to do.
[[nodiscard]] Result<JoinToken> ParseJoinToken(std::string_view text);

}  // namespace troupe::daemons
