#include "autoscaler/gce/gce_machines.h"

#include <set>
#include <utility>

namespace troupe::gce {
namespace {

// Of several that are ended together.
struct GceEnds {
  size_t left = 1;
  Status status = Status::Ok();
  std::function<void(Status)> done;
  void Count(const Status& one) {
    if (!one.ok()) status = one;
    if (--left == 0) done(status);
  }
};

}  // namespace

GceTools RealGceTools(const Clock* clock) {
  GceWorld world = RealGceWorld();
  const std::string ca_file = world.variable("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE").value_or("");
  return {std::move(world), CurlLinks(ca_file), clock};
}

GceMachines::GceMachines(GceOptions options, const GceChoice& choice, GceTools tools)
    : options_(std::move(options)),
      clock_(tools.clock),
      identity_(std::move(tools.world), choice),
      lanes_({"GCE", {kGceCreateThreads, 1, kGceEndThreads, 1}, kGceWaitingMax},
             std::move(tools.link), tools.clock) {}

GceMachines::~GceMachines() = default;

Status GceMachines::Post(Lane lane, Ask ask, std::shared_ptr<const std::atomic<bool>> wanted) {
  return lanes_.Post(
      lane,
      [this, ask = std::move(ask)](const RequestSeams& seams) {
        GceApi api(&options_, &identity_, &zones_, seams);
        return ask(api);
      },
      std::move(wanted));
}

void GceMachines::Create(const MachineOrder& order, Answer done) {
  const auto wanted = std::make_shared<std::atomic<bool>>(true);
  const auto create = [this, order, done, wanted](GceApi& api) -> RequestLanes::Finish {
    Result<std::vector<Machine>> made = Error{ErrorCode::kCancelled, "it is not wanted any more"};
    if (wanted->load()) made = api.Create(order);
    return [this, done, request = order.request_id, made] {
      wanted_.erase(request);
      if (made.ok()) inventory_.Made(clock_->Now(), *made);
      done(made);
    };
  };
  const Status posted = Post(kCreate, create, wanted);
  if (!posted.ok()) return done(posted.error());
  wanted_[order.request_id] = wanted;
}

void GceMachines::Withdraw(const std::string& request_id) {
  const auto found = wanted_.find(request_id);
  if (found == wanted_.end() || !found->second->exchange(false)) return;
  lanes_.Wake();
}

void GceMachines::List(Answer done) {
  lists_.push_back(std::move(done));
  if (const Time now = clock_->Now(); now >= list_at_) AskToList(now);
}

void GceMachines::AskToList(Time now) {
  list_at_ = now + kGceListGap;
  const auto done = [dones = std::exchange(lists_, {})](const Result<std::vector<Machine>>& all) {
    for (const Answer& one : dones) one(all);
  };
  const Status posted = Post(kList, [this, done](GceApi& api) -> RequestLanes::Finish {
    return [this, done, listed = api.List()] {
      if (!listed.ok()) return done(listed.error());
      done(Take(*listed));
    };
  });
  if (!posted.ok()) done(posted.error());
}

// A zone that Google does not reach has what it had; before the first list of all zones nobody
// knows what that is.
Result<std::vector<Machine>> GceMachines::Take(const GceListed& listed) {
  if (!listed_ && !listed.unreachable.empty())
    return Error{ErrorCode::kUnavailable,
                 "Compute Engine does not reach " + *listed.unreachable.begin()};
  listed_ = true;
  std::vector<Machine> machines =
      inventory_.Take(clock_->Now(), listed.machines, [&](const Machine& machine) {
        const auto parts = PartsOf(machine.id);
        return parts && listed.unreachable.contains(parts->first);
      });
  std::set<std::string> present;
  for (Machine& machine : machines) {
    present.insert(machine.id);
    if (machine.state != "stopping" || asked_.contains(machine.id)) continue;
    machine.ended = ReasonOf(machine.id);
    // Who lists is told once: until it is known why it ends.
    if (machine.ended.empty()) machine.state = "running";
  }
  DeleteStopped(listed.stopped);
  std::erase_if(asked_, [&](const auto& one) { return !present.contains(one.first); });
  std::erase_if(reasons_, [&](const auto& one) { return !present.contains(one.first); });
  return machines;
}

// Whosever they are, they have no use any more: a node that is started again finds no place. When
// it is known why they have stopped, for their owner to tell.
void GceMachines::DeleteStopped(const std::set<std::string>& stopped) {
  std::vector<std::string> known;
  for (const std::string& id : stopped) {
    const auto reason = reasons_.find(id);
    if (reason != reasons_.end() && !reason->second.empty()) known.push_back(id);
  }
  if (!known.empty()) Terminate(known, [](const Status&) {});
}

// Empty: it is being asked for.
std::string GceMachines::ReasonOf(const std::string& id) {
  const auto [known, fresh] = reasons_.try_emplace(id);
  if (!fresh) return known->second;
  const auto ask = [this, id](GceApi& api) -> RequestLanes::Finish {
    return [this, id, reason = api.ReasonOf(id)] {
      const auto found = reasons_.find(id);
      if (found != reasons_.end())
        found->second =
            reason.empty() ? "it has ended, and Compute Engine does not say why" : reason;
    };
  };
  if (!Post(kWords, ask).ok()) known->second = "it has ended";
  return known->second;
}

void GceMachines::Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) {
  const auto ends = std::make_shared<GceEnds>();
  ends->done = std::move(done);
  const Time now = clock_->Now();
  for (const std::string& id : ids) {
    const auto asked = asked_.find(id);
    if (asked != asked_.end() && now < asked->second + kGceEndAgain) continue;
    asked_[id] = now;
    ++ends->left;
    const Status posted = Post(kEnd, [this, id, ends](GceApi& api) -> RequestLanes::Finish {
      return [this, id, ends, end = api.Terminate(id)] {
        if (end.gone) {
          inventory_.Gone(id);
        } else if (end.status.ok()) {
          inventory_.Ending(id);
        } else {
          asked_.erase(id);
        }
        ends->Count(end.status);
      };
    });
    if (posted.ok()) continue;
    asked_.erase(id);
    ends->Count(posted);
  }
  ends->Count(Status::Ok());
}

void GceMachines::Printed(const std::string& id,
                          const std::function<void(const std::string&)>& done) {
  const Status posted = Post(kWords, [id, done](GceApi& api) -> RequestLanes::Finish {
    return [done, words = api.Printed(id)] { done(words); };
  });
  if (!posted.ok()) done("");
}

bool GceMachines::Step(Time now) {
  if (!lists_.empty() && now >= list_at_) AskToList(now);
  return lanes_.Step();
}

}  // namespace troupe::gce
