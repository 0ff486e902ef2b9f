#include "autoscaler/slurm_machines.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

namespace troupe {
namespace {

// Job, state, time left, where it runs, why it waits, comment: the last may have any text.
constexpr const char* kSlurmFormat = "%A|%T|%L|%N|%r|%k";
constexpr size_t kSlurmFields = 6;
constexpr std::string_view kComment = "troupe";
constexpr const char* kRequest = "request";
constexpr const char* kOffer = "offer";
constexpr const char* kNodeName = "troupe-node";  // The tag.
constexpr size_t kSaidBytes = 400;

std::optional<int64_t> NumberOf(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= 0 ? std::optional(number) : std::nullopt;
}

// "troupe offer=spot request=t-1 troupe-node=spot-1": no value has a blank.
std::string CommentOf(const MachineOrder& order) {
  std::map<std::string, std::string> all = order.tags;
  all[kRequest] = order.request_id;
  all[kOffer] = order.offer;
  std::string comment(kComment);
  for (const auto& [name, value] : all) comment += " " + name + "=" + value;
  return comment;
}

std::optional<std::map<std::string, std::string>> TagsOf(const std::string& comment) {
  std::istringstream words(comment);
  std::string word;
  if (!(words >> word) || word != kComment) return std::nullopt;
  std::map<std::string, std::string> tags;
  while (words >> word) {
    const size_t mark = word.find('=');
    if (mark != std::string::npos) tags[word.substr(0, mark)] = word.substr(mark + 1);
  }
  return tags;
}

std::string StateOfJob(const std::string& state) {
  if (state == "PENDING" || state == "CONFIGURING" || state == "RESV_DEL_HOLD") return "pending";
  if (state == "RUNNING" || state == "SUSPENDED" || state == "RESIZING") return "running";
  return "stopping";
}

}  // namespace

std::optional<double> ParseSlurmTime(std::string_view text) {
  double seconds = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto days = NumberOf(text.substr(0, dash));
    if (!days) return std::nullopt;
    seconds = static_cast<double>(*days);
    text.remove_prefix(dash + 1);
    seconds *= 24;
    const size_t colon = text.find(':');
    const auto hours = NumberOf(text.substr(0, colon));
    if (!hours || colon == std::string_view::npos) return std::nullopt;
    seconds += static_cast<double>(*hours);
    text.remove_prefix(colon + 1);
  }
  int parts = 0;
  while (true) {
    const size_t colon = text.find(':');
    const auto part = NumberOf(text.substr(0, colon));
    if (!part) return std::nullopt;
    seconds = seconds * 60 + static_cast<double>(*part);
    ++parts;
    if (colon == std::string_view::npos) break;
    text.remove_prefix(colon + 1);
  }
  return parts >= 2 && parts <= 3 ? std::optional(seconds) : std::nullopt;
}

Result<std::vector<Machine>> ParseSlurmQueue(std::string_view text, Duration notice) {
  std::vector<Machine> machines;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; fields.size() + 1 < kSlurmFields && std::getline(parts, part, '|');)
      fields.push_back(part);
    std::string comment;
    std::getline(parts, comment);
    if (fields.size() + 1 != kSlurmFields || !NumberOf(fields[0]))
      return Error{ErrorCode::kCorrupt, "squeue has printed \"" + line.substr(0, 100) + "\""};
    auto tags = TagsOf(comment);
    if (!tags) continue;
    Machine machine;
    machine.id = fields[0];
    machine.state = StateOfJob(fields[1]);
    machine.request_id = std::exchange((*tags)[kRequest], "");
    machine.offer = std::exchange((*tags)[kOffer], "");
    machine.tags = std::move(*tags);
    machine.detail = fields[1] + (fields[3].empty() ? " (" + fields[4] + ")" : " on " + fields[3]);
    const std::optional<double> left = ParseSlurmTime(fields[2]);
    if (fields[1] == "RUNNING" && left && *left <= ToSeconds(notice)) machine.preempted_in_s = left;
    machines.push_back(std::move(machine));
  }
  return machines;
}

Error SlurmError(const std::string& command, const ExecReply& reply) {
  std::string said = reply.log.substr(0, kSaidBytes);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  const auto says = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return said.find(word) != std::string::npos; });
  };
  const std::string what =
      said.empty() ? command + " ended with status " + std::to_string(reply.code) : said;
  if (says({"Unable to contact", "Socket timed out", "Communication connection failure"}))
    return {ErrorCode::kUnavailable, what + "; is slurmctld up, and can this host reach it?"};
  // Limits come and go with what else is in the queue.
  if (says({"QOS", "job submit limit", "Job violates", "AssocMax", "Reached"}))
    return {ErrorCode::kResourceExhausted, "no capacity: " + what};
  if (says({"nvalid", "nrecognized", "not available", "not permitted", "not found",
            "ccess/permission denied", "not allowed"}))
    return {ErrorCode::kInvalidArgument, what + "; see slurm.options and pools[].sbatch"};
  return {ErrorCode::kUnavailable, what};
}

void SlurmMachines::Ask(std::vector<std::string> argv, std::string input, ExecDone done) {
  ExecCommand command;
  command.argv = std::move(argv);
  command.folder = options_.folder;
  command.limit = options_.limit;
  if (run_) return run_(command, std::move(input), std::move(done));
  pool_.Run(std::move(command), std::move(input), std::move(done));
}

void SlurmMachines::Create(const MachineOrder& order, Answer done) {
  const auto node = order.tags.find(kNodeName);
  const std::string name = node == order.tags.end() ? "node" : node->second;
  std::vector<std::string> argv = {"sbatch",
                                   "--parsable",
                                   "--no-requeue",
                                   "--nodes=1",
                                   "--ntasks=1",
                                   "--job-name=troupe-" + name,
                                   "--comment=" + CommentOf(order)};
  argv.insert(argv.end(), options_.options.begin(), options_.options.end());
  if (const auto more = options_.of_offer.find(order.offer); more != options_.of_offer.end())
    argv.insert(argv.end(), more->second.begin(), more->second.end());
  Ask(std::move(argv), order.user_data, [done = std::move(done)](const Result<ExecReply>& reply) {
    if (!reply.ok()) return done(reply.error());
    if (reply->code != 0) return done(SlurmError("sbatch", *reply));
    // "12" or "12;cluster".
    const std::string id = reply->out.substr(0, reply->out.find_first_of(";\n"));
    if (!NumberOf(id))
      return done(Error{ErrorCode::kCorrupt, "sbatch has printed \"" + id.substr(0, 100) + "\""});
    Machine machine;
    machine.id = id;
    done(std::vector<Machine>{machine});
  });
}

void SlurmMachines::List(Answer done) {
  Ask({"squeue", "--me", "--noheader", "--format", kSlurmFormat}, "",
      [done = std::move(done), notice = options_.notice](const Result<ExecReply>& reply) {
        if (!reply.ok()) return done(reply.error());
        if (reply->code != 0) return done(SlurmError("squeue", *reply));
        done(ParseSlurmQueue(reply->out, notice));
      });
}

void SlurmMachines::Terminate(const std::vector<std::string>& ids,
                              std::function<void(Status)> done) {
  std::vector<std::string> argv = {"scancel", "--quiet"};
  argv.insert(argv.end(), ids.begin(), ids.end());
  Ask(std::move(argv), "", [done = std::move(done)](const Result<ExecReply>& reply) {
    if (!reply.ok()) return done(reply.error());
    const bool gone = reply->log.find("Invalid job id") != std::string::npos ||
                      reply->log.find("already completing or completed") != std::string::npos;
    done(reply->code == 0 || gone ? Status::Ok() : Status(SlurmError("scancel", *reply)));
  });
}

}  // namespace troupe
