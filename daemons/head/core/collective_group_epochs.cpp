// The epochs of collective groups of actors: what CollectiveGroups asks of the group service, and
// what that tells the members.
#include <algorithm>
#include <string_view>
#include <utility>

#include "collective_groups/membership/group_keys.h"
#include "collective_groups/membership/messages.h"
#include "daemons/head/core/collective_groups.h"
#include "daemons/protocol/messages.h"
#include "runtime/mutation.h"
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
  options.keys = EpochsOf(record);
  options.min_members = record.spec.elastic ? record.spec.min_size : record.spec.size;
  options.start_members = options.min_members;
  options.form_timeout = options.park_timeout = kNoLimit;
  options.stall_remove_after = Duration::zero();
  options.plan_margin = 1;  // Actors that do nothing pass the next boundary themselves.
  options.prepare_timeout = kPrepareTimeout;
  queue_->Put(step::OpenEpochs{std::move(options)});
  TellOrder(record);
  if (record.spec.trains) BeginTraining(record);
}

void CollectiveGroups::Tell(const std::string& name, groups::CoordinatorEvent event) {
  queue_->Put(step::TellCoordinator{actors::CollectiveGroupName(name), std::move(event)});
}

void CollectiveGroups::TellOrder(const Record& record) {
  if (record.spec.elastic) return;
  std::vector<std::string> order;
  for (const Record::Seat& seat : record.seats) order.push_back(seat.actor);
  Tell(record.spec.name, groups::OrderChanged{std::move(order)});
}

// Far from the numbers of any other group of its name.
uint64_t CollectiveGroups::FirstNumber() const {
  return std::stoull(new_id_().substr(0, 8), nullptr, 16) << 20;
}

void CollectiveGroups::OnNotice(const std::string& group, const groups::GroupNotice& notice) {
  const std::string name = group.substr(std::string_view(actors::kCollectivePrefix).size());
  if (const auto* send = std::get_if<groups::SendCommand>(&notice)) {
    OnCommand(name, *send);
  } else if (const auto* fenced = std::get_if<groups::FenceMember>(&notice)) {
    queue_->Warn("collective group ", name, ": ", fenced->reason);
    OnFenced(name, fenced->id);
  } else if (const auto* stalled = std::get_if<groups::GroupStalled>(&notice)) {
    queue_->Warn("collective group ", name, ": ", stalled->operation, " waits for a member");
  } else if (const auto* failed = std::get_if<groups::GroupFailed>(&notice)) {
    Remove(name, failed->reason);
  }
}

void CollectiveGroups::OnCommand(const std::string& name, const groups::SendCommand& send) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  for (const Record::Seat& seat : it->second.seats) {
    if (seat.number != send.to.incarnation || seat.actor != send.to.actor) continue;
    const std::string body = wire::Encode(kFrameGroupCommand, send.command);
    const GroupFrame frame{actors::CollectiveGroupName(name), body};
    queue_->Put(step::Send{seat.process, wire::Encode(kFrameGroupCommand, frame)});
  }
}

// Whoever was silent for too long may join again, as another member; its process goes on.
void CollectiveGroups::OnFenced(const std::string& name, const groups::MemberId& id) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  for (Record::Seat& seat : it->second.seats) {
    if (seat.actor == id.actor && seat.number == id.incarnation) seat.number = 0;
  }
  Keep(name);
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
    Tell(name, groups::ReportReceived{report});
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
  queue_->Put(step::Send{process, wire::Encode(kFrameGroupCommand, GroupFrame{group, body})});
}

void CollectiveGroups::BeginTraining(const Record& record) {
  groups::TrainingBegins begins;
  begins.start_members =
      std::max<uint32_t>(record.spec.min_size, static_cast<uint32_t>(record.spec.actors.size()));
  begins.form_timeout = kTrainingForms;
  begins.prepare_timeout = kStepTimeout;
  Tell(record.spec.name, begins);
}

// Whoever joins next is in a new group, and may use it in another way.
void CollectiveGroups::BeginAgain(Record& record) {
  const std::string before = EpochsOf(record);
  queue_->Put(step::CloseEpochs{actors::CollectiveGroupName(record.spec.name)});
  if (!TROUPE_MUTATED("CG-6 it begins again in one life")) BeginLife(record);
  record.spec.trains = false;
  Open(record);
  Keep(record.spec.name);
  queue_->Put(step::DropRecords{groups::KeysOfGroup(before)});
}

void CollectiveGroups::OnStoreLost() {
  for (auto& [name, record] : groups_) {
    const groups::Coordinator* known = coordinators_->Find(actors::CollectiveGroupName(name));
    const bool used = record.joins != record.life;
    if (!used || (known != nullptr && known->view().epoch > 0)) continue;
    for (Record::Seat& seat : record.seats) seat.number = 0;
    BeginAgain(record);
  }
}

void CollectiveGroups::BeginLife(Record& record) const {
  record.life = record.joins = FirstNumber();
  record.own_keys = true;
}

std::string CollectiveGroups::EpochsOf(const Record& record) {
  const std::string group = actors::CollectiveGroupName(record.spec.name);
  return record.own_keys ? group + "#" + std::to_string(record.life) : group;
}

bool CollectiveGroups::HasEpochs(const std::string& keys) const {
  const std::string whole = keys.substr(std::string_view(actors::kCollectivePrefix).size());
  for (const std::string& name : {whole, whole.substr(0, whole.rfind('#'))}) {
    const auto it = groups_.find(name);
    if (unreadable_.contains(name) || (it != groups_.end() && EpochsOf(it->second) == keys))
      return true;
  }
  return false;
}

}  // namespace troupe::daemons
