// The epochs of collective groups of actors: what CollectiveGroups asks of the group service, and
// what that tells the members.
#include <algorithm>
#include <utility>

#include "collective_groups/membership/messages.h"
#include "daemons/head/collective_groups.h"
#include "daemons/protocol/messages.h"
#include "runtime/log.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

// Actors may compute for hours between two collectives, and wait as long for one another.
constexpr Duration kNoLimit = std::chrono::hours(24 * 365);

// A thread of its own takes a member out of its epoch, whatever the actor does. One that waits for
// a member which has gone on to the next epoch comes out by then.
constexpr Duration kPrepareTimeout = seconds(10);
// A training loop comes out at the end of its step.
constexpr Duration kStepTimeout = seconds(60);
// Actors that a group was made for are waited for so long before they begin to train.
constexpr Duration kTrainingForms = seconds(30);

}  // namespace

void CollectiveGroups::Open(const Record& record) {
  const std::string name = record.spec.name;
  groups::CoordinatorOptions options;
  options.group = actors::CollectiveGroupName(name);
  options.min_members = record.spec.elastic ? record.spec.min_size : record.spec.size;
  options.start_members = options.min_members;
  options.form_timeout = options.park_timeout = kNoLimit;
  options.stall_remove_after = Duration::zero();
  options.plan_margin = 1;  // Actors that do nothing pass the next boundary themselves.
  options.prepare_timeout = kPrepareTimeout;
  groups::GroupCallbacks callbacks;
  callbacks.send = [this, name](const groups::MemberId& to, const groups::Command& command) {
    const auto it = groups_.find(name);
    if (it == groups_.end()) return;
    for (const Record::Seat& seat : it->second.seats) {
      if (seat.number != to.incarnation || seat.actor != to.actor) continue;
      const std::string body = wire::Encode(kFrameGroupCommand, command);
      (void)callbacks_.send(
          seat.process,
          wire::Encode(kFrameGroupCommand, GroupFrame{actors::CollectiveGroupName(name), body}));
    }
  };
  // Whoever was silent for too long may join again, as another member; its process goes on.
  callbacks.fence = [this, name](const groups::MemberId& id, const std::string& reason) {
    LogWarning("collective group ", name, ": ", reason);
    callbacks_.later([this, name, id] {
      const auto it = groups_.find(name);
      if (it == groups_.end()) return;
      for (Record::Seat& seat : it->second.seats) {
        if (seat.actor == id.actor && seat.number == id.incarnation) seat.number = 0;
      }
      Keep(name);
    });
  };
  callbacks.activated = [](const groups::EpochActivated&) {};
  callbacks.settled = [](const groups::View&, Duration) {};
  callbacks.stalled = [name](const groups::GroupStalled& stalled) {
    LogWarning("collective group ", name, ": ", stalled.operation, " waits for a member");
  };
  callbacks.parked = [](const std::string&) {};
  callbacks.failed = [this, name](const std::string& reason) {
    callbacks_.later([this, name, reason] { Remove(Time{}, name, reason); });
  };
  callbacks.ended = [] {};
  callbacks_.groups->Open(std::move(options), std::move(callbacks));
  TellOrder(record);
  if (record.spec.trains) BeginTraining(record);
}

void CollectiveGroups::TellOrder(const Record& record) {
  if (record.spec.elastic) return;
  std::vector<std::string> order;
  for (const Record::Seat& seat : record.seats) order.push_back(seat.actor);
  callbacks_.groups->SetOrder(actors::CollectiveGroupName(record.spec.name), std::move(order));
}

bool CollectiveGroups::OnReport(const std::string& from, const std::string& group,
                                const groups::Report& report) {
  if (!group.starts_with(actors::kCollectivePrefix)) return false;
  const std::string name = group.substr(std::string_view(actors::kCollectivePrefix).size());
  const auto it = groups_.find(name);
  if (it == groups_.end()) {
    Expel(from, group, report.id.incarnation, NoGroup(name).message);
    return true;
  }
  const bool member = std::ranges::any_of(it->second.seats, [&](const Record::Seat& seat) {
    return seat.actor == report.id.actor && seat.number == report.id.incarnation;
  });
  if (member) {
    callbacks_.groups->OnReport(group, report);
  } else {
    Expel(from, group, report.id.incarnation, "this membership is over");
  }
  return true;
}

void CollectiveGroups::Expel(const std::string& process, const std::string& group, uint64_t number,
                             const std::string& reason, bool for_good) {
  groups::Command command;
  command.kind = groups::CommandKind::kExpel;
  command.plan = number;
  const bool over =
      for_good ||
      !groups_.contains(group.substr(std::string_view(actors::kCollectivePrefix).size()));
  command.expel = over ? groups::ExpelKind::kEnded : groups::ExpelKind::kFenced;
  command.reason = reason;
  const std::string body = wire::Encode(kFrameGroupCommand, command);
  (void)callbacks_.send(process, wire::Encode(kFrameGroupCommand, GroupFrame{group, body}));
}

void CollectiveGroups::BeginTraining(const Record& record) {
  groups::TrainingBegins begins;
  begins.start_members =
      std::max<uint32_t>(record.spec.min_size, static_cast<uint32_t>(record.spec.actors.size()));
  begins.form_timeout = kTrainingForms;
  begins.prepare_timeout = kStepTimeout;
  callbacks_.groups->BeginTraining(actors::CollectiveGroupName(record.spec.name), begins);
}

// Whoever joins next is in a new group, and may use it in another way.
void CollectiveGroups::BeginAgain(Record& record) {
  callbacks_.groups->Close(actors::CollectiveGroupName(record.spec.name));
  record.life = record.joins = callbacks_.first_number();
  record.spec.trains = false;
  Open(record);
}

}  // namespace troupe::daemons
