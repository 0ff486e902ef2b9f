// troupe-worker: hosts an actor of a plugin. Nodes start it; by hand it checks plugins.
//
// It has a runtime of its own, but only to tell the head of a plugin that cannot be loaded: what
// has been loaded hosts with the runtime that it brings.
#include <CLI/CLI.hpp>
#include <iostream>

#include "daemons/client/actor_process.h"
#include "daemons/worker/plugin_loader.h"

int main(int argc, char** argv) {
  using namespace troupe;
  std::string path;
  bool check = false;
  CLI::App app{"Hosts an actor of a plugin. Started by nodes; with --check by people."};
  app.add_option(actors::kPluginFlag, path, "The plugin, a shared object")->required();
  app.add_flag("--check", check, "Only say what the plugin describes, or why it cannot be loaded");
  CLI11_PARSE(app, argc, argv);
  const auto fail = [](const std::string& why) {
    std::cerr << "troupe-worker: " << why << "\n";
    return 1;
  };
  if (!check && !daemons::InActorProcess())
    return fail("only nodes start it to host an actor; to check a plugin, add --check");
  const Result<const troupe_plugin_info*> plugin = daemons::LoadPlugin(path);
  if (check) {
    if (!plugin.ok()) return fail(plugin.error().message);
    std::cout << path << ": Troupe " << (*plugin)->release << ", " << (*plugin)->describes << "\n";
    return 0;
  }
  if (!plugin.ok()) daemons::RefuseAssigned(plugin.error());
  (*plugin)->host(path.c_str());
  return 1;  // It does not return.
}
