#include "autoscaler/boot_script.h"

namespace troupe {

std::string BootScript(const BootPlan& plan) {
  std::string script = "#!/bin/sh\nset -e\n";
  for (const auto& [name, value] : plan.env)
    script += "export " + name + "=" + ShellWord(value) + "\n";
  for (const std::string& command : plan.setup) script += command + "\n";
  if (!plan.program.empty()) {
    script += "node=" + ShellWord(plan.program) + "\n";
  } else {
    // As it was found here, as an installed package has it, as a wheel has it.
    script += "node=" + ShellWord(plan.here + "/troupe-node") +
              "\n"
              "[ -x \"$node\" ] || node=$(command -v troupe-node) || node=$(python3 -c '\n"
              "import troupe._cluster as c; print(c.find_bin_dir() + \"/troupe-node\")') || node=\n"
              "[ -x \"$node\" ] || { echo \"there is no troupe-node on $(uname -n): install Troupe "
              "there, with nodes.setup or in its image, or name it with nodes.program\" >&2; "
              "exit 1; }\n";
  }
  // Not an argument: those are for everybody of the host to read.
  if (!plan.join_token.empty())
    script += "export TROUPE_JOIN_TOKEN=" + ShellWord(plan.join_token) + "\n";
  script += "exec \"$node\"";
  for (const std::string& word : plan.arguments) script += " " + ShellWord(word);
  return script + "\n";
}

std::string ShellWord(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace troupe
