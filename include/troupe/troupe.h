// The C++ actor API: one header to include.
//
//   class Counter { public: explicit Counter(int start); int Add(int by); ... };
//   TROUPE_ACTOR(Counter, (int), Add);
//
//   int main() {
//     // In a process that the cluster started as a worker, Init never returns.
//     troupe::Cluster cluster = troupe::Init().value();
//     // Placed by the scheduler, in a process of its own.
//     auto counter = cluster.Spawn<Counter>({}, 10).value();
//     int sum = counter.Call(&Counter::Add, 5).Get().value();
//   }
//
// The same executable is driver and worker: the cluster starts it again for every actor, and Init
// hosts the actor there. Types may also lie in a plugin: <troupe/plugin.h>. What can be described:
// actors/api/actor_type.h. What a runtime can do: actors/api/cluster.h. What a running method can
// ask: actors/api/context.h.
// Thread: any.
// Owns: the last copy of a Cluster ends its embedded cluster and every actor spawned through it
// that is not detached.
#pragma once

#include <map>
#include <string>

#include "actors/api/actor_macros.h"
#include "actors/api/cluster.h"

#ifndef TROUPE_INSTALLED_BIN_DIR  // The CMake package of an installed Troupe says where it is.
#define TROUPE_INSTALLED_BIN_DIR ""
#endif

namespace troupe {

struct InitOptions {
  std::string address;   // Empty: an embedded cluster of this machine. Else "HOST:PORT" of a head,
                         // or what the environment variable TROUPE_ADDRESS says.
  std::string key_file;  // The cluster's, for an address; or what TROUPE_KEY_FILE names, or
                         // cluster.key in TROUPE_HOME (~/.troupe).
  // Where the daemons are; empty: $TROUPE_BIN_DIR, beside this program, in the bin folder of the
  // prefix that it or libtroupe_c.so is in, in that of the Troupe it was built with, then PATH.
  std::string bin_dir;
  std::map<std::string, double> resources;  // Embedded: what the machine offers.
  // Where other processes can call actors of this one; empty: the address that reaches the head.
  std::string data_address;
  std::string log_dir;       // Embedded: keep the daemons' and the actors' output here.
  bool print_output = true;  // What actors print goes to this process's stderr.
  // Its actors that are not detached end when the head does not hear this process for so long.
  Duration driver_silence = seconds(3600);
};

namespace internal {
// `installed`: where the daemons of this program's Troupe were when it was built.
Result<Cluster> Start(const InitOptions& options, actors::TypeTable types,
                      const std::string& installed = "");
// If this process was started as a worker: hosts its actor and exits the process.
void HostIfWorker(const actors::TypeTable& types);
}  // namespace internal

// Call first thing in main. In a process that the cluster started to host an actor it does so and
// never returns. Knows what TROUPE_ACTOR and TROUPE_TASK have described in this program, and the
// types T, whose ActorTraits were written by hand.
template <actors::DescribedActor... T>
[[nodiscard]] Result<Cluster> Init(const InitOptions& options = {}) {
  actors::TypeTable types = actors::RegisteredTypes();
  (types.AddActor<T>(), ...);
  internal::HostIfWorker(types);
  return internal::Start(options, std::move(types), TROUPE_INSTALLED_BIN_DIR);
}

}  // namespace troupe
