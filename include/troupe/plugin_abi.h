/* What a plugin and the program that loads it know of each other: one C function and this struct.
 *
 * A plugin is a shared object that exports `troupe_plugin` and nothing else. It brings its own
 * runtime, so nothing of C++ crosses this line: `host` takes the process over. TROUPE_PLUGIN
 * (<troupe/plugin.h>) and TROUPE_C_PLUGIN (<troupe/c.h>) write the function.
 * Thread: the main thread of a process that a node has started.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first two fields of the struct are for good; the number grows when others change. */
#define TROUPE_PLUGIN_MAGIC 0x54725067u
#define TROUPE_PLUGIN_ABI 1u

typedef struct troupe_plugin_info {
  uint32_t magic;        /* TROUPE_PLUGIN_MAGIC */
  uint32_t abi;          /* TROUPE_PLUGIN_ABI */
  const char* release;   /* Of the runtime in it: "0.1.0". */
  const char* protocol;  /* What messages that runtime sends: a digest of their definitions. */
  const char* describes; /* "actors A, B; tasks none" */
  /* Hosts the actor that this process is to host and ends the process. `path`: of the plugin. */
  void (*host)(const char* path);
} troupe_plugin_info;

/* The type of `troupe_plugin`. What it returns is valid as long as the plugin is loaded. */
typedef const troupe_plugin_info* (*troupe_plugin_function)(void);

#ifdef __cplusplus
}
#endif
