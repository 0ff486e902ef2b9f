// Every message type of the wire and every record in the store, for what must hold for all of them.
// Thread: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "actors/core/cluster_protocol.h"
#include "actors/core/directory.h"
#include "actors/core/internal/saved_mailbox.h"
#include "actors/core/protocol.h"
#include "collective_groups/membership/internal/saved_ledger.h"
#include "collective_groups/membership/messages.h"
#include "daemons/head/core/actor_group_actions.h"
#include "daemons/head/core/collective_groups.h"
#include "daemons/head/core/placement_groups.h"
#include "daemons/head/core/run.h"
#include "daemons/head/core/saved_state.h"
#include "daemons/protocol/messages.h"
#include "daemons/protocol/user_metrics.h"
#include "runtime/wire.h"

namespace troupe::fuzz {

// Numbers for messages that travel inside another one or lie in the store.
inline constexpr uint8_t kInnerType = 200;

template <class T>
struct MessageOf {
  using Type = T;
  const char* name;
  uint8_t type;
  wire::Numbers numbers = wire::Numbers::kElements;
};

// What users send: vectors of numbers of every type.
struct UserValues {
  std::vector<int8_t> i8;
  std::vector<int16_t> i16;
  std::vector<int32_t> i32;
  std::vector<int64_t> i64;
  std::vector<uint8_t> u8;
  std::vector<uint16_t> u16;
  std::vector<uint32_t> u32;
  std::vector<uint64_t> u64;
  std::vector<float> f32;
  std::vector<double> f64;
  std::map<std::string, std::vector<std::vector<double>>> nested;
  template <class A>
  void Fields(A& a) {
    a(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, nested);
  }
};

// Calls `f(MessageOf<T>)` for every type.
template <class F>
void ForEachMessage(F&& f) {
  f(MessageOf<NodeHello>{"NodeHello", kFrameNodeHello});
  f(MessageOf<WorkerExited>{"WorkerExited", kFrameWorkerExited});
  f(MessageOf<WorkerOutput>{"WorkerOutput", kFrameWorkerOutput});
  f(MessageOf<ReadLog>{"ReadLog", kFrameReadLog});
  f(MessageOf<LogTail>{"LogTail", kFrameLogTail});
  f(MessageOf<StartWorker>{"StartWorker", kFrameStartWorker});
  f(MessageOf<KillWorker>{"KillWorker", kFrameKillWorker});
  f(MessageOf<NodeAnswer>{"NodeAnswer", kFrameNodeAnswer});
  f(MessageOf<NodeFenced>{"NodeFenced", kFrameNodeFenced});
  f(MessageOf<NodeLeave>{"NodeLeave", kFrameNodeLeave});
  f(MessageOf<WorkerHello>{"WorkerHello", kFrameWorkerHello});
  f(MessageOf<Assignment>{"Assignment", kFrameAssignment});
  f(MessageOf<WorkerResult>{"WorkerResult", kFrameWorkerResult});
  f(MessageOf<WorkerNote>{"WorkerNote", kFrameWorkerNote});
  f(MessageOf<WorkerPart>{"WorkerPart", kFrameWorkerPart});
  f(MessageOf<PartTaken>{"PartTaken", kFramePartTaken});
  f(MessageOf<OutputTaken>{"OutputTaken", kFrameOutputTaken});
  f(MessageOf<ReleaseWorker>{"ReleaseWorker", kFrameReleaseWorker});
  f(MessageOf<UserMetrics>{"UserMetrics", kFrameUserMetrics});
  f(MessageOf<UserMetricsTaken>{"UserMetricsTaken", kFrameUserMetricsTaken});
  f(MessageOf<SubmitRun>{"SubmitRun", kFrameSubmitRun});
  f(MessageOf<RunCommand>{"RunCommand", kFrameRunCommand});
  f(MessageOf<DriverReply>{"DriverReply", kFrameDriverReply});
  f(MessageOf<Subscribe>{"Subscribe", kFrameSubscribe});
  f(MessageOf<RunEvents>{"RunEvents", kFrameRunEvents});
  f(MessageOf<Query>{"Query", kFrameQuery});
  f(MessageOf<GroupFrame>{"GroupFrame (report)", kFrameGroupReport});
  f(MessageOf<GroupFrame>{"GroupFrame (command)", kFrameGroupCommand});
  f(MessageOf<groups::Report>{"Report", kInnerType});
  f(MessageOf<groups::Command>{"Command", kInnerType});
  f(MessageOf<groups::EpochRecord>{"EpochRecord", kInnerType});
  f(MessageOf<actors::ActorCall>{"ActorCall", actors::kFrameActorCall});
  f(MessageOf<actors::ActorReply>{"ActorReply", actors::kFrameActorReply});
  f(MessageOf<actors::ActorBlueprint>{"ActorBlueprint", actors::kActorBlueprint});
  f(MessageOf<actors::ActorCheck>{"ActorCheck", actors::kFrameActorCheck});
  f(MessageOf<actors::ActorMissing>{"ActorMissing", actors::kFrameActorMissing});
  f(MessageOf<actors::ActorFull>{"ActorFull", actors::kFrameActorFull});
  f(MessageOf<actors::ActorRoom>{"ActorRoom", actors::kFrameActorRoom});
  f(MessageOf<actors::ActorCancel>{"ActorCancel", actors::kFrameActorCancel});
  f(MessageOf<actors::ActorWatch>{"ActorWatch", actors::kFrameActorWatch});
  f(MessageOf<actors::ActorDown>{"ActorDown", actors::kFrameActorDown});
  f(MessageOf<actors::CreateActor>{"CreateActor", actors::kFrameCreateActor});
  f(MessageOf<actors::ActorRequest>{"ActorRequest", actors::kFrameActorRequest});
  f(MessageOf<actors::ActorAnswer>{"ActorAnswer", actors::kFrameActorAnswer});
  f(MessageOf<actors::FollowActors>{"FollowActors", actors::kFrameFollowActors});
  f(MessageOf<actors::ActorStates>{"ActorStates", actors::kFrameActorStates});
  f(MessageOf<actors::SaveActor>{"SaveActor", actors::kFrameSaveActor});
  f(MessageOf<actors::OfferState>{"OfferState", actors::kFrameOfferState});
  f(MessageOf<actors::SendState>{"SendState", actors::kFrameSendState});
  f(MessageOf<actors::ActorSaved>{"ActorSaved", actors::kFrameActorSaved});
  f(MessageOf<actors::ActorOutput>{"ActorOutput", actors::kFrameActorOutput});
  f(MessageOf<actors::ActorLife>{"ActorLife", actors::kActorRecord});
  f(MessageOf<actors::ActorAssignment>{"ActorAssignment", actors::kActorAssignment});
  f(MessageOf<actors::SavedMailbox>{"SavedMailbox", actors::kMailboxState});
  f(MessageOf<groups::SavedLedger>{"SavedLedger", groups::kLedgerType});
  f(MessageOf<RunSpec>{"RunSpec", kFrameSubmitRun});
  f(MessageOf<daemons::RunRecord>{"RunRecord", kFrameRunCommand});
  f(MessageOf<daemons::GroupRecord>{"GroupRecord", actors::kGroupRecord});
  f(MessageOf<daemons::SavedState>{"SavedState", actors::kFrameSaveActor});
  f(MessageOf<daemons::ActorGroupRecord>{"ActorGroupRecord", actors::kActorGroupRecord});
  f(MessageOf<UserValues>{"UserValues", kInnerType, wire::Numbers::kPacked});
  f(MessageOf<daemons::CollectiveRecord>{"CollectiveRecord", actors::kCollectiveRecord});
  f(MessageOf<actors::HoldActors>{"HoldActors", actors::kFrameHoldActors});
}

// Whether `frame` is refused, or what it decodes to encodes to something that decodes to the same;
// as a message and as a record, which may have other fields than this release knows.
template <class T>
bool RefusedOrStable(uint8_t type, std::string_view frame, wire::Numbers numbers) {
  (void)wire::PeekType(frame);
  const Result<T> message = wire::Decode<T>(type, frame);
  const Result<T> record = wire::DecodeRecord<T>(type, frame);
  if (!message.ok() && message.error().code != ErrorCode::kCorrupt) return false;
  if (!record.ok()) return !message.ok();
  const std::string encoded = wire::Encode(type, *record, numbers);
  if (message.ok() && wire::Encode(type, *message, numbers) != encoded) return false;
  const Result<T> again = wire::Decode<T>(type, encoded);
  return again.ok() && wire::Encode(type, *again, numbers) == encoded;
}

}  // namespace troupe::fuzz
