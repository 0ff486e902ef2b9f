// The key files of a cluster: one that its nodes and programs have, one that the head alone has.
//
// FILE ("cluster.key") holds the pair by which nodes, drivers and workers prove that they belong to
// the cluster, and the head's public key. It is copied to every host. FILE.head holds the head's
// secret too, and stays where it was made: without it nobody can stand in for the head. A file of
// an earlier release, two lines, is one pair for all and goes on serving as such.
// Thread: any. Limits: files are refused if others than their owner may read them.
#pragma once

#include <string>
#include <vector>

#include "runtime/result.h"
#include "runtime/transport.h"

namespace troupe {

struct ClientKeys {
  CurveKeys own;
  std::string head_key;  // The head's public key.
};
// kNotFound, kPermissionDenied or kCorrupt, with what to do.
[[nodiscard]] Result<ClientKeys> LoadClientKeys(const std::string& path);

struct HeadKeys {
  CurveKeys own;
  CurveKeys client;
  std::vector<std::string> allowed;  // Public keys of clients.
  bool shared = false;               // One pair for all: whoever has it can stand in for the head.
};
// Those of FILE.head; both files are made if there is none. kNotFound if only FILE is here, which
// does not make a head.
[[nodiscard]] Result<HeadKeys> LoadOrCreateHeadKeys(const std::string& path);

// What FILE says.
[[nodiscard]] std::string ClientKeyText(const HeadKeys& keys);
// Makes FILE; one that is there already and says something else is kept, and an error.
[[nodiscard]] Status WriteClientKeys(const std::string& path, const std::string& text);

}  // namespace troupe
