// RefTable: which objects processes refer to, as one of them sees it, as a pure state machine.
//
// An object belongs to the process that has made its ref, the owner. A process that holds a copy of
// the ref borrows the object, and tells the owner so: by notes, each with a version, which are
// repeated until they are answered. A ref on its way inside a message is pinned by the sender until
// the receiver has taken it, which it says when the owner has heard of all its borrows. So there is
// no moment at which an object that somebody can reach counts as unused.
//
//   Publish --> referred to: pickles, pins, locals, borrowers --- none left ---> freed
//
// Thread: one. Reads no clock.
// Invariants: RF-1 an object that somebody can reach is not freed while its owner lives, if what a
// process that died has sent settles within kRefSettle. RF-2 an object that nobody can reach is
// freed when the notes have settled. RF-3 a note that comes twice, or late, changes nothing. RF-4 a
// borrow is lost when its owner is gone, and not before.
// Limits: kRefNotesMax in a message; a pin that nobody takes lasts kRefUnclaimed behind its call,
// or kRefSettle behind its receiver.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/core/ref_protocol.h"
#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr size_t kRefNotesMax = 10'000;
inline constexpr Duration kRefRepeat = seconds(2);
inline constexpr Duration kRefUnclaimed = seconds(60);
inline constexpr size_t kRefGoneMax = 10'000;  // Processes whose end is known here.

class RefTable {
 public:
  explicit RefTable(std::string self) : self_(std::move(self)) {}

  // The actor of this process, which it holds only while a handle of it is on its way.
  void SetOwn(const RefKey& own) { own_ = own; }
  // Whether nobody has a handle of it whom the head that has `heard` this note on it does not know.
  [[nodiscard]] bool MayLeave(uint64_t heard) const;
  // An object of this process that is being pickled: `known`, if that is not freed, else a new
  // number. It lasts until Pickled.
  uint64_t Publish(uint64_t known);
  void Pickled(uint64_t number);
  // These travel in one message from now on. `to`: the process, if that is known. Returns a token.
  uint64_t Pin(const std::vector<RefKey>& keys, const std::string& to = "");
  // The message does not arrive any more, unless it has: at `receiver`, if that is known only now.
  void Over(Time now, uint64_t token, const std::string& receiver = "");

  // This process holds the ref once more, or once less.
  void AddLocal(const RefKey& key);
  void DropLocal(const RefKey& key);
  // A message with these has arrived; each has a local already.
  void Arrived(const std::string& from, uint64_t token, const std::vector<RefKey>& keys);
  // The value of `outer` has been read, and it refers to these, which have locals.
  void Opened(const RefKey& outer, const std::vector<RefKey>& keys);
  [[nodiscard]] bool Lost(const RefKey& key) const;
  // Whether a process borrows an object of this one; nothing: it has never said.
  [[nodiscard]] std::optional<bool> Borrowed(uint64_t number, const std::string& by) const;

  // What is to be sent, by process; again if not answered.
  [[nodiscard]] std::map<std::string, RefNotes> TakeNotes(Time now);
  [[nodiscard]] RefAnswers OnNotes(const std::string& from, const RefNotes& notes);
  void OnAnswers(const std::string& from, const RefAnswers& answers);
  void PeerGone(Time now, const std::string& peer);
  // It has forgotten what it was told, and is told anew; whether it has heard all of that.
  void OwnerAnew(const std::string& owner);
  [[nodiscard]] bool Told(const std::string& owner) const;
  void Tick(Time now);

  // Objects nobody else refers to any more, and tokens of messages over; numbers of one row.
  [[nodiscard]] std::vector<uint64_t> TakeFreed() { return std::exchange(freed_, {}); }
  // Others may still ask for something of this process.
  [[nodiscard]] bool needed() const { return !exports_.empty() || !pins_.empty(); }
  // Nothing is left that Tick or an answer has to end.
  [[nodiscard]] bool settled() const;
  // Processes whose end matters.
  [[nodiscard]] std::set<std::string> peers() const;
  [[nodiscard]] size_t imports() const { return imports_.size(); }
  [[nodiscard]] size_t exports() const { return exports_.size(); }
  [[nodiscard]] size_t pins() const { return pins_.size(); }

 private:
  struct Borrower {
    uint64_t version = 0;  // Of its last note.
    bool held = false;
    Time gone = Time::Never();  // It has ended then.
  };
  struct Export {
    size_t pickles = 0;
    size_t pins = 0;
    size_t locals = 0;  // Copies that have come back.
    std::map<std::string, Borrower> borrowers;
  };
  struct Pinned {
    std::vector<RefKey> keys;
    std::string to;
    std::string taken_by;
    bool over = false;
    Time until = Time::Never();
  };
  struct Import {
    size_t locals = 0;
    uint64_t version = 0;
    bool held = false;     // What the last note says,
    bool settled = false;  // and its owner has heard it.
    bool lost = false;
    std::vector<uint64_t> guards;
  };
  // Something that waits until its owners know that this process borrows them.
  struct Guard {
    std::set<RefKey> left;
    std::optional<RefKey> outer;  // Dropped then; or
    std::string from;             // it is told that
    uint64_t token = 0;           // this has been taken.
  };
  struct Peer {
    std::set<uint64_t> holds;  // Objects of it of which it has not answered the last note,
    std::set<uint64_t> taken;  // and tokens.
    bool flying = false;
    Time sent{};
  };

  void Note(const RefKey& key, Import& import);
  void Watch(Guard guard, const std::vector<RefKey>& keys);
  void Finish(const Guard& guard);
  void Pass(const RefKey& key, Import& import);
  void FreeIfUnused(uint64_t number);
  void Unpin(uint64_t token);

  const std::string self_;
  RefKey own_;
  uint64_t own_version_ = 0;  // Of the last note on it.
  std::map<uint64_t, Export> exports_;
  std::map<uint64_t, Pinned> pins_;
  std::map<RefKey, Import> imports_;
  std::map<uint64_t, Guard> guards_;
  std::map<std::string, Peer> peers_;
  std::set<RefKey> again_;      // Told anew, and not answered yet.
  std::set<std::string> gone_;  // Names of processes are not given again.
  std::vector<uint64_t> freed_;
  uint64_t next_ = 1;
};

}  // namespace troupe::actors
