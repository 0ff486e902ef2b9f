// JoinTokens: who may fetch the cluster's keys, each once.
//
//   admitted --a node asks--> used --kJoinRepeat--> gone
//      +--------------its time is over------------> gone
//
// Thread: one.
// Invariants: JT-1 a token gives the keys to one peer only; to that one again within kJoinRepeat,
// since an answer can be lost. JT-2 none after its time. JT-3 a token of a node gives them to a
// peer of that name only.
// Limits: kJoinTokensMax at once.
#pragma once

#include <map>
#include <string>

#include "daemons/head/core/head_queue.h"
#include "daemons/protocol/join.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kJoinTokensMax = 20'000;
inline constexpr Duration kJoinRepeat = seconds(60);
inline constexpr const char* kJoinTokenRecords = "token/";

class JoinTokens {
 public:
  // `keys`: the text of the cluster's key file; empty: nobody can join with a token.
  JoinTokens(HeadQueue* queue, std::string keys) : queue_(queue), keys_(std::move(keys)) {}

  void Restore(const std::map<std::string, std::string>& records);
  [[nodiscard]] Status Admit(const AdmitGuest& guest);
  // `from`: no other process has this name.
  void OnGuest(const std::string& from, const std::string& key, const std::string& frame);
  void OnTick();
  void RefreshKeys() const;

 private:
  struct Token {
    std::string node;
    Time until;
    std::string user;  // The peer that has used it.
  };

  [[nodiscard]] JoinReply Use(const std::string& from, const std::string& key,
                              const JoinRequest& request);
  void Keep(const std::string& key, const Token& token) const;

  HeadQueue* const queue_;
  const std::string keys_;
  std::map<std::string, Token> tokens_;  // By public key.
};

}  // namespace troupe::daemons
