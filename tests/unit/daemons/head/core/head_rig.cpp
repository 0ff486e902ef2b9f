#include "tests/unit/daemons/head/core/head_rig.h"

#include <gtest/gtest.h>

#include <utility>

#include "runtime/wire.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;

constexpr Duration kBeat = milliseconds(100);

}  // namespace

HeadRig::HeadRig(HeadOptions options)
    : transport_(&clock_), store_(&clock_), options_(std::move(options)) {
  Restart();
}

void HeadRig::Restart() {
  head_.reset();
  head_ = std::make_unique<HeadService>(&transport_, &lane_, &store_, &spool_, options_);
  next_event_ = 0;  // It tells from the beginning.
  EXPECT_TRUE(head_->Start().ok());
  Settle();
}

HeadRig::~HeadRig() { lane_.Stop(); }

void HeadRig::Settle() {
  ASSERT_TRUE(SettleLane(lane_, transport_)) << "the store is stuck";
  Sort();
}

void HeadRig::Deliver(uint8_t, const std::string& from, const std::string& frame) {
  transport_.Deliver(from, frame);
  Settle();
}

void HeadRig::RunTimers() {
  while (transport_.RunTimer(clock_.Now())) {
  }
  Settle();
}

void HeadRig::Pass(Duration d) {
  const Time end = clock_.Now() + d;
  while (clock_.Now() < end) {
    const Time until = std::min(end, clock_.Now() + kBeat);
    while (transport_.RunTimer(until)) {
    }
    Settle();
    if (driver_beats_) Say(kFrameSubscribe, "d", Subscribe{"d", "j", "", 0});
    if (other_cpus_ > 0) JoinOther(other_cpus_);
    if (cut_) continue;
    JoinNode();
    for (auto& [worker, report] : reports_) {
      if (greeted_[process(worker)]) Report(worker, report.state, report.epoch);
    }
  }
}

void HeadRig::JoinNode() { Say(kFrameNodeHello, "node-n", Hello()); }

NodeHello HeadRig::Hello() const {
  NodeHello hello;
  hello.node = "n";
  hello.incarnation = incarnation_;
  hello.host = "h";
  hello.resources = {{"CPU", 8}};
  if (gpus_ > 0) hello.resources["GPU"] = gpus_;
  hello.heard = heard_;
  AddWorkers(hello);
  return hello;
}

void HeadRig::AddWorkers(NodeHello& hello) const {
  for (const std::string& process : started_) {
    const StartWorker& order = order_of_.at(process);
    if (node_of_.at(process) == hello.node && !gone_.contains(process))
      hello.workers.push_back({process, 100, order.lease, false, order.room});
  }
}

void HeadRig::JoinOther(double cpus) {
  other_cpus_ = cpus;
  NodeHello hello;
  hello.node = "m";
  hello.incarnation = 1;
  hello.host = "h2";
  hello.resources = {{"CPU", cpus}};
  AddWorkers(hello);
  Say(kFrameNodeHello, "node-m", hello);
}

void HeadRig::Submit(uint32_t workers, uint32_t min_workers, uint32_t spares) {
  SubmitRun submit;
  submit.request = 1;
  submit.driver = "d";
  submit.spec.id = "j";
  submit.spec.name = "run";
  submit.spec.workers = workers;
  submit.spec.min_workers = min_workers;
  submit.spec.max_workers = 8;
  submit.spec.resources = {{"CPU", 1}};
  if (gpus_ > 0) submit.spec.resources["GPU"] = 1;
  submit.spec.spares = spares;
  submit.spec.spare_argv = {"spare"};
  submit.spec.payload = "work";
  submit.spec.detached = detached_;
  submit.spec.driver_silence_s = silence_s_;
  Say(kFrameSubmitRun, "d", submit);
}

void HeadRig::Greet(size_t worker) {
  WorkerHello hello = FirstWords(worker);
  hello.assignment = "j";
  hello.member = "w" + std::to_string(worker) + "#1";
  Say(kFrameWorkerHello, hello.process, hello);
}

WorkerHello HeadRig::FirstWords(size_t worker) {
  WorkerHello hello;
  hello.process = process(worker);
  hello.node = "n";
  hello.pid = 100;
  hello.host = "h";
  greeted_[hello.process] = true;
  return hello;
}

void HeadRig::Vanish(size_t worker) {
  greeted_[process(worker)] = false;
  gone_.insert(process(worker));
  reports_.erase(worker);
}

void HeadRig::Report(size_t worker, MemberState state, groups::Epoch epoch) {
  groups::Report& report = reports_[worker];
  report.id = {"w" + std::to_string(worker), 1};
  report.host = "h";
  report.state = state;
  report.epoch = epoch;
  report.has_state = has_state_;
  ++report.sequence;
  Say(kFrameGroupReport, process(worker), GroupFrame{"j", wire::Encode(kFrameGroupReport, report)});
}

void HeadRig::FormGroup(uint32_t workers) {
  for (const MemberState state :
       {MemberState::kReady, MemberState::kPrepared, MemberState::kLinked}) {
    for (uint32_t i = 0; i < workers; ++i) Report(i, state, state == MemberState::kReady ? 0 : 1);
  }
}

std::vector<std::string> HeadRig::Keys() {
  std::vector<std::string> keys;
  for (const char* prefix : {"job/", "group/", "actor/", "actor_group/"}) {
    const auto listed = store_.List(prefix);
    if (!listed.ok()) return {listed.error().message};
    for (const auto& [key, value] : *listed) keys.push_back(key);
  }
  return keys;
}

// Takes what the head has sent to whom it concerns.
void HeadRig::Sort() {
  for (const auto& [to, frame] : transport_.TakeSent()) {
    const uint8_t type = *wire::PeekType(frame);
    if (type == kFrameStartWorker) {
      const StartWorker start = *wire::Decode<StartWorker>(type, frame);
      started_.push_back(start.process);
      order_of_[start.process] = start;
      greeted_[started_.back()] = false;
      node_of_[started_.back()] = to.substr(std::string("node-").size());
      if (cut_ && to == "node-n") gone_.insert(started_.back());
    } else if (type == kFrameKeepSpares) {
      spares_.push_back(wire::Decode<KeepSpares>(type, frame)->count);
    } else if (type == kFrameNodeAnswer && to == "node-n") {
      heard_ = *wire::Decode<NodeAnswer>(type, frame);
    } else if (type == kFrameNodeFenced) {
      put_aside_ = *wire::Decode<NodeFenced>(type, frame);
      ++incarnation_;
      for (auto& [process, greeted] : greeted_) {
        if (node_of_.at(process) == "n") gone_.insert(process);
        if (node_of_.at(process) == "n") greeted = false;
      }
    } else if (type == kFrameKillWorker && !cut_) {
      const KillWorker kill = *wire::Decode<KillWorker>(type, frame);
      signals_[kill.process].push_back(kill.signal);
    } else if (type == kFrameGroupCommand) {
      const GroupFrame outer = *wire::Decode<GroupFrame>(type, frame);
      commands_[to].push_back(*wire::Decode<groups::Command>(type, outer.body));
    } else if (type == kFrameDriverReply) {
      const DriverReply reply = *wire::Decode<DriverReply>(type, frame);
      reply_code_ = reply.code;
      reply_json_ = reply.json;
    } else if (type == kFrameRunEvents) {
      const RunEvents batch = *wire::Decode<RunEvents>(type, frame);
      uint64_t sequence = batch.first;
      for (const RunEvent& event : batch.events) {
        if (sequence++ < next_event_) continue;
        next_event_ = sequence;
        const nlohmann::json json = nlohmann::json::parse(event.json);
        events_.push_back(json);
        if (event.kind == "worker")
          told_.push_back(json.at("worker").get<std::string>() + " " +
                          json.at("state").get<std::string>());
        if (event.kind == "result") results_.push_back(event.payload);
        if (event.kind == "epoch") told_.push_back("epoch " + json.at("epoch").dump());
        if (event.kind == "state") told_.push_back("state " + json.at("bytes").dump());
        if (event.kind == "done") told_.push_back("done " + json.at("state").get<std::string>());
      }
    }
  }
}

std::vector<int> HeadRig::signals(const std::string& process) const {
  const auto it = signals_.find(process);
  return it == signals_.end() ? std::vector<int>{} : it->second;
}

std::vector<groups::Command> HeadRig::commands(size_t worker) const {
  const auto it = commands_.find(process(worker));
  return it == commands_.end() ? std::vector<groups::Command>{} : it->second;
}

}  // namespace troupe::daemons::testing
