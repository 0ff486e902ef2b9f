#include "actors/core/ref_table.h"

#include <algorithm>

#include "runtime/mutation.h"

namespace troupe::actors {

// ---- objects of this process ----

uint64_t RefTable::Publish(uint64_t known) {
  const uint64_t number = exports_.contains(known) ? known : next_++;
  ++exports_[number].pickles;
  return number;
}

void RefTable::Pickled(uint64_t number) {
  const auto it = exports_.find(number);
  if (it == exports_.end() || it->second.pickles == 0) return;
  --it->second.pickles;
  FreeIfUnused(number);
}

void RefTable::FreeIfUnused(uint64_t number) {
  const auto it = exports_.find(number);
  if (it == exports_.end()) return;
  const Export& object = it->second;
  const bool borrowed =
      std::ranges::any_of(object.borrowers, [](const auto& entry) { return entry.second.held; }) &&
      !TROUPE_MUTATED("RF-1 borrowers do not count");
  if (object.pickles + object.pins + object.locals > 0 || borrowed) return;
  if (TROUPE_MUTATED("RF-2 nothing is freed")) return;
  exports_.erase(it);
  freed_.push_back(number);
}

// ---- messages on their way ----

uint64_t RefTable::Pin(const std::vector<RefKey>& keys, const std::string& to) {
  const uint64_t token = next_++;
  pins_[token] = {keys, to, "", false, Time::Never()};
  for (const RefKey& key : keys) {
    if (key.owner != self_) {
      AddLocal(key);
    } else if (const auto it = exports_.find(key.number); it != exports_.end()) {
      ++it->second.pins;
    }
  }
  if (TROUPE_MUTATED("RF-1 nothing is pinned")) Unpin(token);
  return token;
}

void RefTable::Over(Time now, uint64_t token, const std::string& receiver) {
  const auto it = pins_.find(token);
  if (it == pins_.end()) return;
  Pinned& pin = it->second;
  pin.over = true;
  if (!receiver.empty() && !TROUPE_MUTATED("RF-2 who has got a call is not noted"))
    pin.to = receiver;
  pin.until = now + (gone_.contains(pin.to) ? kRefSettle : kRefUnclaimed);
  if (!pin.taken_by.empty()) Unpin(token);
}

void RefTable::Unpin(uint64_t token) {
  const auto node = pins_.extract(token);
  if (node.empty()) return;
  freed_.push_back(token);
  for (const RefKey& key : node.mapped().keys) {
    if (key.owner != self_) {
      DropLocal(key);
    } else if (const auto it = exports_.find(key.number); it != exports_.end()) {
      --it->second.pins;
      FreeIfUnused(key.number);
    }
  }
}

// ---- refs that are held here ----

// Tells the owner what holds now, if it has been told otherwise.
void RefTable::Note(const RefKey& key, Import& import) {
  const bool held = import.locals > 0;
  if (import.held == held) return;
  import.held = held;
  import.version = next_++;
  if (key == own_) own_version_ = import.version;
  import.settled = false;
  peers_[key.owner].holds.insert(key.number);
}

void RefTable::AddLocal(const RefKey& key) {
  if (key.owner == self_) {
    if (const auto it = exports_.find(key.number); it != exports_.end()) ++it->second.locals;
    return;
  }
  Import& import = imports_[key];
  ++import.locals;
  if (gone_.contains(key.owner)) import.lost = true;
  if (!import.lost) Note(key, import);
}

void RefTable::DropLocal(const RefKey& key) {
  if (key.owner == self_) {
    const auto own = exports_.find(key.number);
    if (own == exports_.end() || own->second.locals == 0) return;
    --own->second.locals;
    return FreeIfUnused(key.number);
  }
  const auto it = imports_.find(key);
  if (it == imports_.end() || --it->second.locals > 0) return;
  if (!it->second.lost && !TROUPE_MUTATED("RF-2 the end of a borrow is not told"))
    Note(key, it->second);
  Pass(key, it->second);
  const auto after = imports_.find(key);  // A guard may have dropped others, or held it again.
  if (after != imports_.end() && after->second.lost && after->second.locals == 0)
    imports_.erase(after);
}

bool RefTable::Lost(const RefKey& key) const {
  if (key.owner == self_) return !exports_.contains(key.number);
  const auto it = imports_.find(key);
  return it == imports_.end() ? gone_.contains(key.owner) : it->second.lost;
}

// What is on its way has been noted, and what has arrived is known to the head since then.
bool RefTable::MayLeave(uint64_t heard) const {
  return own_version_ == heard || TROUPE_MUTATED("HC-1 old orders to leave count");
}

// ---- what has arrived ----

void RefTable::Watch(Guard guard, const std::vector<RefKey>& keys) {
  for (const RefKey& key : keys) {
    // What its sender owns it hears in the same message, before it hears that it was taken.
    if (key.owner == self_ || (key.owner == guard.from && !guard.outer)) continue;
    const auto it = imports_.find(key);
    if (it == imports_.end() || !it->second.held || it->second.settled || it->second.lost) continue;
    guard.left.insert(key);
  }
  if (guard.left.empty() || TROUPE_MUTATED("RF-1 taken before the owner knows"))
    return Finish(guard);
  const uint64_t id = next_++;
  for (const RefKey& key : guard.left) imports_.at(key).guards.push_back(id);
  guards_.emplace(id, std::move(guard));
}

void RefTable::Finish(const Guard& guard) {
  if (guard.outer) return DropLocal(*guard.outer);
  if (!gone_.contains(guard.from)) peers_[guard.from].taken.insert(guard.token);
}

void RefTable::Arrived(const std::string& from, uint64_t token, const std::vector<RefKey>& keys) {
  if (from == self_) {  // Of a call to an actor of this process.
    const RefAnswers answers = OnNotes(self_, {{}, {}, {token}});
    return;
  }
  Watch(Guard{{}, std::nullopt, from, token}, keys);
}

void RefTable::Opened(const RefKey& outer, const std::vector<RefKey>& keys) {
  AddLocal(outer);
  Watch(Guard{{}, outer, "", 0}, keys);
}

// The owner knows, or there is nothing to know any more: who waits for that goes on.
void RefTable::Pass(const RefKey& key, Import& import) {
  if (import.held && !import.settled && !import.lost) return;
  for (const uint64_t id : std::exchange(import.guards, {})) {
    const auto it = guards_.find(id);
    if (it == guards_.end()) continue;
    it->second.left.erase(key);
    if (!it->second.left.empty()) continue;
    const Guard guard = std::move(it->second);
    guards_.erase(it);
    Finish(guard);
  }
}

// ---- notes ----

std::map<std::string, RefNotes> RefTable::TakeNotes(Time now) {
  std::map<std::string, RefNotes> all;
  for (auto& [name, peer] : peers_) {
    if (peer.holds.empty() && peer.taken.empty()) continue;
    if (peer.flying && now < peer.sent + kRefRepeat) continue;
    RefNotes& notes = all[name];
    for (const uint64_t number : peer.holds) {
      if (notes.holds.size() == kRefNotesMax) break;
      const Import& import = imports_.at({name, number});
      notes.holds.push_back({number, import.version, import.held});
    }
    // Behind all that it must have heard before.
    if (notes.holds.size() == peer.holds.size()) {
      for (const uint64_t token : peer.taken) {
        if (notes.taken.size() == kRefNotesMax) break;
        notes.taken.push_back(token);
      }
    }
    peer.flying = true;
    peer.sent = now;
  }
  return all;
}

RefAnswers RefTable::OnNotes(const std::string& from, const RefNotes& notes) {
  RefAnswers answers;
  if (gone_.contains(from)) return answers;  // Its last words.
  for (const RefNote& note : notes.holds) {
    const auto it = exports_.find(note.number);
    answers.holds.push_back({note.number, note.version, it != exports_.end()});
    if (it == exports_.end()) continue;
    Borrower& borrower = it->second.borrowers[from];
    if (note.version <= borrower.version && !TROUPE_MUTATED("RF-3 old notes count")) continue;
    borrower.version = note.version;
    borrower.held = note.held;
    if (!note.held) FreeIfUnused(note.number);
  }
  for (const uint64_t token : notes.taken) {
    answers.taken.push_back(token);
    const auto it = pins_.find(token);
    if (it == pins_.end()) continue;
    it->second.taken_by = from;
    if (it->second.over) Unpin(token);
  }
  return answers;
}

void RefTable::OnAnswers(const std::string& from, const RefAnswers& answers) {
  const auto known = peers_.find(from);
  if (known == peers_.end()) return;
  known->second.flying = false;
  for (const uint64_t token : answers.taken) known->second.taken.erase(token);
  for (const RefAnswer& answer : answers.holds) {
    const RefKey key{from, answer.number};
    const auto it = imports_.find(key);
    if (it == imports_.end() || it->second.version != answer.version || it->second.settled)
      continue;
    it->second.settled = true;
    again_.erase(key);
    it->second.lost = it->second.held && !answer.known;
    known->second.holds.erase(answer.number);
    Pass(key, it->second);
    const auto after = imports_.find(key);
    if (after != imports_.end() && after->second.locals == 0 && after->second.settled)
      imports_.erase(after);
  }
  const auto peer = peers_.find(from);
  if (peer != peers_.end() && peer->second.holds.empty() && peer->second.taken.empty())
    peers_.erase(peer);
}

// ---- deaths and time ----

void RefTable::PeerGone(Time now, const std::string& peer) {
  if (!gone_.insert(peer).second) return;
  peers_.erase(peer);
  std::vector<RefKey> lost;
  for (auto it = imports_.lower_bound({peer, 0}); it != imports_.end(); ++it) {
    if (it->first.owner != peer) break;
    it->second.lost = !TROUPE_MUTATED("RF-4 the death of an owner is not told");
    lost.push_back(it->first);
  }
  for (const RefKey& key : lost) {
    if (const auto it = imports_.find(key); it != imports_.end()) Pass(key, it->second);
    if (const auto it = imports_.find(key); it != imports_.end() && it->second.locals == 0)
      imports_.erase(it);
  }
  for (auto& [number, object] : exports_) {
    if (const auto it = object.borrowers.find(peer); it != object.borrowers.end())
      it->second.gone = now;
  }
  for (auto& [token, pin] : pins_) {
    if (pin.taken_by == peer) pin.taken_by.clear();
    if (pin.to == peer) pin.until = std::min(pin.until, now + kRefSettle);
  }
}

void RefTable::OwnerAnew(const std::string& owner) {
  if (TROUPE_MUTATED("HC-1 a new head is told nothing anew")) return;
  if (own_.owner == owner && own_version_ > 0) (void)imports_[own_];  // See MayLeave.
  for (auto it = imports_.lower_bound({owner, 0}); it != imports_.end(); ++it) {
    if (it->first.owner != owner) break;
    if (it->second.lost) continue;
    it->second.version = next_++;  // Late answers to the one before say nothing.
    if (it->first == own_) own_version_ = it->second.version;
    it->second.settled = false;
    again_.insert(it->first);
    Peer& peer = peers_[owner];
    peer.holds.insert(it->first.number);
    peer.flying = false;
  }
}

bool RefTable::Told(const std::string& owner) const {
  const auto it = again_.lower_bound({owner, 0});
  return it == again_.end() || it->owner != owner;
}

void RefTable::Tick(Time now) {
  std::vector<uint64_t> numbers;
  for (auto& [number, object] : exports_) {
    const size_t ended = std::erase_if(object.borrowers, [&](const auto& entry) {
      return entry.second.gone != Time::Never() &&
             (now >= entry.second.gone + kRefSettle || TROUPE_MUTATED("RF-1 no time to settle")) &&
             !TROUPE_MUTATED("RF-2 dead borrowers count");
    });
    if (ended > 0) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) FreeIfUnused(number);
  std::vector<uint64_t> tokens;
  for (const auto& [token, pin] : pins_) {
    if (now >= pin.until && !TROUPE_MUTATED("RF-2 unclaimed pins last")) tokens.push_back(token);
  }
  for (const uint64_t token : tokens) Unpin(token);
  if (gone_.size() > kRefGoneMax) gone_.clear();  // Who refers to one of them is told again.
}

std::optional<bool> RefTable::Borrowed(uint64_t number, const std::string& by) const {
  const auto object = exports_.find(number);
  if (object == exports_.end()) return std::nullopt;
  const auto borrower = object->second.borrowers.find(by);
  if (borrower == object->second.borrowers.end()) return std::nullopt;
  return borrower->second.held;
}

bool RefTable::settled() const { return peers_.empty() && pins_.empty() && exports_.empty(); }

std::set<std::string> RefTable::peers() const {
  std::set<std::string> all;
  for (const auto& [key, import] : imports_) all.insert(key.owner);
  for (const auto& [name, peer] : peers_) all.insert(name);
  for (const auto& [id, guard] : guards_) {
    if (!guard.outer) all.insert(guard.from);  // It is to be told.
  }
  for (const auto& [number, object] : exports_) {
    for (const auto& [name, borrower] : object.borrowers) {
      if (borrower.gone == Time::Never()) all.insert(name);
    }
  }
  for (const auto& [token, pin] : pins_) {
    if (!pin.to.empty()) all.insert(pin.to);
    if (!pin.taken_by.empty()) all.insert(pin.taken_by);
  }
  return all;
}

}  // namespace troupe::actors
