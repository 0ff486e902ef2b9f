#include "autoscaler/ssh_scripts.h"

#include <set>
#include <sstream>
#include <utility>

#include "autoscaler/boot_script.h"

namespace troupe {
namespace {

constexpr std::string_view kAlive = "alive ";
constexpr std::string_view kEndedWord = "ended ";
constexpr std::string_view kWords = "| ";
constexpr std::string_view kWhole = "listed";
constexpr size_t kNamedBytes = 300;

// When a process began tells it from a later one of the same number. A folder per host: their homes
// may be one.
constexpr const char* kFunctions = R"sh(umask 077
began() { sed -n 's/.*) \([^ZX]\)/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
same() { [ -n "$2" ] && [ "$(began "$1")" = "$2" ]; }
)sh";

std::string InFolder(const std::string& fleet) {
  return "cd \"${HOME:?}/.troupe/fleets/\"" + ShellWord(fleet) + "/\"$(uname -n)\"";
}

}  // namespace

ExecCommand SshTo(ExecCommand ssh, const std::string& host) {
  ssh.argv.insert(ssh.argv.end(), {"--", host, "sh -s"});
  return ssh;
}

// The boot script travels as a here-document whose end no line of it can be. Not in the background:
// a shell has such a process ignore SIGINT, and Python then would too.
std::string SshStartScript(const std::string& fleet, const std::string& id,
                           const std::string& boot) {
  std::string end = "END_OF_BOOT";
  while (boot.find(end) != std::string::npos) end += '_';
  const std::string name = ShellWord(id);
  return std::string(kFunctions) + "mkdir -p \"${HOME:?}/.troupe/fleets/\"" + ShellWord(fleet) +
         "/\"$(uname -n)\" && " + InFolder(fleet) + " || exit 1\ncat > " + name + ".sh <<'" + end +
         "'\n" + boot + "\n" + end + "\nexport id=" + name +
         "\n"
         "setsid -f sh -c 'sed \"s/.*) //\" /proc/$$/stat | cut -d\" \" -f20 > \"$id.began\"\n"
         "echo $$ > \"$id.new\"; mv \"$id.new\" \"$id.pid\"; exec sh \"$id.sh\"' "
         "> \"$id.log\" 2>&1 < /dev/null || exit 1\n"
         "tries=0\n"
         "until [ -e \"$id.pid\" ]; do\n"
         "  tries=$((tries + 1)); [ $tries -lt 100 ] || { cat \"$id.log\" >&2; exit 1; }\n"
         "  sleep 0.1\n"
         "done\n";
}

std::string SshListScript(const std::string& fleet) {
  return std::string(kFunctions) + InFolder(fleet) + " 2>/dev/null || { echo " +
         std::string(kWhole) +
         "; exit 0; }\n"
         "for file in *.pid; do\n"
         "  [ -e \"$file\" ] || continue\n"
         "  id=${file%.pid}\n"
         "  if same \"$(cat \"$file\")\" \"$(cat \"$id.began\")\"; then echo \"alive $id\"; "
         "continue; fi\n"
         "  echo \"ended $id\"\n"
         "  tail -c 1000 \"$id.log\" | sed 's/^/| /'\n"
         "  rm -f \"$id.pid\" \"$id.began\" \"$id.sh\" \"$id.log\"\n"
         "  echo\n"
         "done\n"
         "cd ../.. && rmdir " +
         ShellWord(fleet) + "/\"$(uname -n)\" " + ShellWord(fleet) + " 2>/dev/null\necho " +
         std::string(kWhole) + "\n";
}

std::string SshEndScript(const std::string& fleet, const std::string& id, bool force) {
  const std::string name = ShellWord(id);
  return std::string(kFunctions) + InFolder(fleet) + " 2>/dev/null || exit 0\n" + "[ -e " + name +
         ".pid ] || exit 0\npid=$(cat " + name + ".pid)\nsame \"$pid\" \"$(cat " + name +
         ".began)\" || exit 0\n" +
         (force ? "kill -s KILL -- \"-$pid\"\n" : "kill -s TERM \"$pid\"\n");
}

// Folders of a cluster whose name only begins with this one are told apart by the rest: a life is
// hexadecimal. Words of nodes that a living cluster has not yet asked for are left to it: it looks
// far more often than every 10 minutes. A fleet that is over is cleaned at once.
std::string SshCensusScript(const std::string& cluster, const std::set<std::string>& over) {
  std::string fleets;
  for (const std::string& fleet : over) fleets += ShellWord(fleet) + "|";
  return std::string(kFunctions) + "cd \"${HOME:?}/.troupe/fleets\" 2>/dev/null || { echo " +
         std::string(kWhole) +
         "; exit 0; }\n"
         "for fleet in " +
         ShellWord(cluster) +
         "-*; do\n"
         "  case ${fleet#" +
         ShellWord(cluster) +
         "-} in *[!0-9a-f]*) continue;; esac\n"
         "  cd \"$fleet/$(uname -n)\" 2>/dev/null || continue\n"
         "  for file in *.pid; do\n"
         "    [ -e \"$file\" ] || continue\n"
         "    id=${file%.pid}\n"
         "    pid=$(cat \"$file\")\n"
         "    if ! same \"$pid\" \"$(cat \"$id.began\")\"; then\n"
         "      case $fleet in " +
         fleets +
         "'') ;; *) [ -n \"$(find \"$file\" -mmin +10)\" ] || continue;; esac\n"
         "      rm -f \"$id.pid\" \"$id.began\" \"$id.sh\" \"$id.log\"\n"
         "      continue\n"
         "    fi\n"
         "    echo \"alive $fleet $id\"\n"
         "  done\n"
         "  cd \"${HOME:?}/.troupe/fleets\" || exit 1\n"
         "  rmdir \"$fleet/$(uname -n)\" \"$fleet\" 2>/dev/null\n"
         "done\n"
         "echo " +
         std::string(kWhole) + "\n";
}

Result<std::vector<std::pair<std::string, std::string>>> ParseSshCensus(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> nodes;
  std::istringstream lines{std::string(text)};
  bool whole = false;
  for (std::string line; std::getline(lines, line); whole = line == kWhole) {
    std::istringstream words(line);
    std::string alive;
    std::string fleet;
    std::string id;
    if (words >> alive >> fleet >> id && alive + " " == kAlive) nodes.emplace_back(fleet, id);
  }
  if (whole) return nodes;
  return Error{ErrorCode::kCorrupt, "its list of nodes is not whole"};
}

Result<SshListing> ParseSshListing(std::string_view text) {
  SshListing listing;
  std::istringstream lines{std::string(text)};
  std::string ended;
  bool whole = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kAlive)) {
      listing.alive[line.substr(kAlive.size())] = true;
    } else if (line.starts_with(kEndedWord)) {
      ended = line.substr(kEndedWord.size());
      listing.alive[ended] = false;
    } else if (line.starts_with(kWords) && !ended.empty()) {
      const std::string words = line.substr(kWords.size());
      std::string& all = listing.words[ended];
      if (!words.empty()) all += (all.empty() ? "" : "\n") + words;
    }
    whole = line == kWhole;
  }
  if (whole) return listing;
  return Error{ErrorCode::kCorrupt, "its list of nodes is not whole"};
}

std::string ExplainSsh(std::string_view log) {
  while (!log.empty() && (log.back() == '\n' || log.back() == '\r')) log.remove_suffix(1);
  const size_t line = log.rfind('\n');
  if (line != std::string_view::npos) log.remove_prefix(line + 1);
  while (!log.empty() && log.back() == '\r') log.remove_suffix(1);
  std::string said(log.substr(0, kNamedBytes));
  const std::pair<std::string_view, const char*> hints[] = {
      {"Permission denied", "; give that host the public key of one that needs no passphrase here"},
      {"Host key verification failed", "; connect once by hand, to say that you know it"},
      {"REMOTE HOST IDENTIFICATION HAS CHANGED", "; see your known_hosts"},
      {"not resolve", "; is its name right?"},
      {"Connection refused", "; does sshd run there, at this port?"},
      {"timed out", "; is it on, and does a firewall let SSH through?"}};
  for (const auto& [words, hint] : hints) {
    if (said.find(words) != std::string::npos) return said + hint;
  }
  return said.empty() ? "ssh has failed without a word" : said;
}

}  // namespace troupe
