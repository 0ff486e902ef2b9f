#include "tests/sim/cluster/sim_driver.h"

#include <nlohmann/json.hpp>

#include "runtime/wire.h"
#include "tests/sim/cluster/sim_training.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kDriverBeat = milliseconds(500);
constexpr Duration kRepeat = milliseconds(100);

}  // namespace

SimDriver::SimDriver(World* world)
    : world_(world), port_(world, "driver-1", kHeadHost), target_(world->options_.workers) {
  port_.SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  Beat();
}

void SimDriver::Submit() {
  const ClusterOptions& o = world_->options_;
  SubmitRun submit;
  submit.request = next_request_++;
  submit.driver = "driver-1";
  submit.spec.id = kRun;
  submit.spec.name = "training";
  submit.spec.workers = o.workers;
  submit.spec.min_workers = o.min_workers;
  submit.spec.max_workers = o.max_workers;
  submit.spec.spares = o.spares;
  submit.spec.spare_argv = {"worker", "--ahead"};
  submit.spec.resources = {{"CPU", 1}};
  submit.spec.payload = "train";
  submit.spec.detached = o.detached;
  submit.spec.driver_silence_s = 20;
  asked_[submit.request] = {wire::Encode(kFrameSubmitRun, submit), RunCommand{}};
  Repeat(submit.request);
}

void SimDriver::Command(RunCommand command) {
  command.request = next_request_++;
  command.run = kRun;
  asked_[command.request] = {wire::Encode(kFrameRunCommand, command), command};
  Repeat(command.request);
}

void SimDriver::Leave(bool says_so) {
  left_ = true;
  if (!says_so) return port_.Stop();
  RunCommand leave{next_request_++, "driver-1", RunVerb::kLeave, 0, "", 0};
  asked_[leave.request] = {wire::Encode(kFrameRunCommand, leave), leave};
  Repeat(leave.request);
}

void SimDriver::Repeat(uint64_t request) {
  const auto it = asked_.find(request);
  if (it == asked_.end()) return;
  (void)port_.Send(kHeadName, it->second.first);
  port_.loop().CallAfter(kRepeat, [this, request] { Repeat(request); });
}

void SimDriver::Beat() {
  if (left_) return;
  (void)port_.Send(kHeadName, wire::Encode(kFrameDriverHello, DriverHello{"driver-1", "", 20}));
  asked_lost_ = false;
  if (submitted_ && !done_) SendSubscribe(false);
  port_.loop().CallAfter(kDriverBeat, [this] { Beat(); });
}

void SimDriver::SendSubscribe(bool lost) {
  Subscribe subscribe{"driver-1", kRun, log_, next_};
  subscribe.lost = lost;
  (void)port_.Send(kHeadName, wire::Encode(kFrameSubscribe, subscribe));
}

void SimDriver::OnFrame(const std::string& frame) {
  const uint8_t type = *wire::PeekType(frame);
  if (type == kFrameDriverReply) OnReply(*wire::Decode<DriverReply>(type, frame));
  if (type == kFrameRunEvents) OnEvents(*wire::Decode<RunEvents>(type, frame));
}

void SimDriver::OnReply(const DriverReply& reply) {
  const auto it = asked_.find(reply.request);
  if (it == asked_.end()) return;
  const RunCommand command = it->second.second;
  asked_.erase(it);
  if (command.request == 0) {
    if (reply.code != 0) return world_->Fail("submitting: " + reply.message);
    submitted_ = true;
    return SendSubscribe(false);
  }
  if (reply.code != 0) return world_->Tell("refused: ", reply.message);
  if (command.verb == RunVerb::kResize) target_ = command.workers;
  // What was drained twice, because the first answer was lost, counts once; see NotSettled.
}

void SimDriver::OnEvents(RunEvents batch) {
  if (log_ != batch.log) {
    log_ = batch.log;
    next_ = 0;
  }
  if (batch.first > next_) {
    if (batch.first != batch.oldest) {
      if (!std::exchange(asked_lost_, true)) SendSubscribe(true);
      return;
    }
    next_ = batch.first;
  }
  if (world_->Mutated(Mutation::kEventsLost) && !batch.events.empty()) batch.events.pop_back();
  uint64_t sequence = batch.first;
  for (const RunEvent& event : batch.events) {
    if (sequence++ < next_) continue;
    ++next_;
    Take(event);
  }
  if (done_) SendSubscribe(false);
}

void SimDriver::Take(const RunEvent& event) {
  if (done_) return;
  const nlohmann::json json = nlohmann::json::parse(event.json);
  last_ = event.json;
  world_->Tell("driver: ", event.json);
  if (event.kind == "epoch") {
    const uint64_t epoch = json.at("epoch");
    if (epoch < epoch_) world_->Fail("the driver is told of epochs in the wrong order");
    if (epoch == epoch_) return;  // Another head says it again.
    epoch_ = epoch;
    members_.clear();
    for (const auto& member : json.at("members")) {
      members_.push_back(member.at("id"));
      // Who has died before this head heard of it is not to be found any more.
      const auto id = groups::MemberId::Parse(members_.back());
      if (member.at("pid") == 0 && id && world_->training(kRun).Find(*id) != nullptr)
        world_->Fail("epoch " + std::to_string(epoch) + " does not say where its members run");
    }
  } else if (event.kind == "result") {
    // Another head says it again.
    const auto [it, fresh] = results_.try_emplace(json.at("worker"), event.payload);
    if (!fresh && it->second != event.payload) world_->Fail("two results of one worker");
  } else if (event.kind == "done") {
    done_ = json.at("state");
    world_->OnDone(*done_, json.at("reason"));
  }
}

}  // namespace troupe::daemons::sim
