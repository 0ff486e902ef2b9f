#include "autoscaler/ec2/ec2_machines.h"

#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "runtime/http_client.h"
#include "runtime/log.h"

namespace troupe::ec2 {
namespace {

constexpr Duration kProcessLimit = seconds(60);  // Of a credential_process.

void SweepOnce(Ec2Api& api) {
  const Result<int> swept = api.Sweep();
  if (!swept.ok()) {
    if (swept.error().code != ErrorCode::kCancelled)
      LogWarning("launch templates that may be left are not looked for: ", swept.error().message);
  } else if (*swept > 0) {
    LogInfo(*swept, " launch templates that were left are deleted");
  }
}

// The first that is none, or success.
Status OneOf(const std::map<std::string, Ec2End>& all, const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    const auto found = all.find(id);
    if (found != all.end() && !found->second.status.ok()) return found->second.status;
  }
  return Status::Ok();
}

}  // namespace

Ec2Tools RealEc2Tools(const Clock* clock) {
  AwsWorld world = RealAwsWorld();
  const std::string ca_file = world.variable("AWS_CA_BUNDLE").value_or("");
  return {std::move(world), CurlLinks(ca_file), clock};
}

Ec2Machines::Ec2Machines(Ec2Options options, Ec2Tools tools)
    : options_(std::move(options)),
      clock_(tools.clock),
      identity_(AwsChain(WithRun(std::move(tools.world)), options_.aws)),
      lanes_({"EC2", {kEc2CreateThreads, 1, 1, 1}, kEc2WaitingMax}, std::move(tools.link),
             tools.clock) {}

Ec2Machines::~Ec2Machines() = default;

AwsWorld Ec2Machines::WithRun(AwsWorld world) {
  world.run = [this](const std::string& command) {
    ExecCommand exec;
    exec.argv = {"sh", "-c", command};
    exec.limit = kProcessLimit;
    return lanes_.RunCommand(exec);
  };
  return world;
}

Status Ec2Machines::Post(Lane lane, Ask ask, std::shared_ptr<const std::atomic<bool>> wanted) {
  return lanes_.Post(
      lane,
      [this, ask = std::move(ask)](const RequestSeams& seams) {
        Ec2Api api(&options_, &identity_, seams);
        return ask(api);
      },
      std::move(wanted));
}

void Ec2Machines::Create(const MachineOrder& order, Answer done) {
  const auto wanted = std::make_shared<std::atomic<bool>>(true);
  const auto create = [this, order, done, wanted](Ec2Api& api) -> RequestLanes::Finish {
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

void Ec2Machines::Withdraw(const std::string& request_id) {
  const auto found = wanted_.find(request_id);
  if (found == wanted_.end() || !found->second->exchange(false)) return;
  lanes_.Wake();
}

void Ec2Machines::List(Answer done) {
  lists_.push_back(std::move(done));
  if (const Time now = clock_->Now(); now >= list_at_) AskToList(now);
}

void Ec2Machines::AskToList(Time now) {
  list_at_ = now + kEc2ListGap;
  const auto done = [dones = std::exchange(lists_, {})](const Result<std::vector<Machine>>& all) {
    for (const Answer& one : dones) one(all);
  };
  // Where templates are the user's there is none of ours.
  const bool sweep = options_.launch_template.empty() && now >= sweep_at_;
  if (sweep) sweep_at_ = now + kEc2SweepEvery;
  const Status posted = Post(kList, [this, done](Ec2Api& api) -> RequestLanes::Finish {
    return [this, done, listed = api.List()] {
      if (!listed.ok()) return done(listed.error());
      done(inventory_.Take(clock_->Now(), *listed));
    };
  });
  if (!posted.ok()) return done(posted.error());
  if (!sweep) return;
  (void)Post(kList, [](Ec2Api& api) -> RequestLanes::Finish {
    SweepOnce(api);
    return [] {};
  });
}

void Ec2Machines::Terminate(const std::vector<std::string>& ids, std::function<void(Status)> done) {
  ends_.push_back({ids, std::move(done)});
  if (!ending_) AskToEnd();
}

void Ec2Machines::Printed(const std::string& id,
                          const std::function<void(const std::string&)>& done) {
  const Status posted = Post(kWords, [id, done](Ec2Api& api) -> RequestLanes::Finish {
    return [done, words = api.Printed(id)] { done(words); };
  });
  if (!posted.ok()) done("");
}

// All that is asked for meanwhile goes into the next request.
void Ec2Machines::AskToEnd() {
  std::set<std::string> distinct;
  for (const End& end : ends_) distinct.insert(end.ids.begin(), end.ids.end());
  const std::vector<std::string> ids(distinct.begin(), distinct.end());
  const std::vector<End> ends = std::exchange(ends_, {});
  const auto finish = [this, ends](const std::map<std::string, Ec2End>& all) {
    for (const auto& [id, end] : all) {
      if (end.gone) {
        inventory_.Gone(id);
      } else if (end.status.ok()) {
        inventory_.Ending(id);
      }
    }
    ending_ = false;
    for (const End& end : ends) end.done(OneOf(all, end.ids));
    if (!ends_.empty() && !ending_) AskToEnd();
  };
  ending_ = true;
  const Status posted = Post(kEnd,
                             [ids, finish, young = inventory_.Young(clock_->Now(), ids)](
                                 Ec2Api& api) -> RequestLanes::Finish {
                               return [finish, all = api.Terminate(ids, young)] { finish(all); };
                             });
  if (posted.ok()) return;
  ending_ = false;
  for (const End& end : ends) end.done(posted);
}

// Beside the lists, which it holds up no longer than one request. Without an answer the prices stay
// as they are.
void Ec2Machines::AskForPrices(Time now) {
  price_at_ = now + options_.price_interval;
  const auto now_s = static_cast<int64_t>(std::time(nullptr));
  const Status posted = Post(kList, [this, now_s](Ec2Api& api) -> RequestLanes::Finish {
    return [this, prices = api.Prices(now_s)] {
      pricing_ = false;
      if (prices.ok()) {
        for (const auto& [offer, price] : *prices) prices_[offer] = price;
      } else if (std::exchange(price_trouble_, prices.error().message) != prices.error().message) {
        LogWarning("spot prices stay as they were: ", prices.error().message);
      }
    };
  });
  pricing_ = posted.ok();
}

bool Ec2Machines::Step(Time now) {
  // Who is there matters more.
  const bool free = list_at_ != Time{} && lists_.empty() && !pricing_;
  if (options_.price_interval > Duration::zero() && free && now >= price_at_) AskForPrices(now);
  if (!lists_.empty() && now >= list_at_) AskToList(now);
  return lanes_.Step();
}

}  // namespace troupe::ec2
