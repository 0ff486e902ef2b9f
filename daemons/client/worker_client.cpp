#include "daemons/client/worker_client.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "actors/core/cluster_protocol.h"
#include "daemons/protocol/payload_parts.h"
#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/trace.h"
#include "runtime/wire.h"
#include "scheduler/devices.h"

namespace troupe::daemons {
namespace {

constexpr Duration kHelloInterval = milliseconds(300);
constexpr Duration kHelloRetry = milliseconds(5);  // While the first link to the head comes up.
constexpr Duration kFirstLinkTime = seconds(2);
constexpr Duration kRepeatResult = milliseconds(200);
constexpr Duration kRepeatPart = seconds(1);

}  // namespace

Result<std::unique_ptr<WorkerClient>> WorkerClient::FromEnvironment(CommunicatorFactory factory) {
  std::unique_ptr<WorkerClient> client(new WorkerClient());
  client->factory_ = factory ? std::move(factory) : [](const std::string& data_address) {
    const bool share = Env("TROUPE_SHARED_MEMORY") != "0";
    return groups::MakeCommunicator({{data_address}, share ? HostName() : ""});
  };
  if (Status s = client->Start(); !s.ok()) return s.error();
  return client;
}

Status WorkerClient::Start() {
  std::signal(SIGPIPE, SIG_IGN);
  trace::Start("worker");
  if (!Env("TROUPE_METRICS").empty()) metrics::Enable();
  process_ = Env("TROUPE_WORKER_PROCESS");
  node_ = Env("TROUPE_WORKER_NODE");
  data_address_ = Env("TROUPE_WORKER_DATA_ADDRESS");
  host_ = HostName();
  if (process_.empty() || Env("TROUPE_WORKER_HEAD").empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "this process was not started by troupe-node (TROUPE_WORKER_PROCESS is not set); "
                 "workers are started "
                 "by the cluster, use troupe.Executor in your program"};
  }
  Result<std::unique_ptr<DeathWatch>> life = DeathWatch::Open(Env("TROUPE_WORKER_LIVES"));
  if (!life.ok()) return life.error();
  life_ = std::move(*life);
  const uint64_t slot = std::strtoull(Env("TROUPE_WORKER_SLOT").c_str(), nullptr, 10);
  const uint64_t turn = std::strtoull(Env("TROUPE_WORKER_TURN").c_str(), nullptr, 10);
  if (Status s = life_->Hold(static_cast<uint32_t>(slot), turn); !s.ok()) return s;
  head_ = {kHeadName, Env("TROUPE_WORKER_HEAD"), Env("TROUPE_WORKER_HEAD_KEY")};
  ZmqTransportOptions options;
  options.name = process_;
  if (const std::string path = Env("TROUPE_WORKER_KEY_FILE"); !path.empty()) {
    const Result<ClientKeys> keys = LoadClientKeys(path);
    if (!keys.ok()) return keys.error();
    options.keys = keys->own;
  }
  Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(options);
  if (!transport.ok()) return transport.error();
  transport_ = std::move(*transport);
  transport_->SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  if (Status s = transport_->Connect(head_); !s.ok()) return s;
  transport_->SetDropHandler([this](const std::string&) { hello_dropped_ = true; });
  started_ = transport_->loop().Now();
  transport_->loop().Post([this] { Hello(true); });
  return Status::Ok();
}

WorkerClient::~WorkerClient() {
  if (agent_) agent_->Stop();
  if (transport_) transport_->Stop();
  agent_.reset();
}

std::string WorkerClient::member() const {
  std::lock_guard lock(mu_);
  return assignment_.member;
}

void WorkerClient::Announce(const PeerAddress& address) {
  {
    std::lock_guard lock(mu_);
    announced_ = address;
  }
  transport_->loop().Post([this] { Hello(false); });
}

void WorkerClient::SetLoan(uint64_t number, bool lent) {
  {
    std::lock_guard lock(mu_);
    if (number <= loan_.number) return;
    loan_ = {number, lent};
  }
  transport_->loop().Post([this] { Hello(false); });
}

void WorkerClient::Hello(bool again) {
  WorkerHello hello;
  hello.process = process_;
  hello.node = node_;
  hello.pid = ::getpid();
  hello.host = host_;
  const auto count = [](metrics::Id id) { return static_cast<uint64_t>(metrics::Value(id)); };
  hello.counts = {count(metrics::Id::kActorCalls), count(metrics::Id::kMailboxRejects),
                  count(metrics::Id::kMailboxDepth), count(metrics::Id::kStateTransfers),
                  count(metrics::Id::kStateBytes)};
  {
    std::lock_guard lock(mu_);
    hello.assignment = assignment_.id;
    hello.member = assignment_.member;
    hello.address = announced_;
    hello.loan = loan_;
  }
  hello_dropped_ = false;
  (void)transport_->Send(kHeadName, wire::Encode(kFrameWorkerHello, hello));
  if (!again) return;
  const Time now = transport_->loop().Now();
  const bool soon = hello_dropped_ && now < started_ + kFirstLinkTime;
  transport_->loop().CallAfter(soon ? kHelloRetry : kHelloInterval, [this] { Hello(true); });
}

void WorkerClient::OnFrame(const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return;
  if (*type == kFrameGroupCommand) {
    Result<GroupFrame> outer = wire::Decode<GroupFrame>(*type, frame);
    if (!outer.ok()) return;
    if (outer->group.starts_with(actors::kCollectivePrefix)) return OnGroupFrame(*outer);
    Result<groups::Command> command =
        wire::Decode<groups::Command>(kFrameGroupCommand, outer->body);
    groups::GroupAgent* agent = nullptr;
    {
      std::lock_guard lock(mu_);
      agent = agent_.get();
    }
    if (command.ok() && agent != nullptr) agent->OnCommand(*command);
  } else if (*type == kFrameAssignment) {
    Result<Assignment> assignment = wire::Decode<Assignment>(*type, frame);
    if (assignment.ok()) OnAssignment(std::move(*assignment));
  } else if (*type == kFramePartTaken) {
    Result<PartTaken> taken = wire::Decode<PartTaken>(*type, frame);
    std::lock_guard lock(mu_);
    if (!taken.ok() || taken->upload != upload_) return;
    have_ = taken->have;
    changed_.notify_all();
  } else if (*type == kFrameReleaseWorker) {
    released_.store(true);
    changed_.notify_all();
  } else if (!metrics_.OnFrame(*type, frame)) {
    std::function<void(const std::string&)> other;
    {
      std::lock_guard lock(mu_);
      other = other_;
    }
    if (other) other(frame);
  }
}

void WorkerClient::OnGroupFrame(const GroupFrame& frame) {
  std::function<void(const GroupFrame&)> handler;
  {
    std::lock_guard lock(mu_);
    handler = groups_;
  }
  if (handler) handler(frame);
}

void WorkerClient::SetGroups(std::function<void(const GroupFrame& frame)> handler) {
  std::lock_guard lock(mu_);
  groups_ = std::move(handler);
}

Result<std::unique_ptr<groups::Communicator>> WorkerClient::MakeCommunicator() const {
  return factory_(data_address_.empty() ? "127.0.0.1" : data_address_);
}

void WorkerClient::SetOther(std::function<void(const std::string& frame)> handler) {
  std::lock_guard lock(mu_);
  other_ = std::move(handler);
}

// Before anything asks the driver for them. Of a worker that was given none all are seen.
void WorkerClient::SeeDevices(Assignment& assignment) {
  if (assignment.devices.empty()) return;
  std::string& visible = assignment.env[kVisibleDevices];
  if (visible.empty()) visible = VisibleDevices(assignment.devices, Env(kVisibleDevices));
  (void)::setenv(kVisibleDevices, visible.c_str(), 1);
}

void WorkerClient::OnAssignment(Assignment assignment) {
  std::lock_guard lock(mu_);
  if (assignment.id.empty() || !assignment_.id.empty()) return;  // A repeat.
  if (assignment.kind == AssignmentKind::kActor) {               // No group to belong to.
    assignment_ = assignment;
    const bool large = assignment.payload.size() > actors::kDirectStateBytesMax;
    waiting_.push_back(std::move(assignment));
    changed_.notify_all();
    // The head has room for another's state.
    if (large) transport_->loop().Post([this] { Hello(false); });
    return;
  }
  const std::optional<groups::MemberId> id = groups::MemberId::Parse(assignment.member);
  if (!id) return;
  SeeDevices(assignment);
  Result<std::unique_ptr<groups::Communicator>> communicator = MakeCommunicator();
  if (!communicator.ok()) {
    LogError(communicator.error().message);
    return;  // The head sees no progress and says so.
  }
  assignment_ = assignment;
  if (trace::On()) trace::Instant("assigned", {{"member", assignment.member}});
  groups::MemberOptions options;
  options.id = *id;
  options.host = host_;
  agent_ = std::make_unique<groups::GroupAgent>(
      options, &transport_->loop(), std::move(*communicator),
      [this, run = assignment.id](const groups::Report& report) {
        (void)transport_->Send(
            kHeadName, wire::Encode(kFrameGroupReport,
                                    GroupFrame{run, wire::Encode(kFrameGroupReport, report)}));
      });
  waiting_.push_back(assignment);
  changed_.notify_all();
  // The head hears of it now and not with the next beat.
  transport_->loop().Post([this] { Hello(false); });
}

std::optional<Assignment> WorkerClient::WaitAssignment(Duration limit) {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, limit, [this] { return !waiting_.empty() || released_.load(); });
  if (waiting_.empty()) return std::nullopt;
  Assignment next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

bool WorkerClient::Upload(uint64_t number, const std::string& payload, Time deadline) {
  std::unique_lock lock(mu_);
  if (upload_ != number) have_ = 0;
  upload_ = number;
  uint64_t sent = have_;
  while (have_ < payload.size()) {
    if (released_.load() || SteadyClock().Now() >= deadline) return false;
    const uint64_t have = have_;
    sent = std::max(sent, have);
    lock.unlock();
    while (sent < payload.size() && sent < have + kUploadWindowBytes) {
      const WorkerPart part{process_, number, sent, payload.size(),
                            payload.substr(sent, kPartBytes)};
      sent += part.bytes.size();
      (void)transport_->Send(kHeadName, wire::Encode(kFrameWorkerPart, part));
    }
    lock.lock();
    changed_.wait_for(lock, kRepeatPart, [&] { return have_ != have || released_.load(); });
    if (have_ <= have) sent = have_;  // What was sent is lost, or the head is another one.
  }
  return true;
}

void WorkerClient::Finish(bool ok, std::string payload, Duration limit) {
  Hello(false);  // With the last counts.
  const std::lock_guard one(upload_mu_);
  WorkerResult result;
  result.process = process_;
  result.ok = ok;
  std::string large;
  if (payload.size() > kInlinePayloadBytes) {
    result.upload = ++last_upload_;
    large = std::move(payload);
  } else {
    result.payload = std::move(payload);
  }
  result.assignment = assignment_.id;
  result.member = assignment_.member;
  if (agent_) {
    result.rank = agent_->Current().topology.rank;
    agent_->Finish();
  }
  const std::string frame = wire::Encode(kFrameWorkerResult, result);
  const Time deadline = SteadyClock().Now() + limit;
  while (!released_.load() && SteadyClock().Now() < deadline) {
    if (result.upload != 0 && !Upload(result.upload, large, deadline)) continue;
    (void)transport_->Send(kHeadName, frame);
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, kRepeatResult,
                      [&] { return released_.load() || (upload_ != 0 && have_ < large.size()); });
  }
}

Status WorkerClient::Note(NoteKind kind, uint64_t bytes, std::string payload, Duration limit) {
  WorkerNote note;
  note.process = process_;
  note.kind = kind;
  note.bytes = bytes;
  std::unique_lock one(upload_mu_, std::defer_lock);
  if (payload.size() > kInlinePayloadBytes) {
    one.lock();
    note.upload = ++last_upload_;
    if (!Upload(note.upload, payload, SteadyClock().Now() + limit) && !released_.load()) {
      return Error{ErrorCode::kDeadlineExceeded,
                   "nobody took a report of " + std::to_string(payload.size()) + " bytes"};
    }
  } else {
    note.payload = std::move(payload);
  }
  if (agent_) {
    note.run = assignment_.id;
    note.member = assignment_.member;
    note.epoch = agent_->Current().view.epoch;
  }
  return transport_->Send(kHeadName, wire::Encode(kFrameWorkerNote, note));
}

}  // namespace troupe::daemons
