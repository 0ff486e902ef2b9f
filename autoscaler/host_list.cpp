#include "autoscaler/host_list.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

namespace troupe {
namespace {

constexpr size_t kHostBytesMax = 255;

// Nothing else: it becomes an argument of ssh.
bool IsHost(std::string_view text) {
  return !text.empty() && text.size() <= kHostBytesMax && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 ||
                  std::string_view(".-_@:%").find(static_cast<char>(c)) != std::string_view::npos;
         });
}

std::optional<int> SlotsOf(std::string_view text) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && slots >= 1 && slots <= kHostSlotsMax ? std::optional(slots) : std::nullopt;
}

// "gpu2:4", "[fe80::1]:4"; a host with several colons is an address without slots.
void Split(std::string_view word, std::string_view& host, std::string_view& slots) {
  host = word;
  slots = "";
  if (word.starts_with('[')) {
    const size_t end = word.find(']');
    if (end == std::string_view::npos) return;
    host = word.substr(1, end - 1);
    const std::string_view rest = word.substr(end + 1);
    slots = rest.starts_with(':') ? rest.substr(1) : rest;
    return;
  }
  const size_t colon = word.find(':');
  if (colon == std::string_view::npos || word.find(':', colon + 1) != std::string_view::npos)
    return;
  host = word.substr(0, colon);
  slots = word.substr(colon + 1);
  if (slots.empty()) slots = "?";  // A colon asks for a number.
}

// An error says what is wrong with the line.
Result<HostSlots> ParseLine(std::istringstream& words, const std::string& first,
                            int default_slots) {
  const auto wrong = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, what};
  };
  std::string_view host;
  std::string_view slots;
  Split(first, host, slots);
  if (!IsHost(host)) return wrong("\"" + first + "\" is no host");
  HostSlots found{std::string(host), default_slots, ""};
  const auto set = [&](std::string_view text) {
    const std::optional<int> number = SlotsOf(text);
    found.slots = number.value_or(0);
    return number.has_value();
  };
  const std::string range = "slots are a number from 1 to " + std::to_string(kHostSlotsMax);
  if (!slots.empty() && !set(slots)) return wrong(range + ", got \"" + std::string(slots) + "\"");
  for (std::string word; words >> word;) {
    const std::string value = word.substr(std::min(word.find('=') + 1, word.size()));
    if (word.starts_with("slots=")) {
      if (!set(value)) return wrong(range + ", got \"" + value + "\"");
    } else if (word.starts_with("pool=") && !value.empty()) {
      found.pool = value;
    } else {
      return wrong("expected HOST, HOST:SLOTS, slots=N or pool=NAME, got \"" + word + "\"");
    }
  }
  return found;
}

}  // namespace

Result<std::vector<HostSlots>> ParseHosts(std::string_view text, int default_slots,
                                          const std::string& name) {
  std::vector<HostSlots> hosts;
  std::map<std::string, size_t> places;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string first;
    if (!(words >> first)) continue;
    Result<HostSlots> host = ParseLine(words, first, default_slots);
    if (!host.ok())
      return Error{host.error().code,
                   name + ":" + std::to_string(number) + ": " + host.error().message};
    const auto [place, fresh] = places.emplace(host->host, hosts.size());
    if (!fresh) {
      hosts[place->second] = std::move(*host);
      continue;
    }
    if (hosts.size() >= kHostsMax)
      return Error{ErrorCode::kInvalidArgument,
                   name + " has more than " + std::to_string(kHostsMax) + " hosts"};
    hosts.push_back(std::move(*host));
  }
  return hosts;
}

}  // namespace troupe
