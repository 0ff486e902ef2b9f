// ObjectRefs: the refs of this process that others hold, and those of others that it holds, and the
// handles of counted actors that it has: the shell around RefTable, which decides.
//
// What processes tell each other of refs are calls of the actor that each has for it, which also
// reads values and gives them up for others. Which handles there are is told the head. Changes are
// gathered until the loop's next turn.
// Thread: any.
// Limits: kPublishedMax objects that others refer to at once.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/core/ref_table.h"
#include "actors/host/actor_system.h"
#include "pyapi/actor_calls.h"

namespace troupe::pyapi {

inline constexpr size_t kPublishedMax = 100'000;

class ObjectRefs : public std::enable_shared_from_this<ObjectRefs> {
 public:
  ObjectRefs(std::shared_ptr<actors::ActorSystem> system, std::shared_ptr<Completions> completions);
  // Takes what others ask from now on.
  void Start();
  // Which actor this process is for.
  void SetOwn(const std::string& actor);
  // No call leaves any more.
  void Stop();

  // A ref of this process that is being pickled: its number, `known` if that is good still. Until
  // Pickled it lasts.
  uint64_t Publish(const PyCall& call, uint64_t known);
  // What others get of a ref from now on.
  void Replace(uint64_t number, const PyCall& call);
  void Pickled(const std::vector<uint64_t>& numbers);
  // See RefTable. An empty peer is not known.
  uint64_t Pin(const std::vector<actors::RefKey>& keys, const std::string& to);
  void Over(uint64_t token, PeerAddress receiver = {});
  void AddLocal(const actors::ActorAddress& owner, const actors::RefKey& key);
  void AddHandle(const actors::RefKey& key);
  void DropLocal(const actors::RefKey& key);
  void Arrived(const actors::ActorAddress& from, uint64_t token,
               const std::vector<actors::RefKey>& keys);
  void Opened(const actors::RefKey& outer, const std::vector<actors::RefKey>& keys);

  // Whether others may ask for something of this process; while that is so it lends its CPU, if it
  // has nothing to do.
  [[nodiscard]] bool Needed();
  // Runs `fn` on the loop as soon as nobody does.
  void WhenUnneeded(std::function<void()> fn);
  // Objects that others refer to, refs of others that are held, messages on their way.
  [[nodiscard]] std::array<size_t, 3> Counts();
  // Where others ask. Constant after Start.
  [[nodiscard]] const actors::ActorAddress& address() const { return address_; }
  // What the actor is asked.
  Result<std::string> Answer(const std::string& from, const std::string& method, std::string data);

 private:
  struct Object {
    std::shared_ptr<CallState> state;
    std::shared_ptr<actors::PendingCall> call;  // Null: there is none to give up.
  };

  template <class F>
  void Change(F&& change);
  void Turn();
  void Send(const std::shared_ptr<actors::ActorRef>& to, const std::string& peer,
            const actors::RefNotes& notes);
  void TellHead(const actors::RefNotes& notes);
  void CountHandles();
  void Know(const actors::ActorAddress& process);  // With mu_ held.
  void WatchPeers();
  void TellUnneeded();
  [[nodiscard]] Result<std::string> Read(const Object& object) const;

  const std::shared_ptr<actors::ActorSystem> system_;
  const std::shared_ptr<Completions> completions_;
  actors::ActorAddress address_;

  std::mutex mu_;
  actors::RefTable table_;
  std::map<uint64_t, Object> objects_;
  struct Watched {  // Whose end is told.
    std::string actor;
    std::shared_ptr<actors::ActorRef> ref;
  };
  std::map<std::string, actors::ActorAddress> addresses_;  // Of others, by process.
  std::map<std::string, Watched> watched_;                 // By process.
  bool due_ = false;                                       // A turn is.
  bool look_ = false;   // It looks at whose end matters, and at the clock.
  bool ticks_ = false;  // A later one is due, too.
  bool stopped_ = false;
  bool lends_ = false;
  std::function<void()> when_unneeded_;
};

// A ref of another process, a copy of one of this, or a handle of a counted actor, that Python
// holds.
class HeldRef {
 public:
  HeldRef(const std::shared_ptr<ObjectRefs>& refs, const actors::ActorAddress& owner,
          uint64_t number);
  // A handle; null: its actor is of those that are not counted.
  [[nodiscard]] static std::shared_ptr<HeldRef> OfActor(const std::shared_ptr<ObjectRefs>& refs,
                                                        const std::string& actor);
  ~HeldRef();
  HeldRef(const HeldRef&) = delete;
  HeldRef& operator=(const HeldRef&) = delete;
  [[nodiscard]] const actors::RefKey& key() const { return key_; }

 private:
  HeldRef(const std::shared_ptr<ObjectRefs>& refs, actors::RefKey handle);

  const OwnedHere<ObjectRefs> refs_;
  const actors::RefKey key_;
};

using PyObjectRefs = OwnedHere<ObjectRefs>;

void BindObjectRefs(py::module_& m);

}  // namespace troupe::pyapi
