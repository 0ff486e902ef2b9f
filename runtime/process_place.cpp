#include "runtime/process_place.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

namespace troupe {
namespace {

constexpr size_t kStartField = 20;  // Of /proc/PID/stat, counted from the state on.

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "BOOT NAMESPACE"; empty if it is not known.
std::string Machine() {
  std::istringstream boot(FileText("/proc/sys/kernel/random/boot_id"));
  std::string id;
  char space[64] = {};
  const bool known = (boot >> id) && ::readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0;
  return known ? id + " " + space : "";
}

// Of /proc/PID/stat, from the state on; the name before it may hold anything.
std::vector<std::string> StatOf(const std::string& pid) {
  const std::string stat = FileText("/proc/" + pid + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(stat.substr(name_end + 1));
  return {std::istream_iterator<std::string>(words), {}};
}

bool HasEnded(const std::vector<std::string>& stat) { return stat[0] == "Z" || stat[0] == "X"; }

bool IsZombie(const std::string& pid) {
  const std::vector<std::string> stat = StatOf(pid);
  return !stat.empty() && HasEnded(stat);
}

// When the process began, in ticks since the boot; empty if it does not run, or cannot be seen.
std::string StartOf(const std::string& pid) {
  const std::vector<std::string> stat = StatOf(pid);
  return stat.size() < kStartField || HasEnded(stat) ? "" : stat[kStartField - 1];
}

}  // namespace

std::string ProcessPlace() {
  const std::string machine = Machine();
  const std::string pid = std::to_string(::getpid());
  const std::string start = StartOf(pid);
  return machine.empty() || start.empty() ? "" : machine + " " + pid + " " + start;
}

bool SurelyEnded(const std::string& place) {
  const std::string machine = Machine();
  if (machine.empty() || !place.starts_with(machine + " ")) return false;
  std::istringstream words(place.substr(machine.size() + 1));
  std::string pid;
  std::string start;
  if (!(words >> pid >> start)) return false;
  // A pid is digits: the text comes from another process, and becomes part of a path.
  int number = 0;
  const char* const digits_end = pid.data() + pid.size();
  const auto [end, problem] = std::from_chars(pid.data(), digits_end, number);
  if (end != digits_end || problem != std::errc() || number <= 0) return false;
  const std::string now = StartOf(pid);
  if (!now.empty()) return now != start;
  // Gone, a zombie, or hidden from us, as for want of descriptors.
  const bool there = ::kill(number, 0) == 0 || errno != ESRCH;
  return !there || IsZombie(pid);
}

}  // namespace troupe
