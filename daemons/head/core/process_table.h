// ProcessTable: the processes that the cluster runs for its users, each for one life of an actor,
// and how the head keeps in step with what nodes say they run.
//
//   Add, Ordered ---said hello, or listed--> began --not listed any more, or said to have ended-->
//   Adopt (it is from before a restart) -----^                                              over
//
// What is sent over a connection that breaks is lost, in both directions, so nothing here rests on
// one message: in every hello a node lists what it runs, with the number of the last answer of ours
// that it had got by then. A process that is missing from the list although an answer from after
// its order had arrived has ended, or never began; one that should have ended is killed again.
// Thread: one. Reads no clock.
// Invariants: PT-1 a process is missed only by a hello that its node wrote when it had got an
// answer from after the order to start it, or from after it was found; hellos may come in any
// order. PT-2 a process that should have ended is killed when its time is up, and again every
// kKillAgain for as long as its node lists it, not more often. PT-3 nothing is missed,
// and nothing overdue, that is not in the table: it is told once.
// Limits: none of its own; nodes list at most what they run.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "daemons/protocol/messages.h"
#include "runtime/clock.h"

namespace troupe::daemons {

inline constexpr Duration kKillAgain = seconds(1);   // From one order to kill to the next.
inline constexpr Duration kCauseGrace = seconds(2);  // From a death to what is known of its cause.

// Whose process it is: one life of an actor of the directory, that of a run's worker included.
struct ProcessOwner {
  std::string actor = {};
  uint64_t incarnation = 0;
  WorkerRoom room = {};
};

struct HeadProcess {
  std::string node;
  std::string host;
  int64_t pid = 0;
  Time since{};         // When this head first knew of it.
  bool hello = false;   // It has been heard itself,
  bool listed = false;  // or its node has told of it.
  bool ended = false;   // Its end was told; it is not reaped yet.
  bool found = false;   // An earlier head had it started.
  // The last answer to its node before it was ordered or found; before that: none is enough.
  uint64_t order = std::numeric_limits<uint64_t>::max();
  Time gone_by = Time::Never();  // It must have ended by then.
  bool roomless =
      false;  // The room that it has was taken from it: the scheduler counts it no more.
  ProcessOwner owner;
  WorkerCounts counts = {};       // The last it told,
  WorkerLoan loan = {};           // and of its CPU.
  Time cause_by = Time::Never();  // It has ended. Until then its node may say how: kCauseGrace.
  std::string last_error = {};    // What it printed last.

  [[nodiscard]] bool began() const { return hello || listed; }
  [[nodiscard]] bool ordered() const { return order != std::numeric_limits<uint64_t>::max(); }
};

class ProcessTable {
 public:
  // What a hello says of the processes that are in the table.
  struct Heard {
    std::vector<std::string> ended;    // They are not reaped yet.
    std::vector<std::string> overdue;  // To be killed now.
    std::vector<std::string> missing;  // Nothing is known of their end but that they are gone.
  };

  // One that is to be started. What is known already is not changed, here and below.
  HeadProcess& Add(Time now, const std::string& name, const std::string& node, ProcessOwner owner);
  // One that is found running: an earlier head had it started.
  HeadProcess& Adopt(Time now, const std::string& name, const std::string& node,
                     ProcessOwner owner);
  // The order to start it goes to its node now.
  void Ordered(const std::string& name);
  // It must end by then. An earlier time that was given before stays.
  void EndBy(const std::string& name, Time by);
  void Remove(const std::string& name) { processes_.erase(name); }
  // The head did not run for so long: what its nodes have said meanwhile is yet to be read.
  void OnStopped(Duration stopped);

  // `answered`: the last answer of this head that the node had got; 0: none. What the node lists
  // and the table lacks is to be added before.
  [[nodiscard]] Heard OnHello(Time now, const NodeHello& hello, uint64_t answered);
  // An answer goes to the node: its number.
  uint64_t NextAnswer(const std::string& node) { return ++answers_[node]; }
  [[nodiscard]] std::vector<std::string> On(const std::string& node) const;

  [[nodiscard]] HeadProcess* Find(const std::string& name);
  [[nodiscard]] const HeadProcess* Find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, HeadProcess>& all() const { return processes_; }

 private:
  [[nodiscard]] uint64_t Answers(const std::string& node) const;

  std::map<std::string, HeadProcess> processes_;
  std::map<std::string, uint64_t> answers_;  // Sent to each node.
};

}  // namespace troupe::daemons
