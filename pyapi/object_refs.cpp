#include "pyapi/object_refs.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "actors/core/actor_holders.h"
#include "pyapi/python_support.h"
#include "pyapi/shared_files.h"
#include "runtime/wire.h"

namespace troupe::pyapi {
namespace {

using actors::ActorAddress;
using actors::RefAnswers;
using actors::RefKey;
using actors::RefNotes;

constexpr uint32_t kObjectReaders = 10'000;
constexpr Duration kTickInterval = seconds(1);
constexpr Duration kNotesLimit = seconds(10);
constexpr const char* kNotesMethod = "refs";
constexpr const char* kFileMethod = "file";
constexpr const char* kAgainMethod = "again";

// The actor through which others ask: methods "get"(number), "cancel"(number) with 'f' in front to
// force it and 'r' to give up what it has called, "again"(number, where it was lost),
// "refs"(RefNotes), "file"(some of a shared file).
class ObjectsActor final : public actors::Instance {
 public:
  explicit ObjectsActor(std::weak_ptr<ObjectRefs> refs) : refs_(std::move(refs)) {}
  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string data) override {
    if (const auto alive = refs_.lock()) return alive->Answer(context.caller(), method, data);
    return Error{ErrorCode::kPeerGone, "the process shuts down"};
  }
  [[nodiscard]] bool runs_in_invoke() const override { return false; }

 private:
  const std::weak_ptr<ObjectRefs> refs_;
};

uint64_t NumberOf(const std::string& digits) {
  return digits.empty() ? 0 : std::strtoull(digits.c_str(), nullptr, 10);
}

}  // namespace

ObjectRefs::ObjectRefs(std::shared_ptr<actors::ActorSystem> system,
                       std::shared_ptr<Completions> completions)
    : system_(std::move(system)),
      completions_(std::move(completions)),
      table_(system_->self().peer) {}

void ObjectRefs::Start() {
  actors::ActorBlueprint blueprint;
  blueprint.type = "objects";
  blueprint.max_concurrency = kObjectReaders;
  Result<ActorAddress> address =
      system_->HostInstance(std::make_unique<ObjectsActor>(weak_from_this()), blueprint, "", 0, "");
  if (address.ok()) address_ = *address;
  CountHandles();
}

void ObjectRefs::CountHandles() {
  system_->SetMayLeave([weak = weak_from_this()](uint64_t heard) {
    const auto alive = weak.lock();
    if (!alive) return true;
    std::lock_guard lock(alive->mu_);
    // What others refer to would be lost with it: it is asked again.
    return alive->stopped_ || (alive->table_.MayLeave(heard) && !alive->table_.needed());
  });
  if (system_->directory_client() == nullptr) return;
  system_->directory_client()->SetHandles(
      [weak = weak_from_this()] {
        const auto alive = weak.lock();
        if (alive) alive->Change([&] { alive->table_.OwnerAnew(actors::kHandles); });
      },
      [weak = weak_from_this()] {
        const auto alive = weak.lock();
        if (!alive) return true;
        std::lock_guard lock(alive->mu_);
        return alive->table_.Told(actors::kHandles);
      });
}

void ObjectRefs::SetOwn(const std::string& actor) {
  const std::optional<uint64_t> number = actors::HandleOf(actor);
  std::lock_guard lock(mu_);
  if (number) table_.SetOwn({actors::kHandles, *number});
}

void ObjectRefs::Stop() {
  std::map<std::string, Watched> watched;
  std::map<uint64_t, Object> objects;
  std::lock_guard lock(mu_);
  stopped_ = true;
  when_unneeded_ = nullptr;
  watched.swap(watched_);
  objects.swap(objects_);
}

// ---- changes ----

template <class F>
void ObjectRefs::Change(F&& change) {
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    change();
    if (std::exchange(due_, true)) return;
  }
  system_->Post([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->Turn();
  });
}

void ObjectRefs::Know(const ActorAddress& process) {
  ActorAddress& known = addresses_[process.process.peer];
  if (known.actor == process.actor) return;
  known = process;
  look_ = true;
}

uint64_t ObjectRefs::Publish(const PyCall& call, uint64_t known) {
  std::lock_guard lock(mu_);
  if (objects_.size() >= kPublishedMax && !objects_.contains(known)) {
    Raise(Error{ErrorCode::kResourceExhausted,
                "others refer to " + std::to_string(kPublishedMax) +
                    " objects of this process already; drop refs, or pass values, or refs as "
                    "arguments of their own"});
  }
  const uint64_t number = table_.Publish(known);
  objects_.try_emplace(number, Object{call.state(), call.pending()});
  return number;
}

void ObjectRefs::Replace(uint64_t number, const PyCall& call) {
  std::lock_guard lock(mu_);
  if (const auto it = objects_.find(number); it != objects_.end())
    it->second = Object{call.state(), call.pending()};
}

void ObjectRefs::Pickled(const std::vector<uint64_t>& numbers) {
  Change([&] {
    for (const uint64_t number : numbers) table_.Pickled(number);
  });
}

uint64_t ObjectRefs::Pin(const std::vector<RefKey>& keys, const std::string& to) {
  uint64_t token = 0;
  Change([&] { token = table_.Pin(keys, to); });
  return token;
}

void ObjectRefs::Over(uint64_t token, PeerAddress receiver) {
  if (receiver.peer == address_.process.peer) receiver = {};
  Change([&] {
    // Only its end matters, which is looked for later: mostly it takes what it has got before.
    if (!receiver.peer.empty())
      addresses_.try_emplace(receiver.peer, actors::ActorSystem::HostOf(receiver));
    table_.Over(SteadyClock().Now(), token, receiver.peer);
  });
}

void ObjectRefs::AddLocal(const ActorAddress& owner, const RefKey& key) {
  Change([&] {
    Know(owner);
    table_.AddLocal(key);
  });
}

void ObjectRefs::AddHandle(const RefKey& key) {
  Change([&] { table_.AddLocal(key); });
}

void ObjectRefs::DropLocal(const RefKey& key) {
  Change([&] { table_.DropLocal(key); });
}

void ObjectRefs::Arrived(const ActorAddress& from, uint64_t token,
                         const std::vector<RefKey>& keys) {
  Change([&] {
    Know(from);
    table_.Arrived(from.process.peer, token, keys);
  });
}

void ObjectRefs::Opened(const RefKey& outer, const std::vector<RefKey>& keys) {
  Change([&] { table_.Opened(outer, keys); });
}

bool ObjectRefs::Needed() {
  bool needed = false;
  Change([&] {
    needed = table_.needed();
    if (!needed || lends_ || !system_->options().loan) return;
    // As a call that waits: who begins another takes the CPU back.
    lends_ = true;
    system_->options().loan->CallBegan();
    system_->options().loan->WaitBegan();
  });
  return needed;
}

std::array<size_t, 3> ObjectRefs::Counts() {
  std::lock_guard lock(mu_);
  return {table_.exports(), table_.imports(), table_.pins()};
}

void ObjectRefs::WhenUnneeded(std::function<void()> fn) {
  Change([&] { when_unneeded_ = std::move(fn); });
}

// ---- turns of the loop ----

void ObjectRefs::Turn() {
  bool look = false;
  std::vector<uint64_t> ended;
  std::vector<Object> objects;  // Let go of without the lock.
  std::vector<std::pair<std::shared_ptr<actors::ActorRef>, std::pair<std::string, RefNotes>>> notes;
  RefNotes handles;
  {
    std::lock_guard lock(mu_);
    due_ = false;
    look = std::exchange(look_, false);
    if (stopped_) return;
  }
  if (look) WatchPeers();
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    if (look) table_.Tick(SteadyClock().Now());
    ended = table_.TakeFreed();
    for (const uint64_t number : ended) {
      if (auto node = objects_.extract(number)) objects.push_back(std::move(node.mapped()));
    }
    for (auto& [peer, one] : table_.TakeNotes(SteadyClock().Now())) {
      if (peer == actors::kHandles) {
        handles = std::move(one);
      } else if (const auto it = watched_.find(peer); it != watched_.end()) {
        notes.push_back({it->second.ref, {peer, std::move(one)}});
      }
    }
  }
  if (!ended.empty()) completions_->Push(RefsEnded{std::move(ended)});
  for (auto& [to, one] : notes) Send(to, one.first, one.second);
  if (!handles.holds.empty()) TellHead(handles);
  TellUnneeded();
  {
    std::lock_guard lock(mu_);
    if (stopped_ || (table_.settled() && table_.imports() == 0) || std::exchange(ticks_, true))
      return;
  }
  system_->PostAfter(kTickInterval, [weak = weak_from_this()] {
    const auto alive = weak.lock();
    if (!alive) return;
    alive->Change([&] {
      alive->ticks_ = false;
      alive->look_ = true;
    });
  });
}

// Whose end matters is watched, and who is told something is reached.
void ObjectRefs::WatchPeers() {
  std::vector<ActorAddress> fresh;
  std::vector<std::shared_ptr<actors::ActorRef>> over;
  {
    std::lock_guard lock(mu_);
    const std::set<std::string> peers = table_.peers();
    for (const std::string& peer : peers) {
      const auto it = addresses_.find(peer);
      if (it == addresses_.end()) continue;
      const auto watched = watched_.find(peer);
      if (watched == watched_.end() || watched->second.actor != it->second.actor)
        fresh.push_back(it->second);
    }
    std::erase_if(watched_, [&](auto& entry) {
      if (peers.contains(entry.first)) return false;
      over.push_back(std::move(entry.second.ref));
      return true;
    });
    std::erase_if(addresses_, [&](const auto& entry) { return !peers.contains(entry.first); });
  }
  for (const ActorAddress& address : fresh) {
    const std::string peer = address.process.peer;
    const auto ref = system_->Refer(address);
    {
      std::lock_guard lock(mu_);
      Watched& watched = watched_[peer];
      over.push_back(std::exchange(watched.ref, ref));
      watched.actor = address.actor;
    }
    (void)ref->Monitor([weak = weak_from_this(), peer](const Error&) {
      const auto alive = weak.lock();
      if (alive) alive->Change([&] { alive->table_.PeerGone(SteadyClock().Now(), peer); });
    });
  }
}

void ObjectRefs::Send(const std::shared_ptr<actors::ActorRef>& to, const std::string& peer,
                      const RefNotes& notes) {
  RefNotes whole = notes;
  whole.sender = address_;
  (void)to->Call(kNotesMethod, wire::Encode(actors::kRefNotes, whole),
                 CallOptions{kNotesLimit, false},
                 [weak = weak_from_this(), peer](const Result<std::string>& reply) {
                   const auto alive = weak.lock();
                   if (!alive || !reply.ok()) return;  // The monitor says so, or it is repeated.
                   const auto answers = wire::Decode<RefAnswers>(actors::kRefAnswers, *reply);
                   if (!answers.ok()) return;
                   alive->Change([&] { alive->table_.OnAnswers(peer, *answers); });
                 });
}

// What it has answered it has heard; what it does not answer in time is told again.
void ObjectRefs::TellHead(const RefNotes& notes) {
  RefAnswers answers;
  for (const actors::RefNote& note : notes.holds)
    answers.holds.push_back({note.number, note.version, true});
  if (system_->directory_client() == nullptr) return;
  system_->directory_client()->Hold(
      notes, actors::kRefRepeat,
      [weak = weak_from_this(), answers = std::move(answers)](const Result<std::string>& reply) {
        const auto alive = weak.lock();
        if (!alive || !reply.ok()) return;
        alive->Change([&] { alive->table_.OnAnswers(actors::kHandles, answers); });
      });
}

void ObjectRefs::TellUnneeded() {
  std::function<void()> tell;
  {
    std::lock_guard lock(mu_);
    if (table_.needed()) return;
    tell = std::exchange(when_unneeded_, nullptr);
    if (std::exchange(lends_, false)) {
      system_->options().loan->WaitEnded();
      system_->options().loan->CallEnded();
    }
  }
  if (tell) tell();
}

// ---- what others ask ----

Result<std::string> ObjectRefs::Answer(const std::string& from, const std::string& method,
                                       std::string data) {
  if (method == kNotesMethod) {
    const auto notes = wire::Decode<RefNotes>(actors::kRefNotes, data);
    if (!notes.ok()) return notes.error();
    RefAnswers answers;
    Change([&] {
      if (notes->sender.process.peer == from) Know(notes->sender);
      answers = table_.OnNotes(from, *notes);
    });
    return wire::Encode(actors::kRefAnswers, answers);
  }
  if (method == kFileMethod) return ReadSharedFile(data);
  std::string lost;
  if (method == kAgainMethod) {
    const size_t space = std::min(data.find(' '), data.size());
    lost = data.substr(std::min(space + 1, data.size()));
    data.erase(space);
  }
  actors::Cancellation how{.force = false, .recursive = false};
  if (method == "cancel") {
    const size_t digits = std::min(data.find_first_not_of("fr"), data.size());
    how = {data.find('f') < digits, data.find('r') < digits};
    data.erase(0, digits);
  }
  Object object;
  {
    std::lock_guard lock(mu_);
    const auto it = objects_.find(NumberOf(data));
    if (it != objects_.end()) object = it->second;
  }
  if (!object.state) {
    return Error{ErrorCode::kNotFound,
                 "its owner does not have this ref any more; keep one there, or pass the value"};
  }
  if (method == kAgainMethod) {
    object = {std::make_shared<CallState>(), nullptr};
    completions_->Push(ComputeAgain{NumberOf(data), std::move(lost), object.state});
  }
  if (method != "cancel") return Read(object);
  if (object.call) object.call->Cancel(how);
  object.state->GiveUp();
  return std::string();
}

Result<std::string> ObjectRefs::Read(const Object& object) const {
  FiberEvent ready;
  const uint64_t asked = object.state->OnComplete([ready]() mutable { ready.Set(); });
  const Status waited = actors::AwaitEvent(ready, kUntilComplete, nullptr);
  object.state->Remove(asked);
  if (!waited.ok()) return waited.error();
  Result<std::string> result = object.state->result();
  if (result.ok()) {
    DisownSegments(*result);
    Rehome(*result, wire::Encode(actors::kArgumentsType, actors::Pack<ActorAddress>{{address_}}));
  }
  return result;
}

// ---- as Python sees it ----

HeldRef::HeldRef(const std::shared_ptr<ObjectRefs>& refs, const ActorAddress& owner,
                 uint64_t number)
    : refs_(refs), key_{owner.process.peer, number} {
  refs_->AddLocal(owner, key_);
}

HeldRef::HeldRef(const std::shared_ptr<ObjectRefs>& refs, RefKey handle)
    : refs_(refs), key_(std::move(handle)) {
  refs_->AddHandle(key_);
}

std::shared_ptr<HeldRef> HeldRef::OfActor(const std::shared_ptr<ObjectRefs>& refs,
                                          const std::string& actor) {
  const std::optional<uint64_t> number = actors::HandleOf(actor);
  if (!number) return nullptr;
  return std::shared_ptr<HeldRef>(new HeldRef(refs, {actors::kHandles, *number}));
}

HeldRef::~HeldRef() {
  if (refs_.here()) refs_->DropLocal(key_);
}

namespace {

ActorAddress AddressIn(const py::bytes& bytes) {
  auto box = wire::Decode<actors::Pack<ActorAddress>>(actors::kArgumentsType, bytes);
  return std::get<0>(Unwrap(std::move(box)).values);
}

std::vector<RefKey> KeysOf(const std::vector<HeldRef*>& held) {
  std::vector<RefKey> keys;
  keys.reserve(held.size());
  for (const HeldRef* ref : held) keys.push_back(ref->key());
  return keys;
}

uint64_t PinAll(PyObjectRefs& refs, const std::vector<HeldRef*>& held,
                const std::vector<uint64_t>& own, const std::string& to) {
  std::vector<RefKey> keys = KeysOf(held);
  for (const uint64_t number : own) keys.push_back({refs->address().process.peer, number});
  return refs->Pin(keys, to);
}

}  // namespace

void BindObjectRefs(py::module_& m) {
  const py::class_<HeldRef, std::shared_ptr<HeldRef>> held(
      m, "HeldRef");  // It has no methods: its life is what counts.
  py::class_<PyObjectRefs>(m, "ObjectRefs")
      .def_property_readonly("address",
                             [](const PyObjectRefs& refs) {
                               const auto box = actors::Pack<ActorAddress>{{refs->address()}};
                               return py::bytes(wire::Encode(actors::kArgumentsType, box));
                             })
      .def_property_readonly("counts", [](const PyObjectRefs& refs) { return refs->Counts(); })
      .def("publish", [](const PyObjectRefs& refs, const PyCall& call,
                         uint64_t known) { return refs->Publish(call, known); })
      .def("replace", [](const PyObjectRefs& refs, uint64_t number,
                         const PyCall& call) { refs->Replace(number, call); })
      .def("pickled", [](const PyObjectRefs& refs,
                         const std::vector<uint64_t>& numbers) { refs->Pickled(numbers); })
      .def("hold",
           [](const PyObjectRefs& refs, const py::bytes& owner, uint64_t number) {
             return std::make_shared<HeldRef>(refs.get(), AddressIn(owner), number);
           })
      .def("pin", &PinAll)
      .def("over", [](const PyObjectRefs& refs, uint64_t token) { refs->Over(token); })
      .def("over", [](const PyObjectRefs& refs, uint64_t token,
                      const PyActorRef& to) { refs->Over(token, to.ref().address().process); })
      .def("over",
           [](const PyObjectRefs& refs, uint64_t token, const PyCall& call) {
             refs->Over(token, call.pending() ? call.pending()->Receiver() : PeerAddress{});
           })
      .def("arrived",
           [](const PyObjectRefs& refs, const py::bytes& from, uint64_t token,
              const std::vector<HeldRef*>& held) {
             refs->Arrived(AddressIn(from), token, KeysOf(held));
           })
      .def("opened",
           [](const PyObjectRefs& refs, const HeldRef& outer, const std::vector<HeldRef*>& held) {
             refs->Opened(outer.key(), KeysOf(held));
           });
}

}  // namespace troupe::pyapi
