#include "autoscaler/kubernetes/kube_machines.h"

#include <utility>

#include "runtime/log.h"

namespace troupe::kubernetes {
namespace {

// What several deletions came to.
struct Ends {
  size_t left = 0;
  Status status = Status::Ok();
  std::function<void(Status)> done;

  void Count(const Status& one) {
    if (status.ok()) status = one;
    if (--left == 0) done(status);
  }
};

}  // namespace

KubeTools RealKubeTools(const Clock* clock) { return {RealKubeWorld(), CurlLinks(), clock}; }

KubeMachines::KubeMachines(KubeOptions options, KubeTools tools)
    : options_(std::move(options)),
      clock_(tools.clock),
      inventory_(options_.life),
      identity_(WithRun(std::move(tools.world)), options_.choice),
      lanes_({"kubernetes", {kKubeCreateThreads, kKubeEndThreads, 2, 1, 1}, kKubeWaitingMax},
             std::move(tools.link), tools.clock) {}

KubeMachines::~KubeMachines() = default;

KubeWorld KubeMachines::WithRun(KubeWorld world) {
  world.run = [this](const ExecCommand& command) { return lanes_.RunCommand(command); };
  return world;
}

void KubeMachines::Begin() {
  if (std::exchange(begun_, true)) return;
  for (const auto& [lane, kind] : {std::pair{kPods, KubeKind::kPods}, {kNodes, KubeKind::kNodes}}) {
    const Status posted = lanes_.Post(lane, [this, kind = kind](const RequestSeams& seams) {
      KubeWatch(kind, &options_, &identity_, &feed_, seams).Follow();
      return [] {};
    });
    if (!posted.ok()) pods_.trouble = posted;
  }
}

void KubeMachines::Create(const MachineOrder& order, Answer done) {
  Begin();
  if (orders_.contains(order.request_id))
    return done(Error{ErrorCode::kUnavailable, order.request_id + " is under way"});
  const auto wanted = std::make_shared<std::atomic<bool>>(true);
  const auto create = [this, order, wanted](const RequestSeams& seams) -> RequestLanes::Finish {
    Result<std::vector<KubePod>> made = Error{ErrorCode::kCancelled, "it is not wanted any more"};
    if (wanted->load()) made = KubeApi(&options_, &identity_, seams).Create(order);
    return [this, request = order.request_id, made] { Made(request, made); };
  };
  const Status posted = lanes_.Post(kCreate, create, wanted);
  if (!posted.ok()) return done(posted.error());
  Order& held = orders_[order.request_id];
  held = {order, std::move(done), {}, wanted, std::nullopt, std::nullopt};
  for (int i = 0; i < order.count; ++i) {
    held.names.push_back(PodName(order, i));
    inventory_.Hide(held.names.back());
  }
}

void KubeMachines::Made(const std::string& request, const Result<std::vector<KubePod>>& made) {
  Order& order = orders_.at(request);
  if (!made.ok()) return Finish(request, made.error());
  order.made_at = clock_->Now();
  for (const KubePod& pod : *made) inventory_.Made(*order.made_at, pod);
}

void KubeMachines::Finish(const std::string& request, Result<std::vector<Machine>> answer) {
  const Order order = std::move(orders_.at(request));
  orders_.erase(request);
  for (const std::string& name : order.names) inventory_.Show(name);
  order.done(std::move(answer));
}

void KubeMachines::Fail(const std::string& request, const Status& why) {
  Order& order = orders_.at(request);
  order.failed = why;
  order.wanted->store(false);
  // A pod that could not be ended is listed from then on, and so ended by whoever lists.
  Terminate(order.names, [this, request](const Status&) {
    Finish(request, orders_.at(request).failed->error());
  });
}

void KubeMachines::Withdraw(const std::string& request_id) {
  const auto found = orders_.find(request_id);
  if (found == orders_.end() || !found->second.wanted->exchange(false)) return;
  lanes_.Wake();
}

bool KubeMachines::JudgeOrders(Time now) {
  std::vector<std::pair<std::string, std::optional<Status>>> judged;
  for (const auto& [request, order] : orders_) {
    if (!order.made_at || order.failed) continue;
    std::optional<Status> verdict =
        inventory_.Judge(now, order.names, *order.made_at + options_.schedule_within);
    if (!order.wanted->load() && !(verdict && verdict->ok()))
      verdict = Error{ErrorCode::kCancelled, "it is not wanted any more"};
    if (verdict) judged.emplace_back(request, verdict);
  }
  for (const auto& [request, verdict] : judged) {
    const Order& order = orders_.at(request);
    if (!verdict->ok()) {
      Fail(request, verdict->error().WithContext("pool " + order.order.offer));
      continue;
    }
    std::vector<Machine> machines;
    for (const std::string& name : order.names) {
      Machine machine;
      machine.id = name;
      machine.offer = order.order.offer;
      machine.request_id = request;
      machine.tags = order.order.tags;
      machine.state = "running";
      machines.push_back(std::move(machine));
    }
    Finish(request, std::move(machines));
  }
  return !judged.empty();
}

void KubeMachines::Terminate(const std::vector<std::string>& ids,
                             std::function<void(Status)> done) {
  if (ids.empty()) return done(Status::Ok());
  const auto ends = std::make_shared<Ends>();
  ends->left = ids.size();
  ends->done = std::move(done);
  const Time now = clock_->Now();
  for (const std::string& id : ids) {
    const PodEnd end = inventory_.EndOf(now, id);
    if (end.gone || end.asked) {
      if (end.gone) inventory_.Gone(id);
      ends->Count(Status::Ok());
      continue;
    }
    const Status posted = lanes_.Post(kEnd, [this, id, end, ends](const RequestSeams& seams) {
      const KubeDeleted deleted =
          KubeApi(&options_, &identity_, seams).Delete(id, end.uid, end.grace_s);
      return [this, id, ends, deleted] {
        if (deleted.status.ok()) inventory_.Ending(clock_->Now(), id);
        if (deleted.gone) inventory_.Gone(id);
        ends->Count(deleted.status);
      };
    });
    if (!posted.ok()) ends->Count(posted);
  }
}

void KubeMachines::Printed(const std::string& id,
                           const std::function<void(const std::string&)>& done) {
  const WordsAsked asked = inventory_.WordsOf(id);
  const auto read = [this, asked, done](const RequestSeams& seams) {
    const std::string words = KubeApi(&options_, &identity_, seams).LastWords(asked);
    return [done, words] { done(words); };
  };
  if (asked.container.empty() || !lanes_.Post(kWords, read).ok()) done("");
}

void KubeMachines::List(Answer done) {
  Begin();
  lists_.push_back(std::move(done));
  const Time now = clock_->Now();
  Hear(now);
  AnswerLists(now);
}

bool KubeMachines::AnswerLists(Time now) {
  const bool bad = !pods_.trouble.ok() && (!pods_.listed || now >= pods_.since + kKubeStale);
  if (lists_.empty() || (!pods_.listed && !bad)) return false;
  const std::vector<Answer> dones = std::exchange(lists_, {});
  if (bad) {
    for (const Answer& done : dones) done(pods_.trouble.error());
    return true;
  }
  const std::vector<Machine> machines = inventory_.Take(now);
  for (const Answer& done : dones) done(machines);
  return true;
}

void KubeMachines::HearOne(Time now, const KubeNews& news) {
  if (news.kind == KubeKind::kPods) {
    if (pods_.trouble.ok()) pods_.since = now;
    pods_.trouble = news.trouble;
  } else if (!news.trouble.ok() && !std::exchange(told_of_nodes_, true)) {
    LogWarning("machines of the cluster are not watched, so that their ends are not foreseen: ",
               news.trouble.error().message);
  } else if (news.nodes) {
    told_of_nodes_ = false;
  }
  if (news.pods) {
    inventory_.ListedPods(now, identity_.Wall_s(), news.pods->items, news.pods->version);
    pods_.listed = true;
  }
  if (news.nodes) inventory_.ListedNodes(now, news.nodes->items);
  if (news.event) inventory_.Told(now, *news.event);
}

bool KubeMachines::Hear(Time now) {
  const std::vector<KubeNews> news = feed_.Take();
  for (const KubeNews& one : news) HearOne(now, one);
  return !news.empty();
}

void KubeMachines::AskWords(Time now) {
  for (const WordsAsked& asked : inventory_.TakeWords(now)) {
    const auto read = [this, asked](const RequestSeams& seams) {
      const std::string words = KubeApi(&options_, &identity_, seams).LastWords(asked);
      return [this, asked, words] { inventory_.LastWords(asked.uid, words); };
    };
    if (!lanes_.Post(kWords, read).ok()) inventory_.LastWords(asked.uid, "");
  }
}

bool KubeMachines::Step(Time now) {
  bool changed = lanes_.Step();
  changed = Hear(now) || changed;
  AskWords(now);
  if (const auto relics = inventory_.TakeRelics(now); !relics.empty())
    Terminate(relics, [](const Status&) {});
  changed = JudgeOrders(now) || changed;
  return AnswerLists(now) || changed;
}

}  // namespace troupe::kubernetes
