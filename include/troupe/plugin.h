// Plugins: actor types and tasks in a shared object that workers load, so that a driver need not be
// built with them, and need not be C++.
//
//   // till.cpp, built by troupe_add_plugin(till SOURCES till.cpp):
//   #include <troupe/plugin.h>
//   class Till { ... };
//   TROUPE_ACTOR(Till, (int), Sell);
//   TROUPE_PLUGIN();
//
//   // Any driver, with <troupe/dynamic.h>:
//   auto till = troupe::SpawnDynamic(cluster, {.plugin = "/opt/shop/till.so"}, "Till", 10).value();
//   int sold = till.CallNamed<int>("Sell", 3).Get().value();
//
// The path is one on the nodes: the plugin must lie there on every node where its actors may be
// placed. `troupe-worker --plugin PATH --check` says what a plugin describes. One that cannot be
// loaded, or is of another release, ends the spawn with an error that says so.
// Why a plugin brings its own runtime: docs/decisions/0015-plugins-bring-their-runtime.md.
// Thread: the main thread of a worker process.
#pragma once

#include <string>

#include <troupe/plugin_abi.h>
#include <troupe/troupe.h>

namespace troupe {

// The release of Troupe that this code was built from, "0.1.0", and the digest of the messages that
// its processes exchange. Processes with equal digests understand each other.
[[nodiscard]] const char* ReleaseName();
[[nodiscard]] const char* ProtocolDigest();

namespace internal {

[[nodiscard]] troupe_plugin_info PluginInfo(const std::string& describes,
                                            void (*host)(const char* path));
// Hosts the actor that this process is to host, and ends the process.
[[noreturn]] void HostPlugin(const actors::TypeTable& types, const char* path);

template <actors::DescribedActor... T>
actors::TypeTable PluginTypes() {
  actors::TypeTable types = actors::RegisteredTypes();
  (types.AddActor<T>(), ...);
  return types;
}

template <actors::DescribedActor... T>
const troupe_plugin_info* DescribePlugin() {
  static const std::string describes = PluginTypes<T...>().Describe();
  static const troupe_plugin_info info =
      PluginInfo(describes, [](const char* path) { HostPlugin(PluginTypes<T...>(), path); });
  return &info;
}

}  // namespace internal
}  // namespace troupe

// At global scope in one source of a plugin. Its arguments are types whose ActorTraits were written
// by hand; what TROUPE_ACTOR and TROUPE_TASK have described in the plugin is known.
#define TROUPE_PLUGIN(...)                                                                      \
  extern "C" __attribute__((visibility("default"))) const troupe_plugin_info* troupe_plugin() { \
    return troupe::internal::DescribePlugin<__VA_ARGS__>();                                     \
  }                                                                                             \
  static_assert(true, "so that a semicolon may follow")
