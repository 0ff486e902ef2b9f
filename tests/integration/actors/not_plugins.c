/* Shared objects that are no plugins of this release, one by each definition. */
#include <stddef.h>

#include <troupe/plugin_abi.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(WITHOUT_ENTRY)
EXPORT int something_else(void);
EXPORT int something_else(void) { return 1; }
#else
static void host(const char* path) { (void)path; }

#if defined(WITH_MISSING_SYMBOL)
extern int nobody_defines_this(void);
#define MAGIC (TROUPE_PLUGIN_MAGIC + (uint32_t)nobody_defines_this())
#elif defined(OF_SOMETHING_ELSE)
#define MAGIC 1u
#else
#define MAGIC TROUPE_PLUGIN_MAGIC
#endif
#if defined(OF_OTHER_ABI)
#define ABI (TROUPE_PLUGIN_ABI + 1)
#else
#define ABI TROUPE_PLUGIN_ABI
#endif

EXPORT const troupe_plugin_info* troupe_plugin(void);
EXPORT const troupe_plugin_info* troupe_plugin(void) {
  static troupe_plugin_info info;
  info.magic = MAGIC;
  info.abi = ABI;
  info.release = "0.0.9";
  info.protocol = "0123456789ab";
  info.describes = "actors Till; tasks none";
  info.host = host;
  return &info;
}
#endif
