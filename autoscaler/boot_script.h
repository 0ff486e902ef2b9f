// The shell script that makes a machine a node of a cluster: what a supplier hands to a machine to
// run, and what is run over SSH. It installs nothing but what the file's `nodes.setup` says.
//
// Pure.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace troupe {

struct BootPlan {
  std::map<std::string, std::string> env;  // Workers inherit it from their node.
  std::vector<std::string> setup;          // Commands of a shell; one that fails ends the boot.
  std::string program;                     // troupe-node; empty: looked for.
  std::string here;                        // Where it is on this host: tried first.
  std::vector<std::string> arguments;      // Of troupe-node.
  std::string join_token;                  // Empty: the head is one of this host.
};

[[nodiscard]] std::string BootScript(const BootPlan& plan);
// One word for a shell.
[[nodiscard]] std::string ShellWord(const std::string& text);

}  // namespace troupe
