#include "autoscaler/provider_check.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "autoscaler/exec_protocol.h"
#include "runtime/process.h"

namespace troupe {
namespace {

using Outcome = ProviderFinding::Outcome;

// Between two looks at the list.
constexpr Duration kLookAgain = milliseconds(500);

// What the nodes of a check run. They end themselves if nobody else does.
constexpr const char* kScript = "#!/bin/sh\nexec sleep 600\n";

class Check {
 public:
  explicit Check(const ProviderCheckOptions& options)
      : options_(options), run_id_("troupe-check-" + RandomId()) {}

  std::vector<ProviderFinding> Run() {
    Try("offers says what there is", [&] { return Offers(); });
    Try("list answers", [&] { return List().status; });
    Try("create makes a node", [&] { return Create("a", &first_); });
    Try("list shows it, with its request and its tags", [&] { return Listed(first_, "a"); });
    Try("the same request again makes nothing new", [&] { return SameAgain(); });
    Try("another request makes another node", [&] { return Another(); });
    Try("create of several makes as many at most", [&] { return Several(); });
    Try("an offer that there is not is refused for good", [&] { return NoSuchOffer(); });
    Try("a verb that there is not is no success", [&] { return NoSuchVerb(); });
    Try("terminate ends a node", [&] { return Terminates(); });
    Try("terminate of a node that has ended succeeds", [&] { return AgainEnded(); });
    Try("terminate of an unknown node succeeds", [&] { return Terminate({run_id_ + "-no-node"}); });
    Try("price says what the offers cost", [&] { return Prices(); });
    Try("nothing that was made is left", [&] { return NothingLeft(); });
    return std::move(findings_);
  }

 private:
  struct Nodes {
    Status status = Status::Ok();
    std::vector<Machine> mine;  // What carries this check's tag.
  };

  static Status Failed(const std::string& why) { return Error{ErrorCode::kInternal, why}; }
  // A check that cannot be made without an earlier one.
  static Status Skipped(const std::string& why) { return Error{ErrorCode::kNotFound, why}; }

  template <class F>
  void Try(const std::string& what, F&& check) {
    const Status status = check();
    ProviderFinding finding{what, Outcome::kPassed, ""};
    if (!status.ok()) {
      const bool skipped = status.error().code == ErrorCode::kNotFound && !ran_;
      finding.outcome = skipped ? Outcome::kSkipped : Outcome::kFailed;
      finding.detail = status.error().message;
    }
    ran_ = false;
    findings_.push_back(std::move(finding));
  }

  Result<ExecReply> Ask(const std::string& request) {
    ran_ = true;
    return options_.run(options_.command, request);
  }
  Result<std::string> Answer(std::string_view verb, const std::string& request) {
    Result<ExecReply> reply = Ask(request);
    if (!reply.ok()) return reply.error();
    if (const Status s = ExecStatus(verb, reply->code, reply->log); !s.ok()) return s.error();
    return std::move(reply->out);
  }

  Status Offers() {
    const Result<std::string> reply = Answer("offers", ExecRequest("offers"));
    if (!reply.ok()) return reply.error();
    const Result<std::vector<ExecOffer>> offers = ParseExecOffers(*reply);
    if (!offers.ok()) return offers.error();
    if (offers->empty()) return Failed("there is none");
    offer_ = options_.offer.empty() ? offers->front().name : options_.offer;
    const bool known = std::any_of(offers->begin(), offers->end(),
                                   [&](const ExecOffer& o) { return o.name == offer_; });
    return known ? Status::Ok() : Failed("none is called " + offer_);
  }

  Nodes List() {
    const Result<std::string> reply = Answer("list", ExecRequest("list"));
    if (!reply.ok()) return {reply.error(), {}};
    Result<std::vector<Machine>> nodes = ParseExecNodes(*reply);
    if (!nodes.ok()) return {nodes.error(), {}};
    std::erase_if(*nodes, [&](const Machine& node) {
      const auto tag = node.tags.find("troupe-check");
      return tag == node.tags.end() || tag->second != run_id_;
    });
    for (const Machine& node : *nodes) made_.insert(node.id);
    return {Status::Ok(), std::move(*nodes)};
  }

  // The ids of what it has made.
  Result<std::vector<std::string>> Made(const std::string& request, const std::string& offer,
                                        int count) {
    MachineOrder create{
        run_id_ + "-" + request, offer, count, kScript, {{"troupe-check", run_id_}}};
    const Result<std::string> reply = Answer("create", ExecCreateRequest(create));
    if (!reply.ok()) return reply.error();
    const Result<std::vector<Machine>> nodes = ParseExecNodes(*reply);
    if (!nodes.ok()) return nodes.error();
    std::vector<std::string> ids;
    for (const Machine& node : *nodes) {
      made_.insert(node.id);
      ids.push_back(node.id);
    }
    return ids;
  }

  Status Create(const std::string& request, std::string* id) {
    if (offer_.empty()) return Skipped("there is no offer to take");
    const Result<std::vector<std::string>> made = Made(request, offer_, 1);
    if (!made.ok()) return made.error();
    if (made->size() != 1)
      return Failed("it made " + std::to_string(made->size()) + " nodes, one was asked for");
    *id = made->front();
    return Status::Ok();
  }

  // Looks until `there` of the nodes, or a while has passed.
  template <class F>
  Status Until(F&& there, const std::string& why) {
    Duration waited = Duration::zero();
    for (;;) {
      const Nodes nodes = List();
      if (!nodes.status.ok()) return nodes.status;
      if (there(nodes.mine)) return Status::Ok();
      if (waited >= options_.settles)
        return Failed(why + " after " + std::to_string(static_cast<int>(ToSeconds(waited))) + " s");
      if (options_.sleep) {
        options_.sleep(kLookAgain);
      } else {
        std::this_thread::sleep_for(kLookAgain);
      }
      waited += kLookAgain;
    }
  }

  Status Listed(const std::string& id, const std::string& request) {
    if (id.empty()) return Skipped("no node was made");
    const std::string wanted = run_id_ + "-" + request;
    std::string other;
    Status shown = Until(
        [&](const std::vector<Machine>& nodes) {
          for (const Machine& node : nodes) {
            if (node.id == id) other = node.request_id;
          }
          return other == wanted;
        },
        "it is not shown with its id, tags and request_id");
    if (!shown.ok() && !other.empty()) return Failed("it is shown with request_id " + other);
    return shown;
  }

  Status SameAgain() {
    if (first_.empty()) return Skipped("no node was made");
    std::string again;
    if (const Status s = Create("a", &again); !s.ok()) return s;
    if (again != first_) return Failed("it answered with " + again + ", not with " + first_);
    const Nodes nodes = List();
    if (!nodes.status.ok()) return nodes.status;
    const auto count =
        std::count_if(nodes.mine.begin(), nodes.mine.end(),
                      [&](const Machine& node) { return node.request_id == run_id_ + "-a"; });
    return count <= 1 ? Status::Ok()
                      : Failed("the list has " + std::to_string(count) + " nodes of it");
  }

  Status Another() {
    if (first_.empty()) return Skipped("no node was made");
    std::string second;
    Status s = Create("b", &second);
    if (!s.ok() && s.error().code == ErrorCode::kResourceExhausted)
      return Status::Ok();  // No room.
    if (!s.ok()) return s;
    return second != first_ ? Status::Ok() : Failed("it is the same node, " + first_);
  }

  Status Several() {
    if (offer_.empty()) return Skipped("there is no offer to take");
    const Result<std::vector<std::string>> made = Made("c", offer_, 2);
    if (!made.ok() && made.error().code == ErrorCode::kResourceExhausted) return Status::Ok();
    if (!made.ok()) return made.error();
    const std::set<std::string> different(made->begin(), made->end());
    if (different.size() != made->size()) return Failed("it names a node twice");
    return made->size() <= 2
               ? Status::Ok()
               : Failed("it made " + std::to_string(made->size()) + ", two were asked for");
  }

  Status NoSuchOffer() {
    const Result<std::vector<std::string>> made = Made("d", run_id_ + "-no-offer", 1);
    if (made.ok()) return Failed("it made " + std::to_string(made->size()) + " nodes of it");
    if (made.error().code == ErrorCode::kInvalidArgument) return Status::Ok();
    return Failed("status 12 is expected, so that nobody tries it again; " + made.error().message);
  }

  Status NoSuchVerb() {
    const Result<ExecReply> reply = Ask(ExecRequest("troupe-check-verb"));
    if (!reply.ok()) return reply.error();
    return reply->code != 0 ? Status::Ok() : Failed("it ended with status 0");
  }

  Status Terminate(const std::vector<std::string>& ids) {
    const Result<std::string> reply = Answer("terminate", ExecTerminateRequest(ids));
    return reply.ok() ? ParseExecDone(*reply) : Status(reply.error());
  }

  static bool Has(const std::vector<Machine>& nodes, const std::string& id) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const Machine& node) { return node.id == id; });
  }

  Status Terminates() {
    if (first_.empty()) return Skipped("no node was made");
    if (const Status s = Terminate({first_}); !s.ok()) return s;
    return Until([&](const std::vector<Machine>& nodes) { return !Has(nodes, first_); },
                 first_ + " is still listed");
  }

  Status AgainEnded() { return first_.empty() ? Skipped("no node was made") : Terminate({first_}); }

  Status Prices() {
    const Result<std::string> reply = Answer("price", ExecRequest("price"));
    if (!reply.ok()) return reply.error();
    const auto prices = ParseExecPrices(*reply);
    if (!prices.ok()) return prices.error();
    if (offer_.empty() || prices->contains(offer_)) return Status::Ok();
    return Failed("it has no price of " + offer_);
  }

  // One by one: a supplier that refuses one of several may leave the others.
  Status NothingLeft() {
    const Nodes listed = List();  // With what was made and not told.
    std::string refused;
    for (const std::string& id : std::set<std::string>(made_)) {
      const Status ended = Terminate({id});
      if (!ended.ok() && Has(listed.mine, id)) refused = "; " + ended.error().message;
    }
    Status gone =
        Until([](const std::vector<Machine>& nodes) { return nodes.empty(); }, "nodes are listed");
    if (gone.ok()) return gone;
    return Failed(gone.error().message + refused + "; see to these yourself: " + Names());
  }

  [[nodiscard]] std::string Names() const {
    std::string names;
    for (const std::string& id : made_) names += (names.empty() ? "" : ", ") + id;
    return names;
  }

  const ProviderCheckOptions& options_;
  const std::string run_id_;
  std::vector<ProviderFinding> findings_;
  bool ran_ = false;  // The present check has asked the program.
  std::string offer_;
  std::string first_;
  std::set<std::string> made_;
};

}  // namespace

std::vector<ProviderFinding> CheckProvider(const ProviderCheckOptions& options) {
  return Check(options).Run();
}

Result<std::string> ReportOf(const std::vector<ProviderFinding>& findings) {
  std::string report;
  size_t failed = 0;
  size_t skipped = 0;
  for (const ProviderFinding& finding : findings) {
    const char* mark = "ok     ";
    if (finding.outcome == Outcome::kFailed) mark = "FAILED ";
    if (finding.outcome == Outcome::kSkipped) mark = "skipped";
    failed += finding.outcome == Outcome::kFailed ? 1 : 0;
    skipped += finding.outcome == Outcome::kSkipped ? 1 : 0;
    report += std::string(mark) + "  " + finding.what;
    report += (finding.detail.empty() ? "" : ": " + finding.detail) + "\n";
  }
  report += std::to_string(findings.size() - failed - skipped) + " passed, " +
            std::to_string(failed) + " failed, " + std::to_string(skipped) + " skipped\n";
  if (failed + skipped > 0) return Error{ErrorCode::kInternal, report};
  return report;
}

}  // namespace troupe
