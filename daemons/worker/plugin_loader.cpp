#include "daemons/worker/plugin_loader.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <troupe/plugin.h>

namespace troupe::daemons {
namespace {

constexpr const char* kSymbol = "troupe_plugin";
constexpr char kElfMagic[] = {0x7f, 'E', 'L', 'F'};

bool IsElf(const std::string& path) {
  char magic[sizeof kElfMagic] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic, sizeof magic) && std::memcmp(magic, kElfMagic, sizeof magic) == 0;
}

// Says more than the linker would of a file that is no shared object at all.
Status CheckFile(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{ErrorCode::kNotFound,
                 "the plugin " + path + " cannot be read (" + std::strerror(errno) +
                     "); it must lie at this path on every node where its actors may be placed"};
  }
  if (S_ISREG(info.st_mode) && IsElf(path)) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument, path +
                                                " is no plugin: it is not a shared object; build "
                                                "one with troupe_add_plugin"};
}

std::string Text(const char* text) { return text == nullptr ? "(unknown)" : text; }

Status CheckInfo(const std::string& path, const troupe_plugin_info* info) {
  if (info == nullptr || info->magic != TROUPE_PLUGIN_MAGIC) {
    return Error{ErrorCode::kInvalidArgument,
                 path + " is no plugin: its " + kSymbol + " was not written by TROUPE_PLUGIN"};
  }
  const std::string cure = "; build it again with the release of Troupe that the cluster runs";
  // Nothing after this field is where we would look for it.
  if (info->abi != TROUPE_PLUGIN_ABI) {
    return Error{ErrorCode::kMismatch, "the plugin " + path + " has ABI version " +
                                           std::to_string(info->abi) + ", this is version " +
                                           std::to_string(TROUPE_PLUGIN_ABI) + " of Troupe " +
                                           ReleaseName() + cure};
  }
  const std::string protocol = Text(info->protocol);
  if (protocol == ProtocolDigest() && info->host != nullptr) return Status::Ok();
  return Error{ErrorCode::kMismatch, "the plugin " + path + " was built with Troupe " +
                                         Text(info->release) + " (messages " + protocol +
                                         "), this is " + ReleaseName() + " (messages " +
                                         ProtocolDigest() + ")" + cure};
}

}  // namespace

Result<const troupe_plugin_info*> LoadPlugin(const std::string& path) {
  if (const Status s = CheckFile(path); !s.ok()) return s.error();
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::kUnavailable, "the plugin " + path +
                                              " cannot be loaded: " + Text(::dlerror()) +
                                              "; link it with all that it uses, and install that "
                                              "on every node"};
  }
  void* const symbol = ::dlsym(library, kSymbol);
  if (symbol == nullptr) {
    return Error{ErrorCode::kInvalidArgument, path + " is no plugin: it does not export " +
                                                  kSymbol +
                                                  "; write TROUPE_PLUGIN() in one of its sources"};
  }
  const troupe_plugin_info* const info = reinterpret_cast<troupe_plugin_function>(symbol)();
  if (const Status s = CheckInfo(path, info); !s.ok()) return s.error();
  return info;
}

}  // namespace troupe::daemons
