// What a simulated driver has asked the head for and has no answer to: it is asked again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "actors/core/cluster_protocol.h"
#include "daemons/protocol/messages.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

class SimRequests {
 public:
  using OnAnswer = std::function<void(const actors::ActorAnswer&)>;

  explicit SimRequests(SimPort* port) : port_(port) {}

  // `then`: with the first answer.
  template <class Request>
  void Ask(uint8_t type, Request request, OnAnswer then) {
    request.request = next_++;
    asked_[request.request] = {wire::Encode(type, request), std::move(then)};
    Repeat(request.request);
  }
  // Once; an answer that is lost is not missed.
  template <class Request>
  void Look(uint8_t type, Request request) {
    looked_ = request.request = next_++;
    (void)port_->Send(kHeadName, wire::Encode(type, request));
  }
  // Whether it answers the last look.
  bool Take(const actors::ActorAnswer& answer) {
    if (const auto it = asked_.find(answer.request); it != asked_.end()) {
      const OnAnswer then = std::move(it->second.second);
      asked_.erase(it);
      then(answer);
    }
    return answer.request == looked_ && answer.error.empty();
  }
  [[nodiscard]] bool waiting() const { return !asked_.empty(); }

 private:
  static constexpr Duration kRepeat = milliseconds(100);

  void Repeat(uint64_t request) {
    const auto it = asked_.find(request);
    if (it == asked_.end()) return;
    (void)port_->Send(kHeadName, it->second.first);
    port_->loop().CallAfter(kRepeat, [this, request] { Repeat(request); });
  }

  SimPort* const port_;
  uint64_t next_ = 1;
  uint64_t looked_ = 0;
  std::map<uint64_t, std::pair<std::string, OnAnswer>> asked_;  // Frames.
};

}  // namespace troupe::daemons::sim
