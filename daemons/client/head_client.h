// HeadClient: what a process asks of the head about placed actors: creates, finds and ends them,
// learns where they are, keeps their state.
//
// What is asked is repeated until it is answered, so neither a lost frame nor a head that is being
// restarted loses anything; calls between actors do not pass here.
// Thread: any; callbacks come on the loop.
// Limits: kLinkRequestsMax requests wait for the head at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "actors/core/actor_group_protocol.h"
#include "actors/core/cluster_protocol.h"
#include "actors/host/actor_system.h"
#include "runtime/loop_scope.h"
#include "runtime/transport.h"

namespace troupe::daemons {

inline constexpr size_t kLinkRequestsMax = 1'000'000;
inline constexpr Duration kLinkRequestLimit = seconds(30);

class HeadClient final : public actors::ActorDirectoryClient {
 public:
  using OnOutput = std::function<void(const actors::ActorOutput&)>;

  // `send` hands a frame to the head. `owner`: as what this process owns actors, "driver/ID".
  HeadClient(EventLoop* loop, std::function<Status(std::string frame)> send, std::string owner);
  // Who is told whereabouts, and which of its actors are to leave; null: nobody. Set before the
  // first frame.
  void SetSystem(const std::weak_ptr<actors::ActorSystem>& system);
  // The same for who is no actor system.
  void SetTold(std::function<void(const actors::ActorLocation&)> told);
  void SetOutput(OnOutput output);
  void Start();
  // What it owns ends with it. No callback comes any more once it has returned.
  void Stop();

  // True if the frame was for it.
  bool OnFrame(const std::string& frame);

  void Create(actors::ActorSpec spec, OnAddress done) override;
  void Lookup(const std::string& name, Duration limit, OnAddress done) override;
  void Group(actors::GroupRequest request, Duration limit, OnGroup done) override;
  void Collective(actors::CollectiveRequest request, Duration limit, OnCollective done) override;
  void Actors(actors::ActorGroupRequest request, Duration limit, OnActorGroup done) override;
  [[nodiscard]] const std::string& owner() const override { return owner_; }
  void Follow(const std::string& actor) override;
  void Unfollow(const std::string& actor) override;
  void Hold(const actors::RefNotes& notes, Duration limit, const actors::CallDone& done) override;
  void SetHandles(const std::function<void()>& anew, const std::function<bool()>& told) override;
  void Kill(const std::string& actor, bool restart, const std::string& reason,
            actors::CallDone done) override;
  void Link(const std::string& one, const std::string& other, bool on, Duration limit,
            actors::CallDone done) override;
  void Save(const std::string& actor, uint64_t incarnation, std::string state,
            std::function<void(Status)> done) override;
  void Failed(const std::string& actor, uint64_t incarnation, const Error& reason) override;
  void Exited(const std::string& actor, uint64_t incarnation, const Error& reason) override;

 private:
  using OnAnswered = std::function<void(Result<actors::ActorAnswer>)>;
  struct Request {
    std::string frame;
    Time deadline;
    OnAnswered done;
  };
  struct Saving {
    uint64_t version = 0;
    std::string frame;
    std::string offer;  // Comes first; empty: the state is small.
    std::function<void(Status)> done;
    uint32_t beats = 1;  // Until it is repeated, and then twice as many.
    uint32_t left = 1;
  };

  [[nodiscard]] uint64_t NextRequest();
  void Ask(uint64_t request, std::string frame, Duration limit, const OnAnswered& done);
  void AskLast(actors::ActorVerb verb, const std::string& actor, uint64_t incarnation,
               const Error& reason);
  void OnAnswer(const actors::ActorAnswer& answer);
  void OnStates(const actors::ActorStates& states);
  void OnSendState(const actors::SendState& wanted);
  void OnSaved(const actors::ActorSaved& saved);
  // Hands a frame to who takes it, if anybody does.
  template <class T>
  bool Hand(std::function<void(const T&)> HeadClient::*taker, uint8_t type,
            const std::string& frame);
  // With mu_ held. `told`: as in FollowActors.
  void SendFollow(std::vector<std::string> add, std::vector<std::string> drop, bool told = false);
  void SendAll(bool told);  // With mu_ held.
  void Beat();

  EventLoop* const loop_;
  const std::function<Status(std::string frame)> send_;
  const std::string owner_;

  std::mutex mu_;
  std::function<void(const actors::ActorLocation&)> told_;
  std::function<void(const actors::LeaveActor&)> leave_;
  std::function<void(const actors::RoomWanted&)> room_wanted_;
  OnOutput output_;
  std::function<void()> anew_;
  std::function<bool()> handles_told_;
  bool stopped_ = false;
  uint64_t next_request_ = 1;
  std::map<uint64_t, Request> requests_;
  std::map<std::string, Saving> saving_;  // By actor.
  std::map<std::string, int> followed_;
  uint64_t version_ = 0;
  uint64_t version_at_beat_ = 0;
  uint64_t head_version_ = 0;
  std::string log_;
  uint64_t revision_ = 0;
  bool asked_ = false;      // For what was missed, since the last beat.
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
