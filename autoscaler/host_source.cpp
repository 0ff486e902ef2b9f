#include "autoscaler/host_source.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace troupe {

std::optional<std::vector<HostSlots>> HostSource::Step(Time now) {
  if (now >= look_at_ && !asking_) {
    look_at_ = now + options_.interval;
    if (!options_.discovery.argv.empty()) {
      asking_ = true;
      run_(options_.discovery, "", [this](const Result<ExecReply>& reply) { TakeReply(reply); });
    } else if (!options_.file.empty()) {
      std::ifstream in(options_.file);
      if (in.good()) {
        Take({std::istreambuf_iterator<char>(in), {}}, options_.file);
      } else {
        status_ = Error{ErrorCode::kNotFound,
                        "cannot read the hosts in " + options_.file + ": " + std::strerror(errno)};
      }
    } else {
      std::string text;
      for (const std::string& line : options_.lines) text += line + "\n";
      Take(text, "ssh.hosts");
    }
  }
  return std::exchange(fresh_, std::nullopt);
}

void HostSource::TakeReply(const Result<ExecReply>& reply) {
  asking_ = false;
  const std::string& name = options_.discovery.argv.front();
  if (!reply.ok()) {
    status_ = reply.error().WithContext("host discovery");
  } else if (reply->code != 0) {
    status_ = Error{ErrorCode::kUnavailable, "host discovery: " + name + " ended with status " +
                                                 std::to_string(reply->code) +
                                                 (reply->log.empty() ? "" : ": " + reply->log)};
  } else {
    Take(reply->out, name);
  }
}

void HostSource::Take(const std::string& text, const std::string& name) {
  status_ = Status::Ok();
  if (told_ && text == text_) return;
  Result<std::vector<HostSlots>> hosts = ParseHosts(text, options_.default_slots, name);
  if (!hosts.ok()) {
    status_ = hosts.error();
    return;
  }
  text_ = text;
  told_ = true;
  fresh_ = std::move(*hosts);
}

}  // namespace troupe
