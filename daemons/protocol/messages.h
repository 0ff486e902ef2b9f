// Messages between driver, head, node and worker processes.
//
// Every message is idempotent: states are repeated until acknowledged, requests carry an id that
// the sender chose. Hellos double as heartbeats and carry all that a head which has just started
// needs to know.
// Thread: plain values. Wire types are unique over all protocols of the cluster (kFrame...).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/transport.h"

namespace troupe {

enum FrameType : uint8_t {
  kFrameNodeHello = 1,
  kFrameWorkerExited = 2,
  kFrameWorkerOutput = 3,
  kFrameStartWorker = 4,
  kFrameKillWorker = 5,
  kFrameNodeAnswer = 6,
  kFrameNodeFenced = 7,
  kFrameNodeLeave = 8,
  kFrameReadLog = 9,
  kFrameWorkerHello = 10,
  kFrameAssignment = 11,
  kFrameWorkerResult = 12,
  kFrameWorkerNote = 13,
  kFrameReleaseWorker = 14,
  kFrameLogTail = 15,
  kFrameOutputTaken = 16,
  kFrameWorkerPart = 17,
  kFramePartTaken = 18,
  kFrameKeepSpares = 19,
  kFrameSubmitRun = 20,
  kFrameRunCommand = 21,
  kFrameDriverReply = 22,
  kFrameSubscribe = 23,
  kFrameRunEvents = 24,
  kFrameQuery = 25,
  kFrameDriverHello = 26,
  kFrameGroupReport = 50,
  kFrameGroupCommand = 51,
};

// ---- node <-> head ----

// What of its node a process was given, beside amounts.
// What a process has been given of its node. A head that was restarted hears it from the node, also
// of those that no actor knows any more.
struct WorkerRoom {
  int32_t bundle = -1;                      // Of its placement group; -1: it is in none.
  std::vector<uint32_t> devices;            // Its GPUs, as the node counts them.
  std::string group = {};                   // Its placement group.
  std::map<std::string, double> resources;  // All of it.
  template <class A>
  void Fields(A& a) {
    a(bundle, devices, group, resources);
  }
};

struct RunningWorker {
  std::string process;  // The worker process's name on the transport.
  int64_t pid = 0;
  std::string lease;
  bool ended = false;  // Its life lock broke; it is not reaped yet.
  WorkerRoom room;     // As it was started with.
  uint64_t cpu_ms = 0;
  uint64_t rss_bytes = 0;
  template <class A>
  void Fields(A& a) {
    a(process, pid, lease, ended, room, cpu_ms, rss_bytes);
  }
};

// To each hello. What was sent to the node before it has arrived, or is lost.
struct NodeAnswer {
  std::string head;  // Which run of the head.
  uint64_t number = 0;
  template <class A>
  void Fields(A& a) {
    a(head, number);
  }
};

// That a node will go away, or may.
struct NodeNotice {
  std::string kind;      // "preempt", "rebalance", "maintenance", "walltime"; empty: there is none.
  std::string source;    // "aws", "file", "SIGTERM".
  std::string reason;    // For people.
  uint64_t left_ms = 0;  // When it was told; kNoDeadline: not known.
  static constexpr uint64_t kNoDeadline = ~uint64_t{0};
  [[nodiscard]] explicit operator bool() const { return !kind.empty(); }
  template <class A>
  void Fields(A& a) {
    a(kind, source, reason, left_ms);
  }
};

struct NodeHello {
  std::string node;
  uint64_t incarnation = 0;
  std::string host;
  std::string data_address;  // Where the data plane of its workers binds.
  int64_t pid = 0;
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  std::vector<RunningWorker> workers;
  bool leaving = false;
  NodeNotice notice;    // It drains.
  NodeNotice warning;   // It may have to; nothing changes yet.
  NodeAnswer heard;     // The last it got.
  uint64_t output = 0;  // The last WorkerOutput that is on its way; 0: none is.
  // Workers that this incarnation started, or could not, and that ended not long ago: a head that
  // was restarted tells them from those whose order was lost with the one before.
  std::vector<std::string> ended;
  bool all_ended = true;  // There were no more.
  template <class A>
  void Fields(A& a) {
    a(node, incarnation, host, data_address, pid, resources, labels, workers, leaving, notice,
      warning, heard, output, ended, all_ended);
  }
};

struct StartWorker {
  std::string process;
  std::string lease;  // Whose process it is to be; the node tells a head that was restarted.
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  WorkerRoom room;
  bool hide_devices = false;  // It is to see no GPU but those of its room.
  // The same program, started ahead of its work: it waits on its stdin for the variables that only
  // this process has. Empty: there is no such.
  std::vector<std::string> spare_argv = {};
  bool more_ahead = true;  // More of its kind may be needed soon; false: only KeepSpares says so.
  // Who gives the order, as NodeAnswer says it: one that a head has left behind is void.
  std::string head = {};
  template <class A>
  void Fields(A& a) {
    a(process, lease, argv, env, room, hide_devices, spare_argv, more_ahead, head);
  }
};

// So many processes of this kind are to be there ahead of their work, until another word, or until
// there has been none for kSparesKept. Repeated.
struct KeepSpares {
  std::vector<std::string> spare_argv;
  std::map<std::string, std::string> env;
  uint32_t count = 0;
  template <class A>
  void Fields(A& a) {
    a(spare_argv, env, count);
  }
};

struct KillWorker {
  std::string process;
  int signal = 9;
  std::string reason;
  template <class A>
  void Fields(A& a) {
    a(process, signal, reason);
  }
};

struct NodeFenced {  // This incarnation is over: its workers end, and it joins as the next one.
  uint64_t incarnation = 0;
  uint64_t newest = 0;    // The greatest known of this name.
  bool replaced = false;  // That one is alive: another node has taken the name.
  std::string reason;
  template <class A>
  void Fields(A& a) {
    a(incarnation, newest, replaced, reason);
  }
};

struct NodeLeave {  // The node is to end, with its workers, and not to be started again.
  std::string reason;
  template <class A>
  void Fields(A& a) {
    a(reason);
  }
};

struct ReadLog {  // Answered with LogTail; repeated until it is, or nobody waits any more.
  uint64_t number = 0;
  std::string log;     // "worker-NAME" of a process, or a daemon: "node", "head", "local", "redis".
  uint32_t lines = 0;  // At most these, the last.
  template <class A>
  void Fields(A& a) {
    a(number, log, lines);
  }
};

struct LogTail {
  uint64_t number = 0;
  uint8_t code = 0;  // ErrorCode.
  std::string message;
  std::string file;  // Its path on the node's host.
  std::string text;
  template <class A>
  void Fields(A& a) {
    a(number, code, message, file, text);
  }
};

struct WorkerExited {
  std::string process;
  bool reaped = false;  // False: its life lock broke; the exit status follows.
  std::string how;      // "killed by signal 9 (Killed)".
  int code = 0;
  std::vector<std::string> last_lines;  // Of its stderr.
  template <class A>
  void Fields(A& a) {
    a(process, reaped, how, code, last_lines);
  }
};

struct WorkerOutput {
  std::string process;
  bool is_stderr = false;
  std::vector<std::string> lines;
  uint64_t dropped = 0;  // Lines before these that are not told: it printed too fast for that.
  std::string file;      // Where all of them are on the node's host; empty: nowhere.
  uint64_t number = 0;   // Counts up; answered with OutputTaken.
  template <class A>
  void Fields(A& a) {
    a(process, is_stderr, lines, dropped, file, number);
  }
};

struct OutputTaken {  // All output up to this one has arrived, or is lost; more may come.
  uint64_t number = 0;
  template <class A>
  void Fields(A& a) {
    a(number);
  }
};

// ---- worker <-> head ----

struct WorkerCounts {  // Since the process began; kept only where metrics are on.
  uint64_t calls = 0;
  uint64_t rejects = 0;
  uint64_t waiting = 0;  // Now, in the mailbox.
  uint64_t transfers = 0;
  uint64_t state_bytes = 0;
  template <class A>
  void Fields(A& a) {
    a(calls, rejects, waiting, transfers, state_bytes);
  }
};

// Whether all that runs in the process waits, so that its CPU is for others. Told at once and with
// each hello, so that neither a lost frame nor a head that was restarted does harm.
struct WorkerLoan {
  uint64_t number = 0;  // Counts up; 0: it has never lent.
  bool lent = false;
  template <class A>
  void Fields(A& a) {
    a(number, lent);
  }
};

struct WorkerHello {
  std::string process;
  std::string node;
  int64_t pid = 0;
  std::string host;
  std::string assignment;  // Once assigned.
  std::string member;      // MemberId::ToString of the assignment.
  PeerAddress address;     // Where other workers can call it.
  WorkerCounts counts;
  WorkerLoan loan;
  template <class A>
  void Fields(A& a) {
    a(process, node, pid, host, assignment, member, address, counts, loan);
  }
};

enum class AssignmentKind : uint8_t { kRun, kActor };
constexpr AssignmentKind LastValue(AssignmentKind) { return AssignmentKind::kActor; }

struct Assignment {
  std::string id;  // Of the run, or the lease of the actor's life.
  std::string name;
  AssignmentKind kind = AssignmentKind::kRun;
  std::string member;
  uint32_t index = 0;
  uint32_t min_workers = 1;
  uint32_t max_workers = 1;
  bool group_running = false;
  std::string payload;
  std::map<std::string, std::string> env;
  std::vector<std::string> preload;
  std::vector<uint32_t> devices;  // Its GPUs, as its node counts them; none: it has no own ones.
  template <class A>
  void Fields(A& a) {
    a(id, name, kind, member, index, min_workers, max_workers, group_running, payload, env, preload,
      devices);
  }
};

struct WorkerResult {  // Repeated until ReleaseWorker.
  std::string process;
  std::string assignment;
  std::string member;
  bool ok = false;
  int rank = -1;
  std::string payload;
  uint64_t upload = 0;  // If not zero, the payload has come in parts.
  template <class A>
  void Fields(A& a) {
    a(process, assignment, member, ok, rank, payload, upload);
  }
};

struct WorkerPart {  // Of a large payload. Answered with PartTaken when there is room for more.
  std::string process;
  uint64_t upload = 0;
  uint64_t offset = 0;
  uint64_t total = 0;
  std::string bytes;
  template <class A>
  void Fields(A& a) {
    a(process, upload, offset, total, bytes);
  }
};

struct PartTaken {
  uint64_t upload = 0;
  uint64_t have = 0;  // Bytes, from the beginning.
  template <class A>
  void Fields(A& a) {
    a(upload, have);
  }
};

enum class NoteKind : uint8_t {
  kReport,     // Of user code.
  kState,      // `bytes` of state were sent.
  kWarning,    // A sentence for people, like
  kResumed,    // this one.
  kRecovered,  // JSON.
  kProgress,   // JSON, for the head alone.
};
constexpr NoteKind LastValue(NoteKind) { return NoteKind::kProgress; }

struct WorkerNote {  // At most once.
  std::string process;
  std::string run;
  std::string member;
  NoteKind kind = NoteKind::kReport;
  uint64_t epoch = 0;
  uint64_t bytes = 0;
  std::string payload;
  uint64_t upload = 0;  // As of WorkerResult.
  template <class A>
  void Fields(A& a) {
    a(process, run, member, kind, epoch, bytes, payload, upload);
  }
};

struct ReleaseWorker {  // The process may exit now.
  std::string reason;
  template <class A>
  void Fields(A& a) {
    a(reason);
  }
};

// ---- driver <-> head ----

struct RunSpec {
  std::string id;  // Chosen by the driver.
  std::string name;
  std::string kind = "group";  // There is no other.
  uint32_t min_workers = 1;
  uint32_t max_workers = 1;
  uint32_t workers = 1;
  std::map<std::string, double> resources;
  std::string strategy = "spread";
  std::string payload;
  std::vector<std::string> preload;
  std::map<std::string, std::string> env;
  std::vector<std::string> worker_argv;  // How to start a worker process on a node.
  double elastic_timeout_s = 600;
  double start_timeout_s = 60;
  double stall_report_s = 30;   // Workers kept waiting in a collective this long: tell by whom.
  double stall_remove_s = 600;  // Then end the worker that is missing; 0: never.
  int64_t reset_limit = -1;
  uint32_t spares = 1;
  uint32_t lease_ms = 2000;
  bool detached = false;           // It goes on without its driver, however long.
  double driver_silence_s = 3600;  // Else it ends when its driver is not heard for so long.
  std::vector<std::string> spare_argv = {};  // As of StartWorker.
  template <class A>
  void Fields(A& a) {
    a(id, name, kind, min_workers, max_workers, workers, resources, strategy, payload, preload, env,
      worker_argv, elastic_timeout_s, start_timeout_s, stall_report_s, stall_remove_s, reset_limit,
      spares, lease_ms, detached, driver_silence_s, spare_argv);
  }
};

struct SubmitRun {
  uint64_t request = 0;
  std::string driver;
  RunSpec spec;
  template <class A>
  void Fields(A& a) {
    a(request, driver, spec);
  }
};

struct DriverHello {  // Its heartbeat, whatever it has.
  std::string driver;
  std::string place;        // See runtime/process_place.h.
  double silence_s = 3600;  // As of RunSpec, for its actors.
  template <class A>
  void Fields(A& a) {
    a(driver, place, silence_s);
  }
};

enum class RunVerb : uint8_t { kResize, kDrain, kCancel, kDrainNode, kLeave };
constexpr RunVerb LastValue(RunVerb) { return RunVerb::kLeave; }

struct RunCommand {
  uint64_t request = 0;
  std::string run;  // kLeave: the driver that ends.
  RunVerb verb = RunVerb::kResize;
  uint32_t workers = 0;
  std::string member;        // kDrainNode: the node.
  uint64_t deadline_ms = 0;  // kDrain: then the worker is ended; 0: never.
  std::string reason = {};   // kDrainNode, for people.
  template <class A>
  void Fields(A& a) {
    a(request, run, verb, workers, member, deadline_ms, reason);
  }
};

enum class QueryVerb : uint8_t { kRun, kCluster, kState, kPing, kDown, kLog };
constexpr QueryVerb LastValue(QueryVerb) { return QueryVerb::kLog; }

struct Query {
  uint64_t request = 0;
  QueryVerb verb = QueryVerb::kPing;
  std::string about;   // kLog: whose, an actor's id or name, or a daemon as in ReadLog.
  std::string node;    // kLog: of a daemon.
  uint32_t lines = 0;  // kLog.
  template <class A>
  void Fields(A& a) {
    a(request, verb, about, node, lines);
  }
};

struct DriverReply {
  uint64_t request = 0;
  uint8_t code = 0;  // ErrorCode.
  std::string message;
  std::string json;  // Of a query.
  template <class A>
  void Fields(A& a) {
    a(request, code, message, json);
  }
};

struct Subscribe {  // Also a sign of life of the driver, or of one that looks on.
  std::string driver;
  std::string run;
  std::string log;          // Which head incarnation the sequence refers to.
  uint64_t next = 0;        // First event not seen,
  uint64_t offset = 0;      // and how much of its payload is here.
  uint64_t room = 1 << 20;  // So many bytes the driver takes beyond that; 0: none now.
  bool lost = false;        // What was sent after that has not arrived: send it again.
  bool watch = false;       // It looks on, and is not to become the run's driver.
  template <class A>
  void Fields(A& a) {
    a(driver, run, log, next, offset, room, lost, watch);
  }
};

struct RunEvent {
  std::string kind;  // As the Python API names them.
  std::string json;  // Everything but the payload.
  std::string payload;
  uint64_t rest = 0;  // Bytes of the payload that follow in later frames.
  template <class A>
  void Fields(A& a) {
    a(kind, json, payload, rest);
  }
};

struct RunEvents {
  std::string run;
  std::string log;
  uint64_t first = 0;
  uint64_t offset = 0;  // Where in its payload the part of the first one begins.
  uint64_t oldest = 0;  // None before this one is kept any more.
  std::vector<RunEvent> events;
  template <class A>
  void Fields(A& a) {
    a(run, log, first, offset, oldest, events);
  }
};

// ---- any member <-> coordinator: groups::Report and groups::Command, wrapped with their group
// ----

struct GroupFrame {
  std::string group;
  std::string body;  // Encoded Report or Command.
  template <class A>
  void Fields(A& a) {
    a(group, body);
  }
};

inline constexpr const char* kHeadName = "head";
// With this status a daemon ends that is not to be started again.
inline constexpr int kTakenDownStatus = 77;

}  // namespace troupe
